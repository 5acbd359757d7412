"""Boxes, arrows and grids of numbers, in points from the top left, so that all diagrams are one family."""

from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from ..palette import COLORS
from ..plotting import STRONG, fill_cells
from ..style import STYLE_FILE

Point = tuple[float, float]
FILL_ALPHA = 0.16  # how strongly a coloured box is filled: its text stays readable on light and on dark paper


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure of ``width`` × ``height`` points and axes that cover it; y grows downwards."""
    with plt.style.context(STYLE_FILE):
        figure = plt.figure(figsize=(width / 72, height / 72), layout="none")
        axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_aspect("equal")
    axes.axis("off")
    # The saved picture is cut to what is drawn; this keeps the canvas's own size whatever stands on it.
    axes.add_patch(
        Rectangle(
            (0, 0),
            width,
            height,
            facecolor=COLORS["paper"],
            edgecolor="none",
            zorder=-10,
        )
    )
    return figure, axes


def label(
    axes: Axes, x: float, y: float, text: str, *, color: str = "ink", size: float = 11, align: str = "center",
    bold: bool = False, math: bool = True,
) -> None:  # fmt: skip
    """Write ``text`` with its middle at ``y``; ``color`` is a palette name or a hex colour."""
    # One line is set on its baseline, or words with and without tall letters would not stand level.
    level = "\n" not in text
    axes.text(
        x, y + 0.36 * size if level else y, text, color=COLORS.get(color, color), fontsize=size, ha=align,
        va="baseline" if level else "center",
        fontweight="bold" if bold else "normal", parse_math=math, linespacing=1.35,
    )  # fmt: skip


def box(
    axes: Axes, x: float, y: float, width: float, height: float, text: str = "", *, color: str = "ink",
    alpha: float = FILL_ALPHA, size: float = 12, radius: float = 4,
) -> None:  # fmt: skip
    """Draw a rounded box whose top left corner is ``(x, y)``, with ``text`` in its middle; it hides what is below."""
    ink = COLORS.get(color, color)
    style = f"round,pad=0,rounding_size={radius}"
    fills = (COLORS["paper"], 1.0, "none"), (ink, alpha, "none"), ("none", 1.0, ink)
    for facecolor, opacity, edgecolor in fills:
        axes.add_patch(
            FancyBboxPatch(
                (x, y), width, height, boxstyle=style, linewidth=1.1, facecolor=facecolor, alpha=opacity,
                edgecolor=edgecolor,
            )
        )  # fmt: skip
    if text:
        label(axes, x + width / 2, y + height / 2, text, size=size)


def arrow(
    axes: Axes, start: Point, end: Point, *, color: str = "muted", width: float = 1.3, head: float = 9,
    curve: float = 0.0,
) -> None:  # fmt: skip
    """Draw an arrow from ``start`` to ``end``; ``curve`` bends it (0.3 is a clear arc)."""
    axes.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=head, color=COLORS.get(color, color), linewidth=width,
            shrinkA=0, shrinkB=0, connectionstyle=f"arc3,rad={curve}",
        )
    )  # fmt: skip


def written(values: Sequence[Sequence[object]]) -> list[list[str]]:
    """Return a matrix's entries as text: all with the fewest digits, up to two, that its numbers need."""
    numbers = [entry for row in values for entry in row if not isinstance(entry, str)]
    digits = next(
        d
        for d in (0, 1, 2)
        if d == 2 or all(abs(round(n, d) - n) < 1e-6 for n in numbers)
    )
    return [
        [
            entry if isinstance(entry, str) else f"{entry:.{digits}f}".replace("-", "−")
            for entry in row
        ]
        for row in values
    ]


def cells(
    axes: Axes, x: float, y: float, values: Sequence[Sequence[object]] | np.ndarray, *, width: float = 30,
    height: float = 22, color: str | Callable[[int, int], str] = "ink", alpha: float | np.ndarray = FILL_ALPHA,
    size: float = 10.5, title: str = "", rows: Sequence[str] = (),
) -> tuple[float, float]:  # fmt: skip
    """Draw a matrix as a grid of cells from the top left ``(x, y)`` and return its width and height.

    Parameters
    ----------
    values
        Rows of numbers, or of strings.
    color
        A palette name, or a function of row and column that returns one.
    alpha
        How strongly cells are filled, one number or one a cell.
    title
        Written above the grid.
    rows
        Labels to the left of the rows.
    """
    count, across = len(values), len(values[0])
    texts = written(values)
    strength = np.broadcast_to(np.asarray(alpha, dtype=float), (count, across))
    names = np.array([[color(row, column) if callable(color) else color for column in range(across)]
                      for row in range(count)])  # fmt: skip
    inks = np.array(
        [[to_rgba(COLORS.get(name, name)) for name in row] for row in names]
    )
    inks[..., 3] = strength.round(3)
    fill_cells(axes, x, y, width, height, inks, linewidth=0.8)
    for row in range(count):
        for column in range(across):
            left, top = x + column * width, y + row * height
            label(axes, left + width / 2, top + height / 2, texts[row][column], size=size,
                  color="on_color" if strength[row, column] > STRONG else "ink")  # fmt: skip
    axes.add_patch(
        Rectangle(
            (x, y),
            across * width,
            count * height,
            facecolor="none",
            edgecolor=COLORS["muted"],
            linewidth=1,
        )
    )
    if title:
        label(axes, x, y - 9, title, align="left", size=10.5)
    for row, text in enumerate(rows):
        label(
            axes,
            x - 6,
            y + (row + 0.5) * height,
            text,
            align="right",
            size=10.5,
            math=False,
        )
    return across * width, count * height
