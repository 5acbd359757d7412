"""Pictures of chapter 1: the three relations, the compromise, the hull of the values, saturation."""

import math

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle

from ..palette import COLORS, head_color
from ..sentence import KITTEN_TOKENS, RELATIONS
from ..single_head import scaled_dot_product_attention
from ..style import STYLE_FILE
from ..words import word
from .canvas import arrow, canvas, label

RELATION_COLORS = {
    target: head_color(head) for head, target in enumerate(RELATIONS.values())
}
KEY_LENGTH = 3.0  # length of a key that a relation points to
QUERY_LENGTH = (
    2.4  # so that an aligned key scores 2.4 · 3 / √2 ≈ 5.1 and the small ones about 0
)


def plane_keys(angles: dict[str, float]) -> torch.Tensor:
    """Return a key in the plane, ``(13, 2)``, for each token of the sentence.

    Tokens in ``angles`` (in degrees) get a long key in that direction; all others lie near the middle.
    """
    keys = torch.zeros(len(KITTEN_TOKENS), 2, dtype=torch.float64)
    for position, token in enumerate(KITTEN_TOKENS):
        length = KEY_LENGTH if token in angles else 0.35
        angle = math.radians(angles.get(token, 47.0 * position))
        keys[position] = length * torch.tensor(
            [math.cos(angle), math.sin(angle)], dtype=torch.float64
        )
    return keys


def weights_of_it(query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Return the 13 weights that one query in the plane gives to the keys."""
    return scaled_dot_product_attention(query[None], keys, keys)[1][0]


UP = torch.tensor([0.0, QUERY_LENGTH], dtype=torch.float64)
APART = {"kitten": 90.0, "was": 210.0, "tired": 330.0}
TOGETHER = {"kitten": 90.0, "was": 90.0, "tired": 90.0}


def compromise() -> Figure:
    """One query and three relations: keys apart, keys together, and a head for each."""
    figure, axes = canvas(468, 516)
    together, apart = plane_keys(TOGETHER), plane_keys(APART)
    _row(
        axes,
        0,
        word("one_head_apart"),
        word("mixture_all"),
        apart,
        torch.zeros(2, dtype=torch.float64),
    )
    _row(axes, 140, word("one_head_together"), word("mixture_three"), together, UP)
    _title(axes, 280, word("three_heads"), word("mixture_separate"))
    for head, (relation, target) in enumerate(RELATIONS.items()):
        keys = plane_keys({target: 90.0})
        top = 302 + head * 50
        _plane(axes, 66, top + 24, 20, keys, UP, names=False)
        _bars(axes, top + 44, 38, weights_of_it(UP, keys))
        label(axes, BARS_LEFT + 5.5 * BAR_STEP, top + 22, word(f"relation_{relation}"), color=RELATION_COLORS[target],
              size=10.5)  # fmt: skip
    for position, token in enumerate(KITTEN_TOKENS):
        strong = token in RELATION_COLORS
        axes.text(
            BARS_LEFT + (position + 0.5) * BAR_STEP, 453, token, rotation=90, ha="center", va="top", fontsize=10.5,
            color=RELATION_COLORS.get(token, COLORS["ink"]), fontweight="bold" if strong else "normal",
        )  # fmt: skip
    return figure


BARS_LEFT, BAR_STEP = 144, 24.5


def _title(axes: Axes, top: float, left: str, right: str) -> None:
    label(axes, 4, top + 10, left, align="left", bold=True)
    label(axes, 464, top + 10, right, align="right", color="muted", size=10.5)


def _row(
    axes: Axes,
    top: float,
    left: str,
    right: str,
    keys: torch.Tensor,
    query: torch.Tensor,
) -> None:
    _title(axes, top, left, right)
    _plane(axes, 66, top + 78, 38, keys, query)
    _bars(axes, top + 122, 88, weights_of_it(query, keys))


def _bars(axes: Axes, base: float, height: float, weights: torch.Tensor) -> None:
    axes.plot(
        [BARS_LEFT, BARS_LEFT + 13 * BAR_STEP],
        [base, base],
        color=COLORS["line"],
        linewidth=1,
    )
    for position, (token, weight) in enumerate(
        zip(KITTEN_TOKENS, weights.tolist(), strict=True)
    ):
        left = BARS_LEFT + position * BAR_STEP + 4
        tall = weight * height
        color = RELATION_COLORS.get(token, COLORS["muted"])
        axes.add_patch(
            Rectangle(
                (left, base - tall),
                BAR_STEP - 8,
                tall,
                facecolor=color,
                edgecolor="none",
            )
        )
        if weight > 0.02 and token in RELATION_COLORS:
            label(
                axes,
                left + (BAR_STEP - 8) / 2,
                base - tall - 7,
                f"{weight:.2f}".lstrip("0"),
                size=9.5,
            )


def _plane(
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


def relations() -> Figure:
    """The running sentence and the three things that "it" must find in it."""
    figure, axes = canvas(468, 130)
    draw_relations(axes, base=88)
    return figure


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


def hull(values: torch.Tensor, outputs: torch.Tensor, tokens: list[str]) -> Figure:
    """Draw values as the corners of a triangle and the outputs as points inside it.

    Parameters
    ----------
    values, outputs : Tensor
        ``(3, 2)`` each.
    tokens : list of str
        The three tokens' names.
    """
    # Rounded, so that a last digit that differs between machines does not make another picture.
    values, outputs = (
        points.double().round(decimals=3) for points in (values, outputs)
    )
    with plt.style.context(STYLE_FILE):
        figure, axes = plt.subplots(figsize=(5.0, 3.6))
        axes.fill(
            *values.T.tolist(),
            facecolor=COLORS["panel"],
            edgecolor=COLORS["muted"],
            linewidth=1,
        )
        for points, marker, kind in ((values, "s", "value"), (outputs, "o", "output")):
            axes.plot([], [], marker, color=COLORS["muted"], label=word(kind))
            for index, token in enumerate(tokens):
                color = head_color(index)
                axes.plot(*points[index].tolist(), marker, color=color, markersize=9)
                axes.annotate(
                    token,
                    points[index].tolist(),
                    xytext=(9, 5),
                    textcoords="offset points",
                    color=color,
                )
        axes.legend(loc="upper right")
        low, high = values.min(dim=0).values.tolist(), values.max(dim=0).values.tolist()
        axes.set_xlim(low[0] - 0.4, high[0] + 1.2)
        axes.set_ylim(low[1] - 0.4, high[1] + 0.5)
        axes.set_aspect("equal")
    return figure


SATURATION_WIDTHS = (2, 4, 8, 16, 32, 64, 128, 256)
SATURATION_KEYS = 12


def saturation_weights(
    d_k: int, scaled: bool, queries: int = 1, seed: int = 0
) -> torch.Tensor:
    """Return the weights, ``(queries, 12)``, of random queries over 12 random keys of width ``d_k``.

    The numbers of all widths come from one draw, cut to width, so that turning ``d_k`` changes nothing else.
    """
    generator = torch.Generator().manual_seed(seed)
    widest = max(SATURATION_WIDTHS)
    query = torch.randn(queries, 1, widest, generator=generator, dtype=torch.float64)[
        ..., :d_k
    ]
    key = torch.randn(
        queries, SATURATION_KEYS, widest, generator=generator, dtype=torch.float64
    )[..., :d_k]
    scale = None if scaled else 1.0
    return scaled_dot_product_attention(query, key, key, scale=scale)[1][:, 0]


def relative_entropy(weights: torch.Tensor) -> torch.Tensor:
    """Return the entropy of each row of weights, divided by that of the uniform row: 1 = uniform, 0 = one key."""
    return torch.special.entr(weights).sum(dim=-1) / math.log(weights.shape[-1])


def saturation(d_k: int = 64, scaled: bool = False) -> Figure:
    """One query's weights at ``d_k`` (left), and the entropy of the weights against ``d_k`` (right).

    Parameters
    ----------
    d_k : int
        Width of the key, one of ``SATURATION_WIDTHS``.
    scaled : bool
        Whether the left panel divides the scores by the square root of ``d_k``.
    """
    with plt.style.context(STYLE_FILE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(6.8, 2.9))
        row = saturation_weights(d_k, scaled)[0]
        color = head_color(0) if scaled else COLORS["bad"]
        left.bar(range(SATURATION_KEYS), row.numpy().round(4), color=color, width=0.75)
        left.set_ylim(0, 1)
        left.set_xticks([])
        left.set_xlabel(word("keys_of"))
        left.set_ylabel(word("attention_weight"))
        left.set_title(f"$d_k$ = {d_k}, " + word("scaled" if scaled else "not_scaled"))
        for is_scaled, shade, marker in (
            (True, head_color(0), "o"),
            (False, COLORS["bad"], "s"),
        ):
            means = [
                relative_entropy(saturation_weights(width, is_scaled, queries=400))
                .mean()
                .item()
                for width in SATURATION_WIDTHS
            ]
            right.plot(
                SATURATION_WIDTHS, np.round(means, 3), color=shade, marker=marker
            )
            right.annotate(
                word("scaled" if is_scaled else "not_scaled"), (SATURATION_WIDTHS[3], means[3]), color=shade,
                xytext=(6, 8), textcoords="offset points",
            )  # fmt: skip
            if is_scaled == scaled:
                at = SATURATION_WIDTHS.index(d_k)
                right.plot(
                    [d_k], [round(means[at], 3)], marker="o", markersize=13, fillstyle="none",
                    color=COLORS["ink"], markeredgewidth=1.2,
                )  # fmt: skip
        right.set_xscale("log", base=2)
        right.set_xticks([2, 8, 32, 128], labels=["2", "8", "32", "128"])
        right.set_ylim(0, 1.05)
        right.set_xlabel(word("key_width_axis"))
        right.set_ylabel(word("entropy_axis"))
    return figure


PICTURES = (relations, compromise, saturation)
