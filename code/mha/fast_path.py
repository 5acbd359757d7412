"""Attention without its weights, through PyTorch's fused kernels; chapter 4's module uses it, chapter 6 times it.

Chapter 8 adds heads that read the keys and values of one head together.
"""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from .checks import (
    check_divisible,
    check_mask,
    check_number,
    check_probability,
    check_query_key_value,
)
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
    scale: float | None = None,
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
    scale : float, optional
        What the dot products are multiplied by. Default: ``1 / sqrt(d_k)``.

    Returns
    -------
    Tensor
        ``(batch, heads, query, d_v)``.
    """
    check_query_key_value(query, key, value)
    check_probability("dropout_p", dropout_p)
    if scale is not None:
        check_number("scale", scale)
    query_len, key_len = query.shape[-2], key.shape[-2]
    if mask is not None:
        check_mask(mask, (*query.shape[:-1], key_len), query.device)
    if 0 in (query.shape[0], query_len, key_len):
        # The kernels do not agree on what attention to nothing is; here it is zero.
        return scaled_dot_product_attention(query, key, value)[0]
    options = {"dropout_p": dropout_p, "scale": scale}
    attend = partial(F.scaled_dot_product_attention, **options)
    if mask is not None:
        if is_causal:
            keep = causal_mask(query_len, key_len, device=query.device)
            is_bool = mask.dtype == torch.bool
            mask = mask & keep if is_bool else mask.masked_fill(~keep, -torch.inf)
        if mask.dtype != torch.bool:
            mask = mask.to(query.dtype)
        return attend(query, key, value, mask)
    if not is_causal or query_len == 1:  # the last query sees everything
        return attend(query, key, value)
    if key_len > 4 * query_len:
        return _few_causal_queries(query, key, value, attend)
    # PyTorch's flag aligns to the start, which is the same where both are equally long.
    # Queries are left out, or put in front, until they are.
    surplus = query_len - key_len
    if surplus > 0:  # the first queries see no key
        blind = query.new_zeros(*query.shape[:-2], surplus, value.shape[-1])
        query = query[..., surplus:, :]
    elif surplus < 0:
        front = query.new_zeros(*query.shape[:-2], -surplus, query.shape[-1])
        query = torch.cat([front, query], dim=-2)
    output = attend(query, key, value, is_causal=True)
    if surplus > 0:
        return torch.cat([blind, output], dim=-2)
    return output[..., max(-surplus, 0) :, :]


def _few_causal_queries(
    query: Tensor, key: Tensor, value: Tensor, attend: Callable[..., Tensor]
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
        outputs.append(attend(some, key[..., :seen, :], value[..., :seen, :], keep))
    return torch.cat(outputs, dim=-2)


def attend_in_groups(
    query: Float[Tensor, "batch heads query d_k"],
    key: Float[Tensor, "batch kv_heads key d_k"],
    value: Float[Tensor, "batch kv_heads key d_v"],
    mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
    *,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    scale: float | None = None,
) -> Float[Tensor, "batch heads query d_v"]:
    """Compute attention's output alone, where heads share keys and values.

    The answer is that of :func:`attend_without_weights` with each head of ``key`` and ``value`` repeated for its
    group, ``repeat_interleave(heads // kv_heads, dim=1)``, but with a fused kernel nothing is repeated in memory.
    PyTorch has a flag for this, ``enable_gqa``. Not all kernels know it: on a T4, or beside a mask, it may get none
    of the fused ones (huggingface/transformers#48633, Comfy-Org/ComfyUI#15135), and on a CPU a single query takes
    twice as long or more.

    Parameters
    ----------
    query, key, value : Tensor
        ``(batch, heads, query, d_k)``, ``(batch, kv_heads, key, d_k)``, ``(batch, kv_heads, key, d_v)``; head ``h``
        of the queries reads head ``h // (heads // kv_heads)``.
    mask, is_causal, dropout_p, scale
        As in :func:`attend_without_weights`; a mask of four axes has ``heads`` heads, or 1.

    Returns
    -------
    Tensor
        ``(batch, heads, query, d_v)``.

    Raises
    ------
    ValueError
        If ``kv_heads`` does not divide ``heads``, or shapes do not fit.
    """
    batch, heads, query_len, d_k = query.shape
    kv_heads = key.shape[1]
    check_divisible(heads, kv_heads, "heads", "kv_heads")
    if mask is not None:
        check_mask(mask, (batch, heads, query_len, key.shape[-2]), query.device)
        mask = mask[None, None] if mask.dim() == 2 else mask
    group = heads // kv_heads
    options = {"dropout_p": dropout_p, "scale": scale}
    if group == 1:
        options["is_causal"] = is_causal
        return attend_without_weights(query, key, value, mask, **options)
    if query_len == 1:
        # Its heads are so many queries of one kv head, and all see the same keys.
        query = query.reshape(batch, kv_heads, group, d_k)
        if mask is not None and mask.shape[1] > 1:
            mask = mask.reshape(len(mask), kv_heads, group, mask.shape[-1])
        output = attend_without_weights(query, key, value, mask, **options)
    else:
        # Each kv head becomes a sentence of its own, and its group of heads sees
        # the same memory: an expanded axis takes no step in it.
        query = query.reshape(batch * kv_heads, group, query_len, d_k)
        key, value = (
            x.flatten(0, 1)[:, None].expand(-1, group, -1, -1) for x in (key, value)
        )
        if mask is not None and mask.shape[:2] != (1, 1):
            by_group = (kv_heads, group) if mask.shape[1] > 1 else (1, 1)
            mask = mask.unflatten(1, by_group).expand(batch, kv_heads, -1, -1, -1)
            mask = mask.flatten(0, 1)
        options["is_causal"] = is_causal
        output = attend_without_weights(query, key, value, mask, **options)
    return output.reshape(batch, heads, query_len, value.shape[-1])
