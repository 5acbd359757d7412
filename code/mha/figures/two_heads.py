"""Pictures of chapter 3: concatenation with numbers, and the whole path with numbers."""

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..palette import head_color
from ..two_heads import attend_head_by_head, concat_heads, paper_example
from ..words import word
from .canvas import arrow, box, canvas, cells, label


def concat() -> Figure:
    """Two heads' outputs, side by side, and what W_O makes of them."""
    figure, axes = canvas(468, 164)
    W_o = paper_example().W_o
    heads = torch.tensor([[0.5, 0.3], [0.1, 0.8]])
    concatenated, output = concat_heads(heads, W_o)
    for head in range(2):
        cells(axes, 6 + head * 84, 30, heads[head : head + 1].tolist(), width=32, height=26, color=head_color(head),
              alpha=0.3, title=rf"head$_{head + 1}$")  # fmt: skip
        arrow(axes, (38 + head * 84, 60), (38 + head * 64, 84), color=head_color(head))
    cells(axes, 6, 88, [concatenated.tolist()], width=32, height=26, color=lambda _, column: head_color(column // 2),
          alpha=0.3)  # fmt: skip
    label(axes, 70, 128, word("concatenate"), size=10.5, color="muted")
    label(axes, 151, 101, "×", size=14)
    cells(axes, 168, 49, W_o.tolist(), width=30, height=26, color=lambda row, _: head_color(row // 2), alpha=0.14,
          title="$W^O$")  # fmt: skip
    label(axes, 305, 101, "=", size=14)
    cells(
        axes,
        322,
        88,
        [output.tolist()],
        width=36,
        height=26,
        alpha=0.08,
        title=word("output"),
    )
    return figure


def whole_path() -> Figure:
    """The worked example from X to the output, every number in its box."""
    figure, axes = canvas(468, 650)
    example = paper_example()
    steps = attend_head_by_head(*example[1:])
    cells(
        axes,
        176,
        26,
        example.x.tolist(),
        width=30,
        title="$X$  (3, 4)",
        rows=example.tokens,
    )
    for head in range(2):
        left = 10 + head * 236
        color = head_color(head)
        box(axes, left - 8, 118, 224, 332, color=color, alpha=0.05, radius=8)
        label(axes, left + 105, 134, rf"head$_{head + 1}$", color=color, bold=True)
        arrow(
            axes, (236 + (-46 if head == 0 else 46), 94), (left + 105, 116), color=color
        )
        _qkv(
            axes,
            left,
            168,
            [steps.queries[head], steps.keys[head], steps.values[head]],
            color,
        )
        _matrix(axes, left, 270, steps.scores[head], color, "$QK^{\\top}$", 26)
        arrow(axes, (left + 82, 301), (left + 110, 301), color=color)
        _matrix(
            axes,
            left + 114,
            270,
            steps.weights[head],
            color,
            word("weights"),
            31,
            steps.weights[head],
        )
        arrow(axes, (left + 163, 338), (left + 163, 358), color=color)
        _matrix(axes, left + 126, 372, steps.head_outputs[head], color, "", 37)
        label(
            axes,
            left + 116,
            404,
            word("weights_times_values"),
            size=10,
            align="right",
            color="muted",
        )
        arrow(
            axes,
            (left + 163, 452),
            (236 + (-38 if head == 0 else 38), 480),
            color=color,
        )
    cells(
        axes,
        160,
        484,
        steps.concatenated.tolist(),
        width=38,
        color=lambda _, column: head_color(column // 2),
        alpha=0.3,
    )
    label(axes, 152, 517, word("concatenate"), align="right", size=10.5, color="muted")
    label(axes, 320, 517, "(3, 4)", align="left", size=10.5, color="muted")
    arrow(axes, (236, 552), (236, 566))
    label(axes, 246, 559, "× $W^O$", align="left", size=10.5)
    cells(axes, 160, 570, steps.output.tolist(), width=38, alpha=0.08)
    label(axes, 152, 603, word("output"), align="right", size=10.5, color="muted")
    return figure


def _qkv(
    axes: Axes, left: float, top: float, matrices: list[torch.Tensor], color: str
) -> None:
    for index, (matrix, name) in enumerate(zip(matrices, "QKV", strict=True)):
        cells(
            axes,
            left + index * 76,
            top,
            matrix.tolist(),
            width=28,
            color=color,
            alpha=0.14,
            title=f"${name}$",
        )


def _matrix(
    axes: Axes, left: float, top: float, matrix: torch.Tensor, color: str, title: str, width: float,
    strength: torch.Tensor | None = None,
) -> None:  # fmt: skip
    alpha = 0.14 if strength is None else strength.numpy()
    cells(
        axes,
        left,
        top,
        matrix.tolist(),
        width=width,
        color=color,
        alpha=alpha,
        title=title,
        size=10,
    )


PICTURES = (concat, whole_path)
