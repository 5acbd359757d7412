"""The small drawing of the notation page: which axis is which, and what a mask says."""

from matplotlib.figure import Figure

from ..single_head import causal_mask
from ..words import word
from .canvas import arrow, canvas, cells, label


def axes() -> Figure:
    """A causal mask of three queries and five keys: queries down, keys across, True where a query may look."""
    figure, drawing = canvas(330, 184)
    mask = causal_mask(3, 5)
    left, top, size = 96, 62, 38
    cells(
        drawing, left, top, [["True" if keep else "" for keep in row] for row in mask.tolist()], width=size, height=30,
        color="blue", alpha=mask.float().numpy() * 0.28, size=9.5,
    )  # fmt: skip
    for column in range(5):
        label(
            drawing,
            left + (column + 0.5) * size,
            top - 12,
            str(column),
            size=10,
            color="muted",
        )
    for row in range(3):
        label(
            drawing, left - 12, top + (row + 0.5) * 30, str(row), size=10, color="muted"
        )
    arrow(drawing, (left, top - 26), (left + 5 * size, top - 26))
    label(drawing, left + 2.5 * size, top - 40, word("key"), bold=True)
    arrow(drawing, (left - 26, top), (left - 26, top + 90))
    label(drawing, left - 34, top + 45, word("query"), bold=True, align="right")
    label(
        drawing,
        left + 2.5 * size,
        top + 108,
        "(query, key) = (3, 5)",
        size=10.5,
        color="muted",
    )
    return figure


PICTURES = (axes,)
