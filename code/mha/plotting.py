"""Pictures of attention weights, for the book and for any model's weights."""

import itertools
import math
import unicodedata
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from torch import Tensor

from .checks import check_at_least
from .fonts import fonts_with
from .palette import COLORS, head_color
from .style import STYLE_FILE
from .words import word

MAX_CELLS = 4096  # with more in all panels, each is an embedded image instead of one shape a cell
MAX_NUMBERS = 36  # up to so many cells a panel, each shows its weight
MAX_LETTERS = 40  # a longer label is cut
ROUNDING = 1e-4  # so far outside 0 and 1 a weight may lie
CELL_INCHES = 0.36
PAGE_INCHES = (8.0, 14.0)  # cells shrink until the panels fit
STRONG = 0.72  # above that opacity a number in the colour of the paper has the greater contrast
SCALE = ListedColormap(
    [to_rgba(COLORS["blue"], alpha=(step + 0.5) / 20) for step in range(20)]
)


def plot_attention(
    weights: Tensor | np.ndarray,
    query_tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    *,
    heads: Sequence[int] | None = None,
) -> Figure:
    """Draw attention weights, one panel a head: queries are rows, keys are columns, one colour scale from 0 to 1.

    Parameters
    ----------
    weights : Tensor or array
        ``(query, key)``, ``(heads, query, key)`` or ``(1, heads, query, key)``. What is not finite is drawn in the
        colour of mistakes.
    query_tokens : sequence of str, optional
        Labels of the rows, drawn literally (cut after 40 letters). Default: positions.
    key_tokens : sequence of str, optional
        Labels of the columns. Default: ``query_tokens`` where there are as many keys as queries, else positions.
    heads : sequence of int, optional
        Which heads to draw, in this order. Default: all. Panels keep the heads' own numbers.

    Returns
    -------
    matplotlib.figure.Figure
        Open in pyplot: end the cell with ``plt.show()``.

    Raises
    ------
    TypeError
        If weights are complex, labels or ``heads`` are not a sequence, or a head is not an int.
    ValueError
        If the weights are not within 0 and 1, have another number of axes, a batch of more than one, or nothing
        to draw, if labels and weights differ in length, or if a head does not exist.
    """
    panels = _as_panels(weights)
    num_heads, query_len, key_len = panels.shape
    if key_tokens is None and query_len == key_len:
        key_tokens = query_tokens
    rows = _labels("query_tokens", query_tokens, query_len)
    columns = _labels("key_tokens", key_tokens, key_len)
    if heads is not None and not isinstance(heads, Sequence | range):
        raise TypeError(
            f"heads: expected a sequence of int, such as [0, 2], got {heads!r}"
        )
    chosen = list(range(num_heads)) if heads is None else list(heads)
    for head in chosen:
        check_at_least("heads", head, 0)
        if head >= num_heads:
            raise ValueError(
                f"heads: expected numbers from 0 to {num_heads - 1}, got {head}"
            )
    if not chosen:
        raise ValueError("heads: expected at least one head to draw, got none")

    with plt.style.context(STYLE_FILE):
        figure, grid = _panel_grid(len(chosen), query_len, key_len, rows, columns)
        many = len(chosen) * query_len * key_len > MAX_CELLS
        for axes, head in zip(grid, chosen, strict=True):
            draw_weights(axes, panels[head], rows, columns, as_image=many)
            if np.ndim(weights) > 2:
                axes.set_title(
                    word("head", number=head), color=head_color(head), fontweight="bold"
                )
        grid[0].set_ylabel(word("query"))
        grid[0].set_xlabel(word("key"))
        if query_len * key_len > MAX_NUMBERS:
            # The cells show no numbers, so a scale does, in few steps that are drawn as shapes.
            steps = BoundaryNorm(np.linspace(0, 1, SCALE.N + 1), SCALE.N)
            bar = figure.colorbar(
                ScalarMappable(steps, SCALE),
                ax=grid,
                shrink=0.6,
                ticks=[0, 0.5, 1],
                aspect=25,
            )
            bar.set_label(word("attention_weight"))
            bar.outline.set_edgecolor(COLORS["line"])
    return figure


def draw_weights(
    axes: Axes,
    weights: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    color: str = "blue",
    numbers: bool = True,
    as_image: bool = False,
) -> None:
    """Draw one matrix of weights, ``(query, key)``, into ``axes``, with a label at every row and column.

    ``color`` is a name of the palette. With ``numbers``, small matrices show each weight in its cell;
    ``as_image`` draws one picture instead of one shape a cell.
    The colour's opacity is the weight, so that 0 is bare paper on a light and on a dark page alike.
    """
    query_len, key_len = weights.shape
    colors = np.tile(np.array(to_rgba(COLORS[color])), (query_len, key_len, 1))
    shown = np.clip(np.nan_to_num(weights), 0.0, 1.0)
    colors[..., 3] = np.round(shown, 3)
    colors[~np.isfinite(weights)] = to_rgba(COLORS["bad"])
    if as_image:
        axes.imshow(colors, aspect="auto", interpolation="nearest")
    else:
        fill_cells(axes, -0.5, -0.5, 1.0, 1.0, colors, linewidth=0.4)
    axes.set_xlim(-0.5, key_len - 0.5)
    axes.set_ylim(query_len - 0.5, -0.5)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    upright = max(map(len, columns)) > 2
    _label_axis(axes.xaxis, columns, rotation=90 if upright else 0)
    _label_axis(axes.yaxis, rows)
    if numbers and weights.size <= MAX_NUMBERS:
        for (row, column), weight in np.ndenumerate(weights):
            strong = weight > STRONG or not np.isfinite(weight)
            text = f"{weight:.2f}".lstrip("0") if 0 < weight < 1 else f"{weight:g}"
            color = COLORS["on_color" if strong else "ink"]
            axes.text(
                column, row, text, ha="center", va="center", color=color, fontsize=9
            )


def fill_cells(
    axes: Axes, left: float, top: float, width: float, height: float, colors: np.ndarray, *, linewidth: float
) -> None:  # fmt: skip
    """Draw a grid of coloured cells; ``colors`` is ``(rows, columns, 4)``, RGBA.

    All cells of one colour are one shape and all lines another, so that a page of heat maps stays small.
    """
    rows, columns = colors.shape[:2]
    shapes: dict[tuple[float, ...], list[Path]] = {}
    for row, line in enumerate(colors.tolist()):
        cells = itertools.groupby(
            range(columns), key=lambda c, line=line: tuple(line[c])
        )
        for color, run in cells:
            places = list(run)
            x, y = left + places[0] * width, top + row * height
            across = len(places) * width
            corners = [
                (x, y),
                (x + across, y),
                (x + across, y + height),
                (x, y + height),
                (x, y),
            ]
            shapes.setdefault(color, []).append(Path(corners, closed=True))
    for color, paths in shapes.items():
        if color[3] > 0:
            shape = Path.make_compound_path(*paths)
            axes.add_patch(PathPatch(shape, facecolor=color, edgecolor="none"))
    right, bottom = left + columns * width, top + rows * height
    lines = [[(left, y), (right, y)] for y in top + height * np.arange(rows + 1)]
    lines += [[(x, top), (x, bottom)] for x in left + width * np.arange(columns + 1)]
    grid = Path.make_compound_path(*map(Path, lines))
    axes.add_patch(
        PathPatch(grid, fill=False, edgecolor=COLORS["line"], linewidth=linewidth)
    )


def _as_panels(weights: Tensor | np.ndarray) -> np.ndarray:
    """Return the weights as float64 ``(heads, query, key)``."""
    is_tensor = isinstance(weights, Tensor)
    if weights.is_complex() if is_tensor else np.iscomplexobj(weights):
        raise TypeError("weights: expected real numbers, got complex ones")
    array = (
        weights.detach().double().cpu().numpy()
        if isinstance(weights, Tensor)
        else np.asarray(weights, dtype=float)
    )
    if array.ndim == 4:
        if array.shape[0] != 1:
            raise ValueError(
                f"weights: expected one sentence, got a batch of {array.shape[0]} (shape {array.shape}); "
                "choose one, such as weights[0]"
            )
        array = array[0]
    if array.ndim not in (2, 3):
        raise ValueError(
            f"weights: expected shape (query, key) or (heads, query, key), got {array.shape}"
        )
    finite = array[np.isfinite(array)]
    if finite.min(initial=0.0) < -ROUNDING or finite.max(initial=0.0) > 1 + ROUNDING:
        raise ValueError(
            "weights: expected numbers from 0 to 1 (scores have to go through a softmax first, and "
            f"dropout must be off), got {finite.min():.6g} to {finite.max():.6g}"
        )
    if 0 in array.shape:
        raise ValueError(
            f"weights: expected at least one head, query and key, got shape {array.shape}"
        )
    return array[None] if array.ndim == 2 else array


def _labels(name: str, tokens: Sequence[str] | None, length: int) -> list[str]:
    if tokens is None:
        return [str(position) for position in range(length)]
    if not isinstance(tokens, Sequence | np.ndarray):
        raise TypeError(
            f"{name}: expected a sequence of str, got {type(tokens).__name__}"
        )
    if len(tokens) != length:
        raise ValueError(
            f"{name}: expected {length} labels, one a position, got {len(tokens)}"
        )
    return [str(token) for token in tokens]


def _panel_grid(
    count: int,
    query_len: int,
    key_len: int,
    rows: Sequence[str],
    columns: Sequence[str],
) -> tuple[Figure, list[Axes]]:
    """Return a figure with ``count`` panels; cells are squares, as large as a page allows."""
    # Letters are about 0.1 inch wide; panels need room for their labels.
    left = 0.25 + 0.1 * min(max(map(len, rows)), MAX_LETTERS)
    below = 0.65 + 0.1 * min(max(map(len, columns)), MAX_LETTERS)

    def cell_inches(per_row: int) -> float:
        wide = (PAGE_INCHES[0] / per_row - left) / key_len
        high = (PAGE_INCHES[1] / -(-count // per_row) - below) / query_len
        return min(max(CELL_INCHES, 0.9 / key_len), max(wide, 0.01), max(high, 0.01))

    # As many side by side as lets the cells be largest; where that does not decide, more.
    most = min(count, 4 if count <= 16 else 8)
    per_row = max(range(1, most + 1), key=lambda n: (round(cell_inches(n), 3), n))
    cell, lines = cell_inches(per_row), -(-count // per_row)
    # Rows as high as columns are wide, but a matrix of very unequal sides can still be seen.
    width, height = max(key_len * cell, 0.5), max(query_len * cell, 0.5)
    scale_width = 0.4 if query_len * key_len <= MAX_NUMBERS else 1.2
    size = per_row * (width + left) + scale_width, lines * (height + below)
    figure, grid = plt.subplots(lines, per_row, squeeze=False, figsize=size)
    panels = list(grid.flat)
    for empty in panels[count:]:
        empty.set_visible(False)
    return figure, panels[:count]


def _label_axis(axis: Axis, labels: Sequence[str], rotation: int = 0) -> None:
    """Put ``labels`` on an axis's ticks as they are: no mathematics, no breaks, fonts that have the letters."""
    box = axis.axes.get_position()
    inches = axis.figure.get_size_inches()
    length = box.width * inches[0] if axis.axis_name == "x" else box.height * inches[1]
    shown = [_shortened("".join(map(_visible, label))) for label in labels]
    # Where cells are narrower than labels, only some labels are written.
    upright = rotation or axis.axis_name == "y"
    needed = 0.15 if upright else 0.1 * max(map(len, shown)) + 0.08
    step = max(1, math.ceil(needed * len(shown) / length - 0.2))
    axis.set_ticks(
        range(0, len(shown), step),
        labels=shown[::step],
        rotation=rotation,
        parse_math=False,
    )
    families = [*plt.rcParams["font.family"], *fonts_with(frozenset("".join(shown)))]
    for text in axis.get_ticklabels():
        text.set_fontfamily(families)


def _shortened(label: str) -> str:
    return label if len(label) <= MAX_LETTERS else label[: MAX_LETTERS - 1] + "…"


def _visible(character: str) -> str:
    """Return a character that has no shape, such as a line break, as its escape sequence."""
    undrawable = unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
    return character.encode("unicode_escape").decode() if undrawable else character
