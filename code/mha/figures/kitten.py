"""The running sentence in a plane: keys as arrows, one query, and the arcs of its three relations."""

import math

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Circle

from ..measures import KEY_LENGTH, QUERY_LENGTH
from ..palette import COLORS, head_color
from ..sentence import KITTEN_TOKENS, RELATIONS
from ..words import word
from .canvas import arrow, label

RELATION_COLORS = {
    target: head_color(head) for head, target in enumerate(RELATIONS.values())
}


def draw_plane(
    axes: Axes,
    x: float,
    y: float,
    radius: float,
    keys: torch.Tensor,
    query: torch.Tensor,
    names: bool = True,
) -> None:
    """Draw keys (coloured arrows and grey dots) and the query (black) in a plane; mathematics' y points up."""
    axes.add_patch(
        Circle(
            (x, y),
            radius,
            facecolor=COLORS["panel"],
            edgecolor=COLORS["line"],
            linewidth=0.8,
        )
    )
    unit = radius / KEY_LENGTH
    long_keys = [
        (token, key)
        for token, key in zip(KITTEN_TOKENS, keys.tolist(), strict=True)
        if math.hypot(*key) > 1
    ]
    stacked = len({tuple(round(v, 6) for v in key) for _, key in long_keys}) == 1
    for position, (token, key) in enumerate(long_keys):
        # Keys that coincide are drawn side by side, or one would hide the others.
        shift = (position - (len(long_keys) - 1) / 2) * 7 if stacked else 0.0
        tip = (x + key[0] * unit + shift, y - key[1] * unit)
        arrow(axes, (x + shift, y), tip, color=RELATION_COLORS[token], width=2, head=8)
        if names and not stacked:
            side = (
                "center" if abs(key[0]) < 0.1 else ("left" if key[0] > 0 else "right")
            )
            offset = (
                (0, -8) if side == "center" else ((3, 7) if side == "left" else (-3, 7))
            )
            label(axes, tip[0] + offset[0], tip[1] + offset[1], token, color=RELATION_COLORS[token], size=10.5,
                  align=side)  # fmt: skip
    if names and stacked:
        for position, (token, _) in enumerate(long_keys):
            label(axes, x - radius - 2, y - 24 + 14 * position, token, color=RELATION_COLORS[token], size=10.5,
                  align="right")  # fmt: skip
    for token, key in zip(KITTEN_TOKENS, keys.tolist(), strict=True):
        if token not in RELATION_COLORS or math.hypot(*key) <= 1:
            axes.add_patch(
                Circle(
                    (x + key[0] * unit, y - key[1] * unit),
                    1.1,
                    facecolor=COLORS["muted"],
                    edgecolor="none",
                )
            )
    if float(query.norm()) > 0:
        # Drawn beside the keys that it matches, or it would lie under them.
        beside = x + (15 if len(long_keys) > 1 else 6)
        tip = (beside + float(query[0]) * unit, y - float(query[1]) * unit)
        arrow(axes, (beside, y), tip, color="ink", width=1.4, head=7)
        if names:
            label(
                axes,
                beside + 5,
                y - 0.5 * QUERY_LENGTH * unit,
                "it",
                bold=True,
                size=10.5,
                align="left",
            )
    else:
        axes.add_patch(Circle((x, y), 3.2, facecolor=COLORS["ink"], edgecolor="none"))
        label(axes, x + 7, y - 7, "it", bold=True, size=10.5, align="left")


def draw_relations(axes: Axes, base: float) -> None:
    """Write the sentence on the line ``base`` with an arc from "it" to each of its three partners."""
    positions = _word_positions()
    start = positions[KITTEN_TOKENS.index("it")]
    kitten, was, tired = (
        positions[KITTEN_TOKENS.index(target)] for target in RELATIONS.values()
    )
    above, below = base - 11, base + 11
    arrow(
        axes,
        (start - 2, above),
        (kitten, above),
        color=head_color(0),
        width=2,
        curve=0.3,
    )
    arrow(
        axes, (start, below), (was - 2, below), color=head_color(1), width=2, curve=0.75
    )
    arrow(
        axes,
        (start + 2, above),
        (tired, above),
        color=head_color(2),
        width=2,
        curve=-0.45,
    )
    label(
        axes,
        (start + kitten) / 2,
        base - 68,
        word("relation_coreference"),
        color=head_color(0),
        size=10.5,
    )
    label(
        axes,
        (start + was) / 2,
        base + 34,
        word("relation_syntax"),
        color=head_color(1),
        size=10.5,
    )
    label(
        axes,
        (start + tired) / 2 + 4,
        base - 45,
        word("relation_meaning"),
        color=head_color(2),
        size=10.5,
    )
    for token, x in zip(KITTEN_TOKENS, positions, strict=True):
        strong = token in RELATION_COLORS or token == "it"
        label(
            axes,
            x,
            base,
            token,
            color=RELATION_COLORS.get(token, "ink"),
            bold=strong,
            size=11,
        )


def _word_positions() -> list[float]:
    """Return the middles of the sentence's words, set as running text over the canvas's width."""
    widths = [max(len(token) * 6.3, 5) for token in KITTEN_TOKENS]
    gap = (452 - sum(widths)) / (len(widths) - 1)
    edges = np.cumsum([0.0] + [width + gap for width in widths[:-1]])
    return [
        8 + float(edge) + width / 2 for edge, width in zip(edges, widths, strict=True)
    ]
