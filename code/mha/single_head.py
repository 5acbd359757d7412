"""One head of attention: what chapter 1 builds.

Shapes: ``query`` and ``key`` name both the tensors and their lengths, as in ``(*batch, query, d_k)``.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from .checks import (
    check_at_least,
    check_float_tensor,
    check_mask,
    check_number,
    check_probability,
    check_query_key_value,
)


def causal_mask(
    query_len: int,
    key_len: int | None = None,
    *,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "query key"]:
    """Return the mask that lets each query see the keys up to its own.

    It is aligned to the end: query ``i`` sees the keys ``0 … i + key_len - query_len``, so that the last query sees
    all keys, which is what decoding with a cache needs. With equal lengths it is the lower triangle with its diagonal.

    Parameters
    ----------
    query_len : int
        Number of queries, 0 or more.
    key_len : int, optional
        Number of keys, 0 or more. Default: as many as queries.
    device : torch.device or str, optional
        Where the mask lies.

    Returns
    -------
    Tensor
        Boolean, ``(query, key)``; ``True`` = this query may attend to this key.

    Raises
    ------
    TypeError
        If a length is not an int.
    ValueError
        If a length is negative.
    """
    key_len = query_len if key_len is None else key_len
    check_at_least("query_len", query_len, 0)
    check_at_least("key_len", key_len, 0)
    everything = torch.ones(query_len, key_len, dtype=torch.bool, device=device)
    return everything.tril(diagonal=key_len - query_len)


def attention_weights(
    scores: Float[Tensor, "*batch query key"],
) -> Float[Tensor, "*batch query key"]:
    """Turn scores into weights: a softmax that gives 0 where all is masked.

    A row of nothing but −∞ has no softmax (0/0 = NaN). Such a query attends to nothing, so its weights are 0 and
    no gradient flows through its row. Half types are summed in float32.

    Parameters
    ----------
    scores : Tensor
        ``(*batch, query, key)``; −∞ where a query must not see a key.

    Returns
    -------
    Tensor
        ``(*batch, query, key)``, of the scores' dtype; rows sum to 1, or to 0 where every score is −∞.

    Source
    ------
    Vaswani et al. 2017, "Attention Is All You Need", equation 1.
    """
    sees_nothing = torch.isneginf(scores).all(dim=-1, keepdim=True)
    # The row is replaced before the softmax, not only after it: repairing the NaN
    # afterwards would clean the output and still leave NaN in the gradients.
    weights = _softmax(scores.masked_fill(sees_nothing, 0.0))
    return weights.masked_fill(sees_nothing, 0.0)


def _softmax(scores: Tensor) -> Tensor:
    half = scores.dtype in (torch.float16, torch.bfloat16)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32 if half else None)
    return weights.to(scores.dtype)


def scaled_dot_product_attention(
    query: Float[Tensor, "*batch query d_k"],
    key: Float[Tensor, "*batch key d_k"],
    value: Float[Tensor, "*batch key d_v"],
    mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
    *,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    scale: float | None = None,
) -> tuple[Float[Tensor, "*batch query d_v"], Float[Tensor, "*batch query key"]]:
    """Give each query a weighted mean of values: ``softmax(Q Kᵀ · scale) V``.

    Parameters
    ----------
    query : Tensor
        ``(*batch, query, d_k)``. Any number of batch axes, heads among them.
    key : Tensor
        ``(*batch, key, d_k)``.
    value : Tensor
        ``(*batch, key, d_v)``.
    mask : Tensor, optional
        Boolean: ``True`` = this query may attend to this key. Floating: added to the scores (0/1 floats are
        therefore a small bias, not a mask). Shape ``(query, key)``, or as many axes as the scores, each of the
        scores' size or 1.
    is_causal : bool
        Hide the future: query ``i`` sees keys ``0 … i + key - query`` (aligned to the end). Combines with ``mask``.
    dropout_p : float
        Probability, in [0, 1), that a weight is dropped before it meets its value. A function does not know
        whether it is training: pass 0 when it is not.
    scale : float, optional
        What the dot products are multiplied by. Default: ``1 / sqrt(d_k)``.

    Returns
    -------
    output : Tensor
        ``(*batch, query, d_v)``, of the query's dtype. A query that may see no key gets exactly 0.
    weights : Tensor
        ``(*batch, query, key)``, before dropout; exactly 0 where masked. (A masked value still has to be a number:
        0 times NaN is NaN.)

    Raises
    ------
    TypeError
        If a tensor is not floating-point, dtypes differ, or the mask is neither boolean nor floating.
    ValueError
        If shapes do not fit or ``dropout_p`` lies outside [0, 1).

    Source
    ------
    Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1, equation 1.
    """
    check_query_key_value(query, key, value)
    check_probability("dropout_p", dropout_p)
    query_len, d_k = query.shape[-2:]
    key_len = key.shape[-2]
    if mask is not None:
        check_mask(mask, (*query.shape[:-1], key_len), query.device)

    scale = 1.0 / math.sqrt(d_k) if scale is None else scale
    check_number("scale", scale)
    # Half types meet in float32: a score that overflowed to −∞ would be hidden.
    half = query.dtype in (torch.float16, torch.bfloat16)
    wide = torch.float32 if half else query.dtype
    scores = (query * scale).to(wide) @ key.to(wide).mT  # (*batch, query, key)
    if mask is not None and mask.dtype != torch.bool:
        scores = scores + mask.to(query.dtype)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -torch.inf)
    if is_causal:
        future = ~causal_mask(query_len, key_len, device=scores.device)
        scores = scores.masked_fill_(future, -torch.inf)  # in place: they are ours

    # Causality alone leaves each query its own key, unless there are too few keys.
    all_see = mask is None and (not is_causal or query_len <= key_len)
    weights = _softmax(scores) if all_see else attention_weights(scores)
    weights = weights.to(query.dtype)
    kept = nn.functional.dropout(weights, dropout_p) if dropout_p else weights
    output = kept @ value  # (*batch, query, d_v)
    return output.to(query.dtype), weights


class SingleHeadAttention(nn.Module):
    """One head: three projections, and attention between what they make.

    Parameters
    ----------
    d_model : int
        Width of the tokens' vectors.
    d_k : int, optional
        Width of queries and keys. Default: ``d_model``.
    d_v : int, optional
        Width of values and of the output. Default: ``d_k``.
    bias : bool
        Whether the projections add a bias.

    Raises
    ------
    ValueError
        If a width is less than 1.

    Source
    ------
    Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2: one ``head_i`` of the MultiHead formula.
    """

    def __init__(
        self,
        d_model: int,
        d_k: int | None = None,
        d_v: int | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        d_k = d_model if d_k is None else d_k
        d_v = d_k if d_v is None else d_v
        for name, width in (("d_model", d_model), ("d_k", d_k), ("d_v", d_v)):
            check_at_least(name, width)
        self.d_model = d_model
        self.W_q = nn.Linear(d_model, d_k, bias=bias)
        self.W_k = nn.Linear(d_model, d_k, bias=bias)
        self.W_v = nn.Linear(d_model, d_v, bias=bias)

    def forward(
        self,
        x: Float[Tensor, "*batch seq d_model"],
        mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
        *,
        is_causal: bool = False,
    ) -> tuple[Float[Tensor, "*batch seq d_v"], Float[Tensor, "*batch seq seq"]]:
        """Let the tokens of ``x`` attend to each other.

        Parameters
        ----------
        x : Tensor
            ``(*batch, seq, d_model)``.
        mask, is_causal
            As in :func:`scaled_dot_product_attention`.

        Returns
        -------
        output : Tensor
            ``(*batch, seq, d_v)``.
        weights : Tensor
            ``(*batch, seq, seq)``: queries are rows, keys are columns.

        Raises
        ------
        TypeError
            If ``x`` is not a floating-point tensor, or the mask is neither boolean nor floating.
        ValueError
            If the width of ``x`` is not ``d_model``, or the mask does not fit.
        """
        layout = f"shape (*batch, seq, {self.d_model})"
        check_float_tensor("x", x, 2, layout)
        if x.shape[-1] != self.d_model:
            raise ValueError(f"x: expected {layout}, got {tuple(x.shape)}")
        return scaled_dot_product_attention(
            self.W_q(x), self.W_k(x), self.W_v(x), mask, is_causal=is_causal
        )
