"""Attention without its weights, through PyTorch's fused kernels; chapter 4's module uses it, chapter 6 times it."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from .single_head import causal_mask, scaled_dot_product_attention


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
    query × key is made.

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
    query_len, key_len = query.shape[-2], key.shape[-2]
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
