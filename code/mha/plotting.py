"""Pictures of attention weights, for the book and for any model's weights."""

import unicodedata
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap, to_rgba
from matplotlib.figure import Figure
from torch import Tensor

from .fonts import fonts_with
from .palette import COLORS, head_color
from .style import STYLE_FILE
from .words import word

MAX_COLUMNS = 4  # panels side by side
MAX_CELLS = 4096  # above that a panel is one embedded image instead of one shape a cell
MAX_NUMBERS = 36  # up to so many cells a panel, each shows its weight
CELL_INCHES = 0.36
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
        ``(query, key)``, ``(heads, query, key)`` or ``(1, heads, query, key)``.
    query_tokens : sequence of str, optional
        Labels of the rows, drawn literally. Default: positions.
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
    ValueError
        If the weights have another number of axes, a batch of more than one, or nothing to draw, if labels
        and weights differ in length, or if a head does not exist.
    """
    panels = _as_panels(weights)
    num_heads, query_len, key_len = panels.shape
    if key_tokens is None and query_len == key_len:
        key_tokens = query_tokens
    rows = _labels("query_tokens", query_tokens, query_len)
    columns = _labels("key_tokens", key_tokens, key_len)
    chosen = list(range(num_heads)) if heads is None else list(heads)
    for head in chosen:
        if not 0 <= head < num_heads:
            raise ValueError(
                f"heads: expected numbers from 0 to {num_heads - 1}, got {head}"
            )
    if not chosen:
        raise ValueError("heads: expected at least one head to draw, got none")

    with plt.style.context(STYLE_FILE):
        figure, grid = _panel_grid(len(chosen), query_len, key_len, rows, columns)
        for axes, head in zip(grid, chosen, strict=True):
            draw_weights(axes, panels[head], rows, columns)
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
) -> None:
    """Draw one matrix of weights, ``(query, key)``, into ``axes``, with a label at every row and column.

    ``color`` is a name of the palette. With ``numbers``, small matrices show each weight in its cell.
    The colour's opacity is the weight, so that 0 is bare paper on a light and on a dark page alike.
    """
    query_len, key_len = weights.shape
    colors = np.tile(np.array(to_rgba(COLORS[color])), (query_len, key_len, 1))
    shown = np.clip(np.nan_to_num(weights), 0.0, 1.0)
    colors[..., 3] = np.round(shown, 3)
    colors[~np.isfinite(weights)] = to_rgba(COLORS["bad"])
    if weights.size > MAX_CELLS:
        axes.imshow(colors, aspect="auto", interpolation="nearest")
    else:
        edges = np.arange(key_len + 1) - 0.5, np.arange(query_len + 1) - 0.5
        axes.pcolormesh(*edges, colors, edgecolors=COLORS["line"], linewidth=0.4)
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


def _as_panels(weights: Tensor | np.ndarray) -> np.ndarray:
    """Return the weights as float64 ``(heads, query, key)``."""
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
    if 0 in array.shape:
        raise ValueError(
            f"weights: expected at least one head, query and key, got shape {array.shape}"
        )
    return array[None] if array.ndim == 2 else array


def _labels(name: str, tokens: Sequence[str] | None, length: int) -> list[str]:
    if tokens is None:
        return [str(position) for position in range(length)]
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
    """Return a figure with ``count`` panels whose cells are squares of equal size, as far as that is sensible."""
    per_row = min(MAX_COLUMNS, count)
    if key_len * CELL_INCHES * per_row > 9:
        # Long sentences: fewer panels side by side, not smaller letters.
        per_row = min(per_row, 2 if key_len * CELL_INCHES <= 5 else 1)
    lines = -(-count // per_row)
    # Letters are about 0.1 inch wide; panels need room for their labels.
    left = 0.25 + 0.1 * max(map(len, rows))
    below = 0.3 + 0.1 * max(map(len, columns))
    cell = max(CELL_INCHES, 0.9 / max(key_len, 1)) if key_len <= 40 else 7.0 / key_len
    # Rows as high as columns are wide, but a matrix of very unequal sides can still be seen.
    height = min(
        max(query_len * cell, min(query_len * CELL_INCHES, 1.0)), 40 * CELL_INCHES
    )
    scale_width = 0.4 if query_len * key_len <= MAX_NUMBERS else 1.2
    size = (
        per_row * (key_len * cell + left) + scale_width,
        lines * (height + below + 0.35),
    )
    figure, grid = plt.subplots(lines, per_row, squeeze=False, figsize=size)
    panels = list(grid.flat)
    for empty in panels[count:]:
        empty.set_visible(False)
    return figure, panels[:count]


def _label_axis(axis: Axis, labels: Sequence[str], rotation: int = 0) -> None:
    """Put ``labels`` on an axis's ticks as they are: no mathematics, no breaks, fonts that have the letters."""
    shown = ["".join(map(_visible, label)) for label in labels]
    step = max(1, len(shown) // 40)  # more than about 40 would run into each other
    axis.set_ticks(
        range(0, len(shown), step),
        labels=shown[::step],
        rotation=rotation,
        parse_math=False,
    )
    families = [*plt.rcParams["font.family"], *fonts_with(frozenset("".join(shown)))]
    for text in axis.get_ticklabels():
        text.set_fontfamily(families)


def _visible(character: str) -> str:
    """Return a character that has no shape, such as a line break, as its escape sequence."""
    undrawable = unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
    return character.encode("unicode_escape").decode() if undrawable else character
