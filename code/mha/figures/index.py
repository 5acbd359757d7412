"""The picture of the whole, on the landing page."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ..measures import UP, plane_keys, weights_of_it
from ..palette import COLORS, head_color
from ..sentence import KITTEN_TOKENS, RELATIONS
from ..words import word
from .canvas import arrow, box, canvas, cells, label
from .kitten import draw_relations

ROWS_LEFT, ROWS_TOP, ROW_STEP, CELL = 88, 206, 30, 20.5


def overview() -> Figure:
    """A sentence, three heads that look at it, their outputs side by side, mixed into one vector."""
    figure, axes = canvas(468, 362)
    draw_relations(axes, base=82)
    for position, token in enumerate(KITTEN_TOKENS):
        axes.text(ROWS_LEFT + (position + 0.5) * CELL, ROWS_TOP - 8, token, rotation=90, ha="center", va="bottom",
                  fontsize=9.5, color=COLORS["muted"])  # fmt: skip
    for head, (relation, target) in enumerate(RELATIONS.items()):
        top, color = ROWS_TOP + head * ROW_STEP, head_color(head)
        weights = weights_of_it(UP, plane_keys({target: 90.0}))
        label(
            axes,
            ROWS_LEFT - 8,
            top + 10,
            word(f"relation_{relation}"),
            color=color,
            align="right",
            size=10.5,
        )
        for position, weight in enumerate(weights.tolist()):
            place = {
                "xy": (ROWS_LEFT + position * CELL, top),
                "width": CELL,
                "height": 20,
            }
            axes.add_patch(
                Rectangle(
                    **place, facecolor=color, alpha=round(weight, 3), edgecolor="none"
                )
            )
            axes.add_patch(
                Rectangle(
                    **place, facecolor="none", edgecolor=COLORS["line"], linewidth=0.8
                )
            )
        arrow(axes, (ROWS_LEFT + 13 * CELL + 6, top + 10), (398, top + 10), color=color)
        _strip(axes, 402, top, [head] * 3)
    # The middle of the last line: concatenated, mixed, output.
    line = ROWS_TOP + 3 * ROW_STEP + 38
    arrow(axes, (421, line - 46), (421, line - 12))
    label(
        axes,
        412,
        line - 28,
        word("concatenate"),
        size=10.5,
        align="right",
        color="muted",
    )
    _strip(axes, 316, line - 10, [0, 0, 0, 1, 1, 1, 2, 2, 2])
    arrow(axes, (311, line), (292, line))
    box(axes, 246, line - 15, 42, 30, "$W^O$")
    arrow(axes, (241, line), (220, line))
    _strip(axes, ROWS_LEFT, line - 10, [None] * 9)
    label(axes, ROWS_LEFT - 8, line, word("output"), align="right", size=10.5)
    return figure


def _strip(axes: Axes, x: float, y: float, heads: list[int | None]) -> None:
    """Draw a vector as a row of empty cells, each in the colour of the head it comes from."""
    colors = ["ink" if head is None else head_color(head) for head in heads]
    width = 58 / 3 if len(heads) == 3 else 14
    cells(
        axes,
        x,
        y,
        [[""] * len(heads)],
        width=width,
        height=20,
        color=lambda _, column: colors[column],
        alpha=0.3,
    )


PICTURES = (overview,)
