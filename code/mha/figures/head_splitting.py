"""Pictures of chapter 2: the architecture, split and combine on numbers, two heads' view of the same tokens."""

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ..head_splitting import split_heads
from ..measures import nearest_neighbours
from ..palette import COLORS, head_color
from ..plotting import draw_weights
from ..style import STYLE_FILE
from ..words import word
from .canvas import arrow, box, canvas, cells, label

HEADS = 8


def architecture() -> Figure:
    """Multi-head attention from the input to the output, with the shape at every step."""
    figure, axes = canvas(468, 590)
    middle, columns = 170, (60, 170, 280)  # queries, keys, values

    def shape(y: float, text: str, bold: bool = False) -> None:
        label(
            axes,
            342,
            y,
            text,
            size=11,
            color="ink" if bold else "muted",
            align="left",
            bold=bold,
        )

    box(axes, middle - 60, 12, 120, 32, "$X$", size=13)
    shape(28, "(batch, seq, 512)")
    for x, name in zip(columns, "QKV", strict=True):
        arrow(axes, (middle + (x - middle) * 0.28, 46), (x, 74))
        box(axes, x - 46, 76, 92, 34, f"$W^{name}$", size=13)
        arrow(axes, (x, 112), (x, 134))
        _strip(axes, x - 48, 136, 12)
        arrow(axes, (x, 164), (x, 198))
        _stack(axes, x - 42, 202, 60, 24, f"${name}_i$")
        arrow(axes, (x, 264), (middle + (x - middle) * 0.75, 290))
    shape(93, "512 × 512, each")
    shape(149, "(batch, seq, 512)")
    shape(181, word("split"), bold=True)
    shape(220, "(batch, 8, seq, 64)")
    _stack(
        axes, 34, 294, 240, 50, r"softmax$\left(Q_i K_i^{\top} / \sqrt{64}\right) V_i$"
    )
    shape(308, word("weights") + " (batch, 8, seq, seq)")
    shape(328, word("results") + " (batch, 8, seq, 64)")
    arrow(axes, (middle, 382), (middle, 410))
    shape(396, word("concatenate"), bold=True)
    _strip(axes, middle - 96, 412, 24)
    shape(425, "(batch, seq, 8 · 64)")
    arrow(axes, (middle, 440), (middle, 464))
    box(axes, middle - 46, 466, 92, 34, "$W^O$", size=13)
    shape(483, "512 × 512")
    arrow(axes, (middle, 502), (middle, 526))
    box(axes, middle - 60, 528, 120, 32, word("output"))
    shape(544, "(batch, seq, 512)")
    return figure


def _strip(axes: Axes, x: float, y: float, width: float) -> None:
    """Draw a wide result, its columns in the heads' colours."""
    for head in range(HEADS):
        box(
            axes,
            x + head * width,
            y,
            width,
            26,
            color=head_color(head),
            alpha=0.35,
            radius=0,
        )


def _stack(
    axes: Axes, x: float, y: float, width: float, height: float, text: str
) -> None:
    """Draw one box for each head, the first in front."""
    for head in reversed(range(HEADS)):
        shift = 4.5 * head
        box(
            axes,
            x + shift,
            y + 0.9 * shift,
            width,
            height,
            color=head_color(head),
            alpha=0.06,
            radius=3,
        )
    label(axes, x + width / 2, y + height / 2, text, size=12.5)


def split() -> Figure:
    """Four tokens of width 6 and three heads: the right split beside the wrong one, with numbers to follow."""
    figure, axes = canvas(468, 366)
    x = torch.arange(24).view(1, 4, 6)
    cells(axes, 150, 26, x[0].tolist(), width=28, color=lambda _, column: head_color(column // 2), alpha=0.3,
          title="x", rows=[word("token", number=token) for token in range(4)])  # fmt: skip
    for verdict, code, heads, top in (
        ("right", "x.view(1, 4, 3, 2).transpose(1, 2)", split_heads(x, 3)[0], 158),
        ("wrong", "x.view(1, 3, 4, 2)", x.view(1, 3, 4, 2)[0], 280),
    ):
        good = verdict == "right"
        label(axes, 8, top - 22, ("✓ " if good else "✗ ") + word(verdict), bold=True, align="left",
              color="ink" if good else "bad")  # fmt: skip
        label(axes, 84, top - 22, code, align="left", size=10.5, color="muted")
        for head, entries in enumerate(heads.tolist()):
            # A number keeps the colour of the columns it stood in: one head should hold one colour.
            colors = [
                [head_color(entry % 6 // 2) for entry in line] for line in entries
            ]
            left = 84 + head * 132
            cells(axes, left + 46, top, entries, width=28, height=20, alpha=0.3,
                  color=lambda line, column, colors=colors: colors[line][column])  # fmt: skip
            label(
                axes, left, top + 40, word("head", number=head), size=10.5, align="left"
            )
    return figure


def influence_maps(maps: dict[str, Tensor]) -> Figure:
    """Draw who influences whom, one panel a version: outputs are rows, inputs are columns.

    Parameters
    ----------
    maps : dict of str to Tensor
        A title and a boolean ``(output, input)`` for each panel, as ``mha.influence`` returns it.
    """
    with plt.style.context(STYLE_FILE):
        # Up to four stand in one row; more would be too small on a phone.
        across = len(maps) if len(maps) <= 4 else 3
        down = -(-len(maps) // across)
        size = (1.75 * across, 2.3 * down)
        figure, panels = plt.subplots(down, across, figsize=size, squeeze=False)
        for empty in panels.flat[len(maps) :]:
            empty.set_visible(False)
        used = panels.flat[: len(maps)]
        for axes, (title, reached) in zip(used, maps.items(), strict=True):
            labels = [str(token) for token in range(len(reached))]
            filled = reached.double().numpy() * 0.6
            draw_weights(axes, filled, labels, labels, color="muted", numbers=False)
            axes.set_title(title)
        panels[-1, 0].set_xlabel(word("input_token"))
        panels[0, 0].set_ylabel(word("output_token"))
    return figure


def subspaces(head_tokens: Tensor, tokens: list[str]) -> Figure:
    """Draw the same tokens in two heads' planes, each token joined to its nearest neighbour there.

    Parameters
    ----------
    head_tokens : Tensor
        ``(2, tokens, 2)``: what each head's projection makes of each token.
    tokens : list of str
        The tokens' names.
    """
    with plt.style.context(STYLE_FILE):
        figure, panels = plt.subplots(1, 2, figsize=(6.6, 3.3))
        for head, axes in enumerate(panels):
            _plane(
                axes,
                head_tokens[head].double().round(decimals=3),
                tokens,
                head_color(head),
            )
            axes.set_title(
                word("head", number=head), color=head_color(head), fontweight="bold"
            )
    return figure


def _plane(axes: Axes, points: Tensor, tokens: list[str], color: str) -> None:
    neighbours = nearest_neighbours(points)
    axes.plot(*points.T.tolist(), "o", color=color)
    for start, (token, end) in enumerate(zip(tokens, neighbours, strict=True)):
        axes.plot(
            *points[[start, end]].T.tolist(), color=color, linewidth=1.4, alpha=0.6
        )
        # The name stands on the side where the line to the neighbour does not go.
        right = points[end, 0] < points[start, 0]
        axes.annotate(
            token, points[start].tolist(), xytext=(7 if right else -7, 0), textcoords="offset points",
            ha="left" if right else "right", va="center", parse_math=False,
        )  # fmt: skip
    axes.set_xticks([])
    axes.set_yticks([])
    # A square around the points, with room for the names.
    middle = (points.amin(dim=0) + points.amax(dim=0)) / 2
    half = 0.95 * (points.amax(dim=0) - points.amin(dim=0)).max().item()
    axes.set_xlim(middle[0].item() - half, middle[0].item() + half)
    axes.set_ylim(middle[1].item() - half, middle[1].item() + half)
    axes.set_aspect("equal")
    for side in axes.spines.values():
        side.set(visible=True, color=COLORS["line"])


PICTURES = (architecture, split)
