"""Splitting a wide projection into heads and joining them again: what chapter 2 builds."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from .checks import check_at_least, check_divisible, check_tensor


def split_heads(
    x: Float[Tensor, "*batch seq width"], num_heads: int
) -> Float[Tensor, "*batch heads seq d_k"]:
    """Cut each token's vector into ``num_heads`` pieces and give them an axis.

    Parameters
    ----------
    x : Tensor
        ``(*batch, seq, heads * d_k)``, in any memory layout.
    num_heads : int
        Number of heads; must divide the last axis.

    Returns
    -------
    Tensor
        ``(*batch, heads, seq, d_k)``, a view of ``x``: nothing is copied.

    Raises
    ------
    ValueError
        If ``num_heads`` is less than 1 or does not divide the width, or ``x`` has fewer than two axes.

    Source
    ------
    Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2.
    """
    check_tensor("x", x, 2, "shape (*batch, seq, heads * d_k)")
    width = x.shape[-1]
    check_divisible(width, num_heads, "width")
    d_k = width // num_heads
    pieces = x.view(*x.shape[:-1], num_heads, d_k)  # (*batch, seq, heads, d_k)
    return pieces.transpose(-3, -2)  # (*batch, heads, seq, d_k)


def combine_heads(
    x: Float[Tensor, "*batch heads seq d_v"],
) -> Float[Tensor, "*batch seq width"]:
    """Lay the heads' outputs side by side, head 0 first: splitting undone.

    Parameters
    ----------
    x : Tensor
        ``(*batch, heads, seq, d_v)``.

    Returns
    -------
    Tensor
        ``(*batch, seq, heads * d_v)``.

    Raises
    ------
    ValueError
        If ``x`` has fewer than three axes.

    Source
    ------
    Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2: the Concat of the MultiHead formula.
    """
    check_tensor("x", x, 3, "shape (*batch, heads, seq, d_v)")
    tokens_first = x.transpose(-3, -2)  # (*batch, seq, heads, d_v)
    return tokens_first.reshape(*tokens_first.shape[:-2], x.shape[-3] * x.shape[-1])


def per_head_matrices(
    projection: nn.Linear, num_heads: int
) -> Float[Tensor, "heads d_model d_k"]:
    """Return the matrices ``W_i`` of the formulas, cut out of a wide projection.

    In the formulas tokens are rows and ``x W`` has the heads' matrices side by side as *column* blocks.
    ``nn.Linear`` stores the transpose, ``(out, in)``, so in ``projection.weight`` they are *row* blocks.

    Parameters
    ----------
    projection : nn.Linear
        From ``d_model`` to ``heads * d_k``.
    num_heads : int
        Number of heads; must divide the projection's output width.

    Returns
    -------
    Tensor
        ``(heads, d_model, d_k)``, a view of the weight: ``x @ result[i]`` is head ``i``'s projection (without bias).

    Raises
    ------
    ValueError
        If ``num_heads`` is less than 1 or does not divide the output width.
    """
    check_divisible(projection.out_features, num_heads, "out_features")
    d_k = projection.out_features // num_heads
    return projection.weight.view(num_heads, d_k, projection.in_features).transpose(
        -2, -1
    )


def count_parameters(module: nn.Module) -> int:
    """Return how many numbers a module's parameters hold, a shared one counted once."""
    return sum(parameter.numel() for parameter in module.parameters())


class AttentionCost(NamedTuple):
    """What multi-head self-attention holds and computes for one sequence; biases and softmax left out."""

    parameters: int  # numbers in W_q, W_k, W_v and W_o
    matmul_flops: (
        int  # floating-point operations of the matrix products, a multiply-add as 2
    )
    score_elements: int  # numbers in all heads' score matrices together


def attention_cost(
    seq: int, d_model: int, num_heads: int, d_k: int | None = None
) -> AttentionCost:
    """Count what multi-head self-attention holds and computes.

    Parameters
    ----------
    seq : int
        Number of tokens.
    d_model : int
        Width of the tokens' vectors.
    num_heads : int
        Number of heads.
    d_k : int, optional
        Width of each head's queries, keys and values. Default: ``d_model / num_heads``, as in the paper.

    Returns
    -------
    AttentionCost
        With the default ``d_k`` the FLOPs are ``8 seq d_model² + 4 seq² d_model``.

    Raises
    ------
    ValueError
        If a number is less than 1, or ``d_k`` is not given and ``num_heads`` does not divide ``d_model``.

    Source
    ------
    Counted from Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2.
    """
    check_at_least("seq", seq)
    check_at_least("d_model", d_model)
    if d_k is None:
        check_divisible(d_model, num_heads)
        d_k = d_model // num_heads
    check_at_least("num_heads", num_heads)
    check_at_least("d_k", d_k)
    parameters = 4 * d_model * num_heads * d_k  # three projections in, one out
    projections = 2 * seq * parameters  # every token meets every parameter once
    score_elements = num_heads * seq * seq
    scores_and_mixing = 2 * (2 * score_elements * d_k)  # Q Kᵀ, then weights times V
    flops = projections + scores_and_mixing
    return AttentionCost(parameters, flops, score_elements)


def influence(
    function: Callable[[Tensor], Tensor], x: Float[Tensor, "batch seq d_model"]
) -> Bool[Tensor, "output input"]:
    """Change one input token at a time, and tell which output tokens change.

    Two tests in one: with a causal mask nothing may stand above the diagonal (no leak from the future), and
    everything below it must be reached (a wrong split of the heads leaves holes there).

    Parameters
    ----------
    function : callable
        Takes ``(batch, seq, d_model)`` and returns ``(batch, output, …)``; must be deterministic.
    x : Tensor
        ``(batch, seq, d_model)``, the tokens to start from. Not modified.

    Returns
    -------
    Tensor
        Boolean, ``(output, input)``: ``True`` where changing the input token changed the output token in any digit.

    Raises
    ------
    TypeError
        If ``x`` is not a tensor.
    ValueError
        If ``x`` has fewer than three axes.
    """
    check_tensor("x", x, 3, "shape (batch, seq, d_model)")
    # A change as large as the numbers themselves, and another one for each feature,
    # so that no sum over the features is left as it was.
    size = x.detach().abs().amax().clamp(min=1.0) if x.numel() else 1.0
    push = size * torch.linspace(1.0, 2.0, x.shape[-1], device=x.device).to(x.dtype)
    columns = []
    with torch.no_grad():
        before = function(x.clone()).clone()
        for token in range(x.shape[-2]):
            changed = x.clone()
            changed[..., token, :] += push
            after = function(changed)  # (batch, output, …)
            # To the last digit, and NaN equals NaN: nothing is too small to count.
            same = (after == before) | (after.isnan() & before.isnan())
            columns.append(~same.transpose(0, 1).flatten(1).all(dim=1))  # (output,)
    return torch.stack(columns, dim=1)
