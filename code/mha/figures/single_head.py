"""Pictures of chapter 1: the three relations, the compromise, the hull of the values, saturation."""

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ..measures import APART, TOGETHER, UP, plane_keys, weights_of_it
from ..palette import COLORS
from ..sentence import KITTEN_TOKENS, RELATIONS
from ..style import STYLE_FILE
from ..words import word
from .canvas import canvas, label
from .kitten import RELATION_COLORS, draw_plane, draw_relations
from .saturation import saturation


def relations() -> Figure:
    """The running sentence and the three things that "it" must find in it."""
    figure, axes = canvas(468, 130)
    draw_relations(axes, base=88)
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
    draw_plane(axes, 66, top + 78, 38, keys, query)
    _bars(axes, top + 112, 44, weights_of_it(query, keys))


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


def compromise() -> Figure:
    """One query and three relations: keys apart, keys together, and a head for each."""
    figure, axes = canvas(468, 524)
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
        top = 302 + head * 54
        draw_plane(axes, 66, top + 27, 20, keys, UP, names=False)
        _bars(axes, top + 48, 44, weights_of_it(UP, keys))
        label(axes, BARS_LEFT + 5.5 * BAR_STEP, top + 28, word(f"relation_{relation}"), color=RELATION_COLORS[target],
              size=10.5)  # fmt: skip
    for position, token in enumerate(KITTEN_TOKENS):
        strong = token in RELATION_COLORS
        axes.text(
            BARS_LEFT + (position + 0.5) * BAR_STEP, 462, token, rotation=90, ha="center", va="top", fontsize=10.5,
            color=RELATION_COLORS.get(token, COLORS["ink"]), fontweight="bold" if strong else "normal",
        )  # fmt: skip
    return figure


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
    # Black and grey: the colours are the heads'.
    kinds = (
        (values, "s", "value", COLORS["muted"]),
        (outputs, "o", "output", COLORS["ink"]),
    )
    with plt.style.context(STYLE_FILE):
        figure, axes = plt.subplots(figsize=(5.0, 3.6))
        axes.fill(
            *values.T.tolist(), facecolor=COLORS["panel"], edgecolor=COLORS["line"]
        )
        for points, marker, kind, color in kinds:
            axes.plot(
                *points.T.tolist(), marker, color=color, markersize=9, label=word(kind)
            )
            for token, point in zip(tokens, points.tolist(), strict=True):
                axes.annotate(
                    token, point, xytext=(9, 5), textcoords="offset points", color=color
                )
        axes.legend(loc="upper right")
        low, high = values.amin(dim=0).tolist(), values.amax(dim=0).tolist()
        axes.set(xlim=(low[0] - 0.4, high[0] + 1.2), ylim=(low[1] - 0.4, high[1] + 0.5))
        axes.set(xlabel=word("animal"), ylabel=word("place"), aspect="equal")
    return figure


PICTURES = (relations, compromise, saturation)
