"""Slower ways to compute the same module, without dropout: a loop over heads, and all heads at once without a kernel.

The fast way is the module itself, with ``need_weights=False``.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from .head_splitting import combine_heads, split_heads
from .multi_head import MultiHeadAttention
from .single_head import causal_mask


def loop_over_heads(
    module: MultiHeadAttention,
    x: Float[Tensor, "batch seq d_model"],
    *,
    is_causal: bool = False,
) -> Float[Tensor, "batch seq d_model"]:
    """Compute self-attention one head after the other, each with its own rows."""
    d_k = module.d_model // module.num_heads
    heads = []
    for first in range(0, module.d_model, d_k):
        rows = slice(first, first + d_k)
        q, k, v = (
            F.linear(x, W.weight[rows], None if W.bias is None else W.bias[rows])
            for W in (module.W_q, module.W_k, module.W_v)
        )  # (batch, seq, d_k) each
        heads.append(_attend(q, k, v, is_causal))
    return module.W_o(torch.cat(heads, dim=-1))


def batched_heads(
    module: MultiHeadAttention,
    x: Float[Tensor, "batch seq d_model"],
    *,
    is_causal: bool = False,
) -> Float[Tensor, "batch seq d_model"]:
    """Compute self-attention in all heads at once, line by line as the formulas."""
    q, k, v = (
        split_heads(W(x), module.num_heads)
        for W in (module.W_q, module.W_k, module.W_v)
    )  # (batch, heads, seq, d_k) each
    return module.W_o(combine_heads(_attend(q, k, v, is_causal)))


def _attend(query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> Tensor:
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if is_causal:
        future = ~causal_mask(*scores.shape[-2:], device=scores.device)
        scores = scores.masked_fill(future, -torch.inf)
    return scores.softmax(dim=-1) @ value
