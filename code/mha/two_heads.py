"""Two heads small enough for paper: what chapter 3 builds.

Here the heads stand in a Python loop, one matrix each, exactly as the formulas write them.
Nothing faster is as easy to read, so the later modules are tested against it.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from .checks import check_at_least, check_tensor
from .single_head import scaled_dot_product_attention


class HeadByHead(NamedTuple):
    """Every intermediate result of multi-head attention on one sequence; ``heads`` is the first axis."""

    queries: Float[Tensor, "heads seq d_k"]
    keys: Float[Tensor, "heads seq d_k"]
    values: Float[Tensor, "heads seq d_v"]
    scores: Float[Tensor, "heads seq seq"]  # before scaling
    weights: Float[Tensor, "heads seq seq"]
    head_outputs: Float[Tensor, "heads seq d_v"]
    concatenated: Float[Tensor, "seq heads_times_d_v"]
    output: Float[Tensor, "seq d_model"]


def concat_heads(
    head_outputs: Float[Tensor, "heads *seq d_v"],
    W_o: Float[Tensor, "heads_times_d_v d_model"],
) -> tuple[Float[Tensor, "*seq heads_times_d_v"], Float[Tensor, "*seq d_model"]]:
    """Lay the heads' outputs side by side and multiply by ``W_o``.

    Parameters
    ----------
    head_outputs : Tensor
        ``(heads, *seq, d_v)``.
    W_o : Tensor
        ``(heads * d_v, d_model)``.

    Returns
    -------
    concatenated : Tensor
        ``(*seq, heads * d_v)``, head 0 first.
    output : Tensor
        ``(*seq, d_model)``.

    Raises
    ------
    TypeError
        If an argument is not a tensor.
    ValueError
        If there is no head, or ``W_o`` does not have ``heads * d_v`` rows.

    Source
    ------
    Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2.
    """
    check_tensor("head_outputs", head_outputs, 2, "shape (heads, *seq, d_v)")
    check_tensor("W_o", W_o, 0, "")
    if len(head_outputs) == 0:
        raise ValueError(
            "head_outputs: expected shape (heads, *seq, d_v) with 1 head or more, "
            f"got {tuple(head_outputs.shape)}"
        )
    width = head_outputs.shape[0] * head_outputs.shape[-1]
    if W_o.dim() != 2 or W_o.shape[0] != width:
        raise ValueError(
            f"W_o: expected {width} rows (heads {head_outputs.shape[0]} times "
            f"d_v {head_outputs.shape[-1]}), got shape {tuple(W_o.shape)}"
        )
    concatenated = torch.cat(list(head_outputs), dim=-1)
    return concatenated, concatenated @ W_o


def attend_head_by_head(
    x: Float[Tensor, "seq d_model"],
    W_q: Float[Tensor, "heads d_model d_k"],
    W_k: Float[Tensor, "heads d_model d_k"],
    W_v: Float[Tensor, "heads d_model d_v"],
    W_o: Float[Tensor, "heads_times_d_v d_model"],
) -> HeadByHead:
    """Compute multi-head self-attention head by head, and keep every step.

    Parameters
    ----------
    x : Tensor
        ``(seq, d_model)``, one sentence.
    W_q, W_k, W_v : Tensor
        ``(heads, d_model, d_k)`` (``d_v`` for the values): each head's own matrices, no bias.
    W_o : Tensor
        ``(heads * d_v, d_model)``.

    Returns
    -------
    HeadByHead
        All steps, from the queries to the output ``(seq, d_model)``.

    Raises
    ------
    TypeError
        If an argument is not a tensor.
    ValueError
        If shapes do not fit.

    Source
    ------
    Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2.
    """
    check_tensor("x", x, 2, "shape (seq, d_model)")
    if x.dim() != 2:
        raise ValueError(
            f"x: expected shape (seq, d_model), one sentence, got {tuple(x.shape)}"
        )
    for name, matrices in (("W_q", W_q), ("W_k", W_k), ("W_v", W_v)):
        check_tensor(name, matrices, 3, "shape (heads, d_model, width)")
    heads = len(W_q)
    check_at_least("W_q: number of heads", heads)
    for name, matrices in (("W_q", W_q), ("W_k", W_k), ("W_v", W_v)):
        if matrices.dim() != 3 or matrices.shape[:2] != (heads, x.shape[-1]):
            raise ValueError(
                f"{name}: expected shape ({heads}, {x.shape[-1]}, width), "
                f"got {tuple(matrices.shape)}"
            )
    steps = []
    for head in range(heads):
        query, key, value = x @ W_q[head], x @ W_k[head], x @ W_v[head]
        output, weights = scaled_dot_product_attention(query, key, value)
        steps.append((query, key, value, query @ key.T, weights, output))
    stacked = [torch.stack(step) for step in zip(*steps, strict=True)]
    return HeadByHead(*stacked, *concat_heads(stacked[-1], W_o))


class PaperExample(NamedTuple):
    """The chapter's numbers: three tokens of width 4, two heads of width 2."""

    tokens: tuple[str, ...]
    x: Float[Tensor, "seq d_model"]
    W_q: Float[Tensor, "heads d_model d_k"]
    W_k: Float[Tensor, "heads d_model d_k"]
    W_v: Float[Tensor, "heads d_model d_v"]
    W_o: Float[Tensor, "heads_times_d_v d_model"]


def paper_example() -> PaperExample:
    """Return the worked example: whole numbers small enough to follow with a pencil.

    All scores are 0, 1 or 2, so that after scaling by 1/√2 only three exponentials occur: 1, 2.03 and 4.11.

    Returns
    -------
    PaperExample
        Three tokens, ``x`` of shape ``(3, 4)``, two heads of width 2, ``W_o`` of shape ``(4, 4)``; float32.
    """
    return PaperExample(
        tokens=("kitten", "was", "tired"),
        x=torch.tensor([[1.0, 0, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0]]),
        W_q=torch.tensor(
            [
                [[0.0, 0], [1, 0], [0, 1], [1, 0]],
                [[0, 0], [0, 1], [1, 0], [0, 1]],
            ]
        ),
        W_k=torch.tensor(
            [
                [[0.0, 0], [0, 1], [1, 0], [0, 1]],
                [[1, 0], [1, 0], [0, 0], [0, 1]],
            ]
        ),
        W_v=torch.tensor(
            [
                [[2.0, 0], [0, 1], [1, 0], [0, 2]],
                [[1, 0], [1, 0], [0, 2], [1, 0]],
            ]
        ),
        W_o=torch.tensor(
            [
                [1.0, 0, 1, 0],
                [0, 1, 0, 1],
                [0, 1, 2, 0],
                [1, 0, 0, -1],
            ]
        ),
    )
