"""Rotary position embedding: a place in the text becomes an angle, and scores see only how far apart two are."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .checks import check_float_tensor, check_number, check_whole_numbers


def rotate(
    x: Float[Tensor, "*batch seq d"],
    positions: Int[Tensor, "seq"],
    base: float = 10000.0,
) -> Float[Tensor, "*batch seq d"]:
    """Turn each pair of numbers by an angle that grows with the position.

    Pair ``i``, the numbers ``2 i`` and ``2 i + 1``, turns by ``position * base ** (-2 i / d)`` radians. Position 0
    changes nothing, lengths stay, and the dot product of two rotated vectors depends on the difference of their
    positions alone.

    Parameters
    ----------
    x : Tensor
        ``(*batch, seq, d)`` with an even ``d``.
    positions : Tensor
        ``(seq,)``, whole numbers.
    base : float
        Finite, above 0. The larger, the slower the last pairs turn.

    Returns
    -------
    Tensor
        Like ``x``. Half types are turned in float32, where an angle is exact to about ``position * 1e-7`` radians.

    Raises
    ------
    TypeError
        If ``x`` is not floating-point, ``positions`` holds no whole numbers, or ``base`` is no number.
    ValueError
        If ``d`` is odd, there is not one position a token, or ``base`` is not finite and above 0.

    Source
    ------
    Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", section 3.2.2, equation 15.
    """
    check_float_tensor("x", x, 2, "shape (*batch, seq, d)")
    check_whole_numbers("positions", positions, "(seq,)")
    check_number("base", base)
    seq, d = x.shape[-2:]
    if d % 2:
        raise ValueError(f"x: expected an even width, got shape {tuple(x.shape)}")
    if len(positions) != seq:
        raise ValueError(
            f"positions: expected {seq}, one a token of x, got {len(positions)}"
        )
    if not (0 < base < math.inf):
        raise ValueError(f"base: expected a finite number above 0, got {base}")
    half = x.dtype in (torch.float16, torch.bfloat16)
    wide = torch.float32 if half else x.dtype

    exponents = torch.arange(0, d, 2, dtype=wide, device=x.device) / d
    speeds = base**-exponents  # (d / 2,), radians a position
    angles = positions[:, None].to(wide) * speeds  # (seq, d / 2)
    cos, sin = angles.cos(), angles.sin()
    first, second = x.to(wide).unflatten(-1, (d // 2, 2)).unbind(-1)
    turned = (first * cos - second * sin, first * sin + second * cos)
    return torch.stack(turned, dim=-1).flatten(-2).to(x.dtype)
