"""What "a team of experts that works in parallel" means, as something that can be checked."""

import copy
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .checks import check_at_least, check_instance, check_tensor, check_tokens
from .head_splitting import split_heads
from .multi_head import MultiHeadAttention
from .single_head import scaled_dot_product_attention


def head_contributions(
    module: MultiHeadAttention,
    x: Float[Tensor, "batch seq d_model"],
    *,
    is_causal: bool = False,
) -> Float[Tensor, "heads batch seq d_model"]:
    """Return what each head adds to the output of self-attention; the sum and ``W_o``'s bias are the output.

    Each head meets its own rows of ``W_o`` alone, because to lay outputs side by side and to multiply by ``W_o``
    is to multiply each by its rows and to add.

    Parameters
    ----------
    module : MultiHeadAttention
        As in chapter 4; dropout is left out.
    x : Tensor
        ``(batch, seq, d_model)``.
    is_causal : bool
        Hide the future.

    Returns
    -------
    Tensor
        ``(heads, batch, seq, d_model)``.

    Raises
    ------
    TypeError
        If ``module`` is no ``MultiHeadAttention``, or ``x`` no floating-point tensor of its dtype.
    ValueError
        If ``x`` has another shape, or another width than queries, keys and values are made from.
    """
    check_instance("module", module, MultiHeadAttention)
    check_tensor("x", x, 3, f"shape (batch, seq, {module.d_model})")
    heads = []
    for W in (module.W_q, module.W_k, module.W_v):
        check_tokens("x", x, W.in_features, W.weight.dtype)
        heads.append(split_heads(W(x), module.num_heads))
    output, _ = scaled_dot_product_attention(*heads, is_causal=is_causal)
    # nn.Linear keeps the transpose, so that the formulas' rows are its columns.
    rows = module.W_o.weight.mT.unflatten(0, (module.num_heads, -1))
    return output.transpose(0, 1) @ rows[:, None]  # (heads, d_k, d_model) each its own


def head_influence(
    module: MultiHeadAttention, read: Callable[[MultiHeadAttention], Tensor]
) -> Bool[Tensor, "read changed"]:
    """Change all numbers of one head at a time, and tell which heads' contributions change in any digit.

    Parameters
    ----------
    module : MultiHeadAttention
        Not modified: copies of it are, in eval mode, so that dropout changes nothing.
    read : callable
        Gets such a copy and returns contributions, heads first: of the same module, or of one that reads its output.
        Called once for the module as it is, and once for each of its heads.

    Returns
    -------
    Tensor
        Boolean, ``(read, changed)``: ``True`` where a change of head ``changed`` reaches head ``read``.

    Raises
    ------
    TypeError
        If ``module`` is no ``MultiHeadAttention``, or ``read`` does not return a tensor.
    ValueError
        If what ``read`` returns has no head, or not always the same shape.
    """
    check_instance("module", module, MultiHeadAttention)
    columns = []
    with torch.no_grad():
        before = _heads_first(read(copy.deepcopy(module).eval()))
        for head in range(module.num_heads):
            changed = copy.deepcopy(module).eval()
            for W in (changed.W_q, changed.W_k, changed.W_v):
                for numbers in (W.weight, W.bias):
                    if numbers is not None:
                        numbers.unflatten(0, (module.num_heads, -1))[head] += 0.5
            after = _heads_first(read(changed))
            if after.shape != before.shape:
                raise ValueError(
                    f"output of read: expected shape {tuple(before.shape)}, as before, got {tuple(after.shape)}"
                )
            same = (after == before) | (after.isnan() & before.isnan())
            columns.append(~same[..., None].flatten(1).all(dim=1))
    return torch.stack(columns, dim=1)


def _heads_first(contributions: Tensor) -> Tensor:
    """Return a copy of what was read, or raise if it has no axis of heads."""
    check_tensor("output of read", contributions, 1, "shape (heads, …)")
    check_at_least("number of heads in the output of read", len(contributions))
    return contributions.clone()
