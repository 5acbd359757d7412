"""Pictures of chapter 4: the module line by line, cross-attention, pre- and post-norm, gradient norms."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from torch import Tensor

from ..multi_head import MultiHeadAttention
from ..palette import COLORS, head_color
from ..style import STYLE_FILE
from ..words import word
from .canvas import FILL_ALPHA, Point, arrow, box, canvas, cells, label

# Of the picture of the lines of code: where the code, the grids' middle and the shapes stand.
CODE_LEFT, GRID_MIDDLE, SHAPE_LEFT = 4, 294, 372
CELL_WIDTH, CELL_HEIGHT, GRID_GAP = 13, 11, 12
ROW_STEP = 68
SEED = 3

# Of the picture of cross-attention: a token's side, the middle of keys and values, the top of the weights.
TOKEN, LINE, TOP = 20, 66, 112


def line_by_line() -> Figure:
    """The lines of the module's forward pass, and the tensor that each of them makes."""
    figure, axes = canvas(468, 474)
    lines = (
        ("x", "token_by_width"),
        ("q = split_heads(W_q(x), 2)", "token_by_d_k"),
        ("scores = q @ k.mT / 4**0.5", "query_by_key"),
        ("weights = scores.softmax(-1)", "query_by_key"),
        ("heads = weights @ v", "token_by_d_k"),
        ("combine_heads(heads)", "concatenated"),  # a part of the next line, in grey
        ("output = W_o(combine_heads(heads))", "token_by_width"),
    )
    for row, (code, meaning) in enumerate(lines):
        top = 12 + row * ROW_STEP
        middle = top + 2 * CELL_HEIGHT
        split, part = row in (1, 2, 3, 4), row == 5
        _code(axes, middle - 8 if row == 1 else middle, code, "muted" if part else "ink")  # fmt: skip
        shape = "(1, 2, 4, 4)" if split else "(1, 4, 8)"
        label(axes, SHAPE_LEFT, middle - 8, shape, size=10.5, align="left")
        _note(axes, SHAPE_LEFT, middle + 8, word(meaning))
        if split:
            _pair(axes, top, _weights(4, heads=2) if row == 3 else None)
        else:
            _grid(axes, top, by_head=part)
        if row == 1:
            _note(axes, CODE_LEFT, middle + 8, word("same_for_k_and_v"))
            for head in range(2):
                center = GRID_MIDDLE + (2 * head - 1) * (2 * CELL_WIDTH + GRID_GAP / 2)
                label(axes, center, top - 9, word("head", number=head), size=10, color=head_color(head),
                      bold=True)  # fmt: skip
        if part:
            below = top + 4 * CELL_HEIGHT
            arrow(axes, (GRID_MIDDLE, below + 3), (GRID_MIDDLE, below + 21))
    return figure


def _note(axes: Axes, x: float, y: float, text: str) -> None:
    label(axes, x, y, text, size=10, color="muted", align="left")


def _code(axes: Axes, y: float, text: str, color: str) -> None:
    axes.text(
        CODE_LEFT, y + 3.6, text, color=COLORS[color], fontsize=10, family="DejaVu Sans Mono", va="baseline",
        parse_math=False,
    )  # fmt: skip


def _pair(axes: Axes, top: float, strength: Tensor | None = None) -> None:
    """Draw two heads' 4 × 4 matrices side by side, filled by ``strength`` where it is given."""
    for head in range(2):
        left = GRID_MIDDLE - GRID_GAP / 2 - 4 * CELL_WIDTH
        cells(
            axes, left + head * (4 * CELL_WIDTH + GRID_GAP), top, [[""] * 4] * 4, width=CELL_WIDTH,
            height=CELL_HEIGHT, color=head_color(head), alpha=0.3 if strength is None else strength[head].numpy(),
        )  # fmt: skip


def _grid(axes: Axes, top: float, by_head: bool = False) -> None:
    """Draw a 4 × 8 matrix, its halves in the heads' colours or all in grey."""
    cells(
        axes, GRID_MIDDLE - 4 * CELL_WIDTH, top, [[""] * 8] * 4, width=CELL_WIDTH, height=CELL_HEIGHT,
        color=(lambda _, column: head_color(column // 4)) if by_head else "ink", alpha=0.3 if by_head else FILL_ALPHA,
    )  # fmt: skip


def _weights(query_len: int, key_len: int | None = None, *, heads: int) -> Tensor:
    """Return a new module's weights, ``(heads, query, key)``: of self-attention, or of two sequences of these lengths.

    The queries are long, so that each prefers some keys.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)
        module = MultiHeadAttention(8, heads)
        x = torch.randn(1, query_len, 8)
        keys = x if key_len is None else torch.randn(1, key_len, 8)
        weights = module(4 * x, keys)[1][0]
    # Rounded, so that a last digit that differs between machines does not make another picture.
    return weights.double().round(decimals=2)


def cross() -> Figure:
    """Self-attention, where one sequence gives queries, keys and values, beside cross-attention."""
    figure, axes = canvas(468, 234)
    name = word("tokens", number=4)
    _panel(axes, 4, 40, word("self_attention"), name, 4, 4)
    _elbow(axes, [(37, LINE), (12, LINE), (12, TOP + 40), (37, TOP + 40)])
    label(axes, 22, TOP + 29, "Q")
    left = 236
    name = word("keys_and_values", number=5)
    _panel(axes, left, 284, word("cross_attention"), name, 3, 5)
    _tokens(axes, left, TOP, 3, upright=True)
    arrow(axes, (left + TOKEN + 3, TOP + 30), (281, TOP + 30))
    label(axes, 267, TOP + 19, "Q")
    name = word("queries", number=3)
    label(axes, left, TOP - 11, name, size=10.5, color="muted", align="left")
    return figure


def _panel(
    axes: Axes, left: float, grid: float, title: str, name: str, query_len: int, key_len: int,
) -> None:  # fmt: skip
    """Draw keys and values above, the weights under them from ``grid`` on, and the output at their right."""
    label(axes, left, 14, title, bold=True, align="left")
    label(axes, grid, LINE - 21, name, size=10.5, color="muted", align="left")
    own = query_len == key_len
    _tokens(axes, grid, LINE - TOKEN / 2, key_len, alpha=0.3 if own else 0.06)
    middle, right = grid + key_len * TOKEN / 2, grid + key_len * TOKEN
    arrow(axes, (middle, LINE + TOKEN / 2 + 3), (middle, TOP - 3))
    label(axes, middle + 10, (LINE + TOP) / 2 + 4, "K")
    weights = _weights(query_len, None if own else key_len, heads=1)[0].numpy()
    cells(axes, grid, TOP, [[""] * key_len] * query_len, width=TOKEN, height=TOKEN, alpha=weights)  # fmt: skip
    level, node = TOP + query_len * TOKEN / 2, right + 27
    _elbow(axes, [(right + 3, LINE), (node, LINE), (node, level - 10)])
    label(axes, node + 10, (LINE + TOP) / 2 + 4, "V")
    arrow(axes, (right + 3, level), (node - 10, level))
    _node(axes, node, level, "×")
    arrow(axes, (node + 10, level), (node + 25, level))
    _tokens(axes, node + 28, TOP, query_len, upright=True)
    below = TOP + query_len * TOKEN + 18
    shape = word("queries_by_keys", queries=query_len, keys=key_len)
    for x, text, detail in (
        (middle, word("weights"), shape),
        (node + 38, word("output"), word("rows", number=query_len)),
    ):
        label(axes, x, below, text, size=10.5)
        label(axes, x, below + 16, detail, size=10.5, color="muted")


def _tokens(
    axes: Axes, x: float, y: float, count: int, *, upright: bool = False, alpha: float = 0.3,
) -> None:  # fmt: skip
    """Draw a sequence of tokens, each with its number."""
    numbers = [str(number) for number in range(count)]
    values = [[number] for number in numbers] if upright else [numbers]
    cells(axes, x, y, values, width=TOKEN, height=TOKEN, alpha=alpha, size=10)


def _elbow(axes: Axes, points: Sequence[Point]) -> None:
    """Draw an arrow along ``points``."""
    axes.plot(
        *zip(*points[:-1], strict=True),
        color=COLORS["muted"],
        linewidth=1.3,
        solid_joinstyle="miter",
    )
    arrow(axes, points[-2], points[-1])


def _node(axes: Axes, x: float, y: float, sign: str) -> None:
    """Draw a small circle around ``sign``, "+" or "×"."""
    place = {"xy": (x, y), "radius": 8, "zorder": 2.5}
    colors = {"facecolor": COLORS["paper"], "edgecolor": COLORS["ink"]}
    axes.add_patch(Circle(**place, **colors, linewidth=1.1))
    strokes = {"+": ((4.5, 0), (0, 4.5)), "×": ((3.2, 3.2), (3.2, -3.2))}
    for across, down in strokes[sign]:
        axes.plot([x - across, x + across], [y - down, y + down], color=COLORS["ink"],
                  linewidth=1.3, zorder=2.6)  # fmt: skip


STREAM = 50  # from a block's left edge to its residual stream
BRANCH = 168  # and to the boxes at its side
PART = 138  # height of one part: a branch and what stands on the stream after it


def blocks() -> Figure:
    """A block with post-norm beside one with pre-norm: where LayerNorm stands."""
    figure, axes = canvas(468, 404)
    for left, pre in ((4, False), (246, True)):
        name = "pre_norm" if pre else "post_norm"
        label(axes, left, 14, word(name), bold=True, align="left")
        note = word("norm_in_branch" if pre else "norm_on_stream")
        label(axes, left, 32, note, size=10.5, color="muted", align="left")
        stream = left + STREAM
        label(axes, stream, 62, "$x$", size=13)
        arrow(axes, (stream, 74), (stream, 376), color="ink", width=3.5, head=16)
        label(axes, stream, 391, word("output"), size=12)
        for part, name in enumerate((word("attention"), word("feed_forward"))):
            _part(axes, stream, left + BRANCH, 86 + part * PART, name, pre)
    return figure


def _part(
    axes: Axes, stream: float, branch: float, top: float, name: str, pre: bool
) -> None:
    """Draw what leaves the stream, goes through a box (before it, a norm) and is added to the stream."""
    width, high, low = 100, 32, 26
    first = top + 18
    if pre:
        box(axes, branch - width / 2, first, width, low, word("layer_norm"), alpha=0.04)
        arrow(axes, (branch, first + low), (branch, first + low + 16))
        start = first + low + 16
    else:
        start = first
    box(axes, branch - width / 2, start, width, high, name)
    end = start + high + 16
    _elbow(axes, [(stream + 2, top), (branch, top), (branch, first)])
    _elbow(axes, [(branch, start + high), (branch, end), (stream + 9, end)])
    _node(axes, stream, end, "+")
    if not pre:
        box(axes, stream - width / 2, end + 18, width, low, word("layer_norm"), alpha=0.04)  # fmt: skip


def gradient_norms(depths: Sequence[int], norms: dict[str, Sequence[float]]) -> Figure:
    """Draw the gradient norm of the last block against the number of blocks, one line a kind of block.

    Parameters
    ----------
    depths : sequence of int
        Numbers of blocks.
    norms : dict of str to sequence of float
        For ``"pre"`` and ``"post"``, a norm at each depth.
    """
    kinds = (
        ("post", "ink", "o", "-", word("post_norm")),
        ("pre", "muted", "s", "--", word("pre_norm")),
    )
    # Three digits, so that a last one that differs between machines does not make another picture.
    rounded = {
        kind: [float(f"{norm:.3g}") for norm in values]
        for kind, values in norms.items()
    }
    largest = max(map(max, rounded.values()))
    ends = {kind: values[-1] for kind, values in rounded.items()}
    close = abs(ends["pre"] - ends["post"]) < 0.08 * largest
    with plt.style.context(STYLE_FILE):
        figure, axes = plt.subplots(figsize=(5.6, 3.0))
        for kind, color, marker, line, name in kinds:
            values = rounded[kind]
            axes.plot(
                depths, values, marker=marker, linestyle=line, color=COLORS[color]
            )
            higher = kind == max(ends, key=ends.get)
            # Names of lines that end at nearly the same height are moved apart.
            shift = (7 if higher else -7) if close else 0
            axes.annotate(
                name, (depths[-1], values[-1]), color=COLORS[color], xytext=(9, shift),
                textcoords="offset points", va="center",
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xticks(depths, labels=[str(depth) for depth in depths])
        axes.minorticks_off()
        axes.set_ylim(0, 1.1 * largest)
        axes.set(xlabel=word("number_of_blocks"), ylabel=word("gradient_norm_axis"))
    return figure


PICTURES = (line_by_line, cross, blocks)
