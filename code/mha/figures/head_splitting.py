"""Pictures of chapter 2: the architecture, split and combine on numbers, two heads' view of the same tokens."""

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ..head_splitting import split_heads
from ..palette import COLORS, head_color
from ..plotting import draw_weights
from ..style import STYLE_FILE
from ..words import word
from .canvas import arrow, box, canvas, cells, label


def architecture() -> Figure:
    """Multi-head attention from the input to the output, with the shape at every step."""
    figure, axes = canvas(468, 560)
    middle, shape_x = 196, 372
    columns = (76, 196, 316)  # queries, keys, values

    def shape(y: float, text: str) -> None:
        label(axes, shape_x, y, text, size=10.5, color="muted", align="left")

    box(axes, middle - 60, 12, 120, 30, "$X$")
    shape(27, "(batch, seq, 512)")
    for x, name in zip(columns, "QKV", strict=True):
        arrow(axes, (middle + (x - middle) * 0.28, 44), (x, 72))
        box(axes, x - 46, 74, 92, 32, f"$W^{name}$")
        arrow(axes, (x, 106), (x, 130))
        for head in range(8):  # one wide projection, its columns in the heads' colours
            box(
                axes,
                x - 48 + head * 12,
                132,
                12,
                26,
                color=head_color(head),
                alpha=0.35,
                radius=0,
            )
        arrow(axes, (x, 158), (x, 196))
    shape(90, "512 × 512")
    shape(145, "(batch, seq, 512)")
    label(axes, shape_x, 177, word("split"), bold=True, align="left")
    for head in reversed(range(8)):
        shift = 4.5 * head
        for x in columns:
            box(
                axes,
                x - 36 + shift,
                200 + shift * 0.9,
                60,
                22,
                color=head_color(head),
                alpha=0.0,
                radius=2,
            )
            axes.patches[-2].set(facecolor=COLORS["paper"], alpha=1.0)
            axes.patches[-1].set(facecolor="none")
    for x, name in zip(columns, "QKV", strict=True):
        label(axes, x - 6, 211, f"${name}_i$", size=11)
    shape(216, "(batch, 8, seq, 64)")
    for x in columns:
        arrow(axes, (x, 258), (middle + (x - middle) * 0.75, 282))
    for head in reversed(range(8)):
        shift = 4.5 * head
        box(
            axes,
            60 + shift,
            286 + shift * 0.9,
            240,
            46,
            color=head_color(head),
            alpha=0.0,
            radius=3,
        )
        axes.patches[-2].set(facecolor=COLORS["paper"], alpha=1.0)
    label(
        axes, 180, 309, r"softmax$\left(Q_i K_i^{\top} / \sqrt{64}\right) V_i$", size=12
    )
    shape(305, "8 × (seq, seq)")
    arrow(axes, (middle, 366), (middle, 392))
    for head in range(8):
        box(
            axes,
            middle - 96 + head * 24,
            394,
            24,
            26,
            color=head_color(head),
            alpha=0.35,
            radius=0,
        )
    label(axes, shape_x, 383, word("concatenate"), bold=True, align="left")
    shape(407, "(batch, seq, 8 · 64)")
    arrow(axes, (middle, 420), (middle, 446))
    box(axes, middle - 46, 448, 92, 32, "$W^O$")
    shape(464, "512 × 512")
    arrow(axes, (middle, 480), (middle, 506))
    box(axes, middle - 60, 508, 120, 30, word("output"))
    shape(523, "(batch, seq, 512)")
    return figure


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
        figure, panels = plt.subplots(
            1, len(maps), figsize=(2.2 * len(maps), 2.6), squeeze=False
        )
        for axes, (title, reached) in zip(panels.flat, maps.items(), strict=True):
            labels = [str(token) for token in range(len(reached))]
            draw_weights(
                axes, reached.double().numpy() * 0.5, labels, labels, numbers=False
            )
            axes.set_title(title)
        panels[0, 0].set_ylabel(word("output_token"))
        panels[0, 0].set_xlabel(word("input_token"))
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


def nearest_neighbours(points: Tensor) -> list[int]:
    """Return, for each point of ``(tokens, width)``, the index of the nearest other point."""
    distances = torch.cdist(points, points)
    return distances.fill_diagonal_(torch.inf).argmin(dim=1).tolist()


def _plane(axes: Axes, points: Tensor, tokens: list[str], color: str) -> None:
    for start, end in enumerate(nearest_neighbours(points)):
        axes.plot(
            *points[[start, end]].T.tolist(), color=color, linewidth=1.4, alpha=0.6
        )
    axes.plot(*points.T.tolist(), "o", color=color)
    for point, token in zip(points.tolist(), tokens, strict=True):
        axes.annotate(
            token, point, xytext=(5, 6), textcoords="offset points", parse_math=False
        )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.margins(0.3, 0.2)
    for side in axes.spines.values():
        side.set(visible=True, color=COLORS["line"])


PICTURES = (architecture, split)
