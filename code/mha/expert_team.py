"""What "a team of experts that works in parallel" means, as something that can be checked."""

import copy
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

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
    """
    heads = [
        split_heads(W(x), module.num_heads)
        for W in (module.W_q, module.W_k, module.W_v)
    ]
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
        Not modified: copies of it are.
    read : callable
        Takes a module like ``module`` and returns contributions, heads first: of the same module, or of one that
        reads its output.

    Returns
    -------
    Tensor
        Boolean, ``(read, changed)``: ``True`` where a change of head ``changed`` reaches head ``read``.
    """
    columns = []
    with torch.no_grad():
        before = read(module)
        for head in range(module.num_heads):
            changed = copy.deepcopy(module)
            for W in (changed.W_q, changed.W_k, changed.W_v):
                for numbers in (W.weight, W.bias):
                    if numbers is not None:
                        numbers.unflatten(0, (module.num_heads, -1))[head] += 0.5
            columns.append((read(changed) != before).flatten(1).any(dim=1))
    return torch.stack(columns, dim=1)
