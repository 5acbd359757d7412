"""Masks: who may look at whom. What chapter 5 builds.

A boolean mask says ``True`` where a query may attend to a key; a floating one is added to the scores.
A mask of three axes is always ``(batch, query, key)``: a head axis is put in, and no axis is guessed.
"""

from functools import reduce

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .checks import check_at_least, check_mask_type, check_whole_numbers
from .single_head import causal_mask

__all__ = ["causal_mask", "combine_masks", "padding_mask"]


def padding_mask(
    lengths: Int[Tensor, "batch"],
    key_len: int,
) -> Bool[Tensor, "batch 1 1 key"]:
    """Return the mask that hides the keys after the end of each sentence.

    It hides *keys*: no query sees padding. Queries at padded places still get an output, which is to be dropped.
    What stands in the padding does not matter as long as it is a finite number.

    Parameters
    ----------
    lengths : Tensor
        ``(batch,)``, whole numbers from 0 to ``key_len``: how many keys of each sentence are real.
    key_len : int
        Number of keys of the padded batch.

    Returns
    -------
    Tensor
        Boolean, ``(batch, 1, 1, key)``, on the device of ``lengths``; broadcasts over heads and queries.

    Raises
    ------
    TypeError
        If ``lengths`` is not a tensor of whole numbers, or ``key_len`` not an int.
    ValueError
        If ``lengths`` has not one axis, or a length lies outside 0 … ``key_len``.
    """
    check_whole_numbers("lengths", lengths, "(batch,)")
    check_at_least("key_len", key_len, 0)
    lengths = lengths.long()  # key_len may not fit into a smaller type
    # A compiled graph has no numbers to look at.
    if not (torch.compiler.is_compiling() or lengths.is_meta):
        wrong = lengths[(lengths < 0) | (lengths > key_len)]
        if wrong.numel():
            raise ValueError(
                f"lengths: expected numbers from 0 to key_len {key_len}, "
                f"got {wrong[:5].tolist()}"
            )
    positions = torch.arange(key_len, device=lengths.device)
    keep = positions < lengths[:, None]  # (batch, key)
    return keep[:, None, None, :]  # (batch, 1, 1, key)


def combine_masks(
    *masks: Bool[Tensor, "..."] | Float[Tensor, "..."],
) -> Bool[Tensor, "..."] | Float[Tensor, "..."]:
    """Return one mask that says what all of them say together.

    Booleans are joined by *and*, floats are added, and where both occur a boolean ``False`` becomes −∞.

    Parameters
    ----------
    *masks : Tensor
        Each ``(query, key)``, ``(batch, query, key)`` or ``(batch, heads, query, key)``, with 1s where it is to
        broadcast. Axes are known by their number alone: pass ``(batch, key)`` as ``mask[:, None, None, :]``.

    Returns
    -------
    Tensor
        Boolean if all masks are, else floating; of the broadcast shape.

    Raises
    ------
    TypeError
        If a mask is neither boolean nor floating.
    ValueError
        If there is no mask, one has another number of axes, or their shapes do not broadcast.
    """
    if not masks:
        raise ValueError("masks: expected at least one mask, got none")
    for number, mask in enumerate(masks):
        check_mask_type(f"masks[{number}]", mask)
        if not 2 <= mask.dim() <= 4:
            raise ValueError(
                f"masks[{number}]: expected 2 to 4 axes, got {tuple(mask.shape)}"
            )
    if any(mask.dim() == 4 for mask in masks):
        # Only beside a mask with heads: alone, three axes need no head axis yet.
        masks = tuple(mask[:, None] if mask.dim() == 3 else mask for mask in masks)
    try:
        torch.broadcast_shapes(*(mask.shape for mask in masks))
    except RuntimeError as error:
        shapes = ", ".join(str(tuple(mask.shape)) for mask in masks)
        raise ValueError(
            f"masks: expected shapes that broadcast, got {shapes}"
        ) from error
    keeps = [mask for mask in masks if mask.dtype == torch.bool]
    biases = [mask for mask in masks if mask.dtype != torch.bool]
    keep = reduce(torch.logical_and, keeps) if keeps else None
    if not biases:
        return keep
    bias = reduce(torch.add, biases)
    return bias if keep is None else torch.where(keep, bias, -torch.inf)
