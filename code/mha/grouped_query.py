"""Attention whose heads share keys and values in groups: multi-head and multi-query attention are its two ends."""

from jaxtyping import Bool, Float
from torch import Tensor, nn

from .checks import (
    check_at_least,
    check_divisible,
    check_probability,
    check_tokens,
    with_head_axis,
)
from .fast_path import attend_in_groups
from .head_splitting import combine_heads, split_heads
from .kv_cache import KVCache, append_and_read, new_cache_options, tokens_before
from .multi_head import MultiHeadAttention
from .single_head import scaled_dot_product_attention
from .torch_conversion import copy_projections


class GroupedQueryAttention(nn.Module):
    """Self-attention whose heads share keys and values in groups.

    Head ``h`` reads head ``h // (num_heads // num_kv_heads)`` of the keys and values. With as many of them as there
    are heads this is :class:`MultiHeadAttention`, and takes its state dict as it is; with one it is multi-query
    attention.

    Parameters
    ----------
    d_model : int
        Width of the tokens and of the output.
    num_heads : int
        Number of heads of the queries; must divide ``d_model``.
    num_kv_heads : int
        Number of heads of the keys and values; must divide ``num_heads``.
    dropout : float
        Probability, in [0, 1), that a weight is dropped while training.
    bias : bool
        Whether the four projections add a bias.

    Raises
    ------
    TypeError
        If a width or number is not an int.
    ValueError
        If a number does not divide the one before it or is less than 1, or ``dropout`` lies outside [0, 1).

    Source
    ------
    Ainslie et al. 2023, "GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints",
    section 2.2; with one head Shazeer 2019, "Fast Transformer Decoding: One Write-Head is All You Need", section 3.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_kv_heads: int,
        *,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_at_least("d_model", d_model)
        check_divisible(d_model, num_heads)
        check_divisible(num_heads, num_kv_heads, "num_heads", "num_kv_heads")
        check_probability("dropout", dropout)
        self.d_model, self.d_k, self.dropout = d_model, d_model // num_heads, dropout
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.W_q = nn.Linear(d_model, d_model, bias=bias)
        self.W_k = nn.Linear(d_model, num_kv_heads * self.d_k, bias=bias)
        self.W_v = nn.Linear(d_model, num_kv_heads * self.d_k, bias=bias)
        self.W_o = nn.Linear(d_model, d_model, bias=bias)

    def forward(
        self,
        x: Float[Tensor, "*batch query d_model"],
        mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
        *,
        is_causal: bool = True,
        cache: KVCache | None = None,
        need_weights: bool = False,
    ) -> tuple[
        Float[Tensor, "*batch query d_model"],
        Float[Tensor, "*batch heads query key"] | None,
    ]:
        """Let every token attend to the tokens so far, in all heads.

        Parameters
        ----------
        x : Tensor
            ``(batch, query, d_model)``, or ``(query, d_model)`` for one sentence. With a cache these are the new
            tokens only.
        mask : Tensor, optional
            As in :class:`MultiHeadAttention`. With a cache its keys are all tokens so far, the new ones last.
        is_causal : bool
            Hide the future, aligned to the end. Combines with ``mask``.
        cache : KVCache, optional
            From :meth:`new_cache`. The new tokens' keys and values are appended, and all of it is read. No
            gradient reaches ``W_k`` and ``W_v`` then.
        need_weights : bool
            Whether to return the weights. Without them a fused kernel does the work.

        Returns
        -------
        output : Tensor
            ``(batch, query, d_model)``.
        weights : Tensor or None
            ``(batch, heads, query, key)``, before dropout.

        Raises
        ------
        TypeError
            If ``x`` is not a floating-point tensor of the module's dtype, the mask neither boolean nor floating, or
            the cache of another kind or dtype.
        ValueError
            If the width, the mask or the cache does not fit, or the cache is full. The cache is left as it was.
        """
        check_tokens("x", x, self.d_model, self.W_q.weight.dtype)
        unbatched = x.dim() == 2
        if unbatched:
            x = x[None]

        q = split_heads(self.W_q(x), self.num_heads)  # (batch, heads, query, d_k)
        k = split_heads(self.W_k(x), self.num_kv_heads)  # (…, kv_heads, new, d_k)
        v = split_heads(self.W_v(x), self.num_kv_heads)  # (…, kv_heads, new, d_k)
        key_len = tokens_before(cache, k.shape, k) + x.shape[-2]
        mask = with_head_axis(mask, (*q.shape[:-1], key_len), q.device)
        if cache is not None:
            k, v = append_and_read(cache, k, v)  # (batch, kv_heads, key, d_k)
        options = {"is_causal": is_causal, "dropout_p": self.dropout * self.training}
        if need_weights:
            group = self.num_heads // self.num_kv_heads
            k, v = (kv.repeat_interleave(group, dim=1) for kv in (k, v))
            heads, weights = scaled_dot_product_attention(q, k, v, mask, **options)
        else:
            heads, weights = attend_in_groups(q, k, v, mask, **options), None
        output = self.W_o(combine_heads(heads))  # (batch, query, d_model)

        if unbatched:
            output, weights = output[0], None if weights is None else weights[0]
        return output, weights

    def new_cache(self, batch: int, max_len: int) -> KVCache:
        """Return an empty cache for this module, of its dtype (or autocast's) and on its device.

        Parameters
        ----------
        batch : int
            Number of sentences; 1 for ``(query, d_model)``.
        max_len : int
            For how many tokens there is room.
        """
        options = new_cache_options(self.W_k.weight)
        return KVCache(batch, self.num_kv_heads, max_len, self.d_k, **options)

    @classmethod
    def from_multi_head(
        cls, module: MultiHeadAttention, num_kv_heads: int
    ) -> "GroupedQueryAttention":
        """Return a copy with fewer kv heads: the mean of each group.

        Queries and output are copied as they are; dtype, device and mode are kept, and frozen parameters stay
        frozen. Unless the heads of a group were equal the result computes something else, and is where further
        training starts.

        Parameters
        ----------
        module : MultiHeadAttention
            With keys and values as wide as queries.
        num_kv_heads : int
            Must divide the module's number of heads.

        Raises
        ------
        TypeError
            If ``module`` is another kind of module.
        ValueError
            If ``kdim`` or ``vdim`` differ from ``d_model``, the number does not divide the heads, or the module's
            parameters differ in dtype or device.

        Source
        ------
        Ainslie et al. 2023, section 2.1.
        """
        if not isinstance(module, MultiHeadAttention):
            raise TypeError(
                f"module: expected a MultiHeadAttention, got {type(module).__name__}"
            )
        widths = (module.W_k.in_features, module.W_v.in_features)
        if widths != (module.d_model, module.d_model):
            raise ValueError(
                f"module: expected kdim and vdim of {module.d_model}, its d_model, "
                f"got {widths}"
            )
        bias = module.W_q.bias is not None
        sizes = (module.d_model, module.num_heads, num_kv_heads)
        copy = cls(*sizes, dropout=module.dropout, bias=bias)
        copy.to(module.W_o.weight)
        source = module._projections()  # of W_q, W_k, W_v and W_o
        for part in (1, 2):
            source[part] = [copy._mean_of_groups(tensor) for tensor in source[part]]
        target = [[*W.parameters()] for W in (copy.W_q, copy.W_k, copy.W_v, copy.W_o)]
        copy_projections(source, target, copy)
        return copy.train(module.training)

    def _mean_of_groups(self, tensor: Tensor) -> Tensor:
        """Return the mean of each group of heads; axis 0 is ``heads * d_k``."""
        groups = tensor.detach().unflatten(0, (self.num_kv_heads, -1, self.d_k))
        return groups.mean(dim=1).flatten(0, 1).requires_grad_(tensor.requires_grad)
