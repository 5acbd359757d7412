"""Attention without its weights, through PyTorch's fused kernels; chapter 4's module uses it, chapter 6 times it."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from .checks import check_mask, check_probability, check_query_key_value
from .single_head import causal_mask, scaled_dot_product_attention

QUERIES_AT_ONCE = 64  # so many rows of a mask are made, not one for each query


def attend_without_weights(
    query: Float[Tensor, "batch heads query d_k"],
    key: Float[Tensor, "batch heads key d_k"],
    value: Float[Tensor, "batch heads key d_v"],
    mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
    *,
    is_causal: bool = False,
    dropout_p: float = 0.0,
) -> Float[Tensor, "batch heads query d_v"]:
    """Compute attention's output alone, through PyTorch's fused kernels.

    The answer is that of :func:`scaled_dot_product_attention`. Without a mask, causal or not, no tensor of the size
    query × key is made (of a boolean one, at most 64 rows at a time), as long as PyTorch has a fused kernel for the
    call: on a CPU it has none with dropout or with values of another width than keys. A fused kernel has no second
    derivatives.

    Parameters
    ----------
    query, key, value : Tensor
        ``(batch, heads, query, d_k)``, ``(batch, heads, key, d_k)``, ``(batch, heads, key, d_v)``.
    mask : Tensor, optional
        Broadcasts to ``(batch, heads, query, key)``; boolean (``True`` = may attend) or floating (added).
    is_causal : bool
        Hide the future, aligned to the end.
    dropout_p : float
        Probability that a weight is dropped.

    Returns
    -------
    Tensor
        ``(batch, heads, query, d_v)``.
    """
    check_query_key_value(query, key, value)
    check_probability("dropout_p", dropout_p)
    query_len, key_len = query.shape[-2], key.shape[-2]
    if mask is not None:
        check_mask(mask, (*query.shape[:-1], key_len), query.device)
    if 0 in (query.shape[0], query_len, key_len):
        # The kernels do not agree on what attention to nothing is; here it is zero.
        return scaled_dot_product_attention(query, key, value)[0]
    if mask is not None:
        if is_causal:
            keep = causal_mask(query_len, key_len, device=query.device)
            is_bool = mask.dtype == torch.bool
            mask = mask & keep if is_bool else mask.masked_fill(~keep, -torch.inf)
        if mask.dtype != torch.bool:
            mask = mask.to(query.dtype)
        return F.scaled_dot_product_attention(query, key, value, mask, dropout_p)
    if not is_causal or query_len == 1:  # the last query sees everything
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout_p)
    if key_len > 4 * query_len:
        return _few_causal_queries(query, key, value, dropout_p)
    # PyTorch's flag aligns to the start, which is the same where both are equally long.
    # Queries are left out, or put in front, until they are.
    surplus = query_len - key_len
    if surplus > 0:  # the first queries see no key
        blind = query.new_zeros(*query.shape[:-2], surplus, value.shape[-1])
        query = query[..., surplus:, :]
    elif surplus < 0:
        front = query.new_zeros(*query.shape[:-2], -surplus, query.shape[-1])
        query = torch.cat([front, query], dim=-2)
    output = F.scaled_dot_product_attention(
        query, key, value, dropout_p=dropout_p, is_causal=True
    )
    if surplus > 0:
        return torch.cat([blind, output], dim=-2)
    return output[..., max(-surplus, 0) :, :]


def _few_causal_queries(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float
) -> Tensor:
    """Attend from the last places of a long text, some queries at a time, with a mask for their keys.

    Putting queries in front, as many as there are keys, would take longer than the rest.
    """
    query_len, key_len = query.shape[-2], key.shape[-2]
    outputs = []
    for first in range(0, query_len, QUERIES_AT_ONCE):
        some = query[..., first : first + QUERIES_AT_ONCE, :]
        seen = key_len - query_len + first + some.shape[-2]
        keep = causal_mask(some.shape[-2], seen, device=query.device)
        outputs.append(
            F.scaled_dot_product_attention(
                some, key[..., :seen, :], value[..., :seen, :], keep, dropout_p
            )
        )
    return torch.cat(outputs, dim=-2)
