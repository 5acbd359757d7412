"""Pictures of chapter 5: why a mask, where it goes, padding and causal masks together, alignment, two trainings."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from ..masking import causal_mask, combine_masks, padding_mask
from ..palette import COLORS
from ..sentence import KITTEN_TOKENS
from ..style import STYLE_FILE
from ..words import word
from .canvas import arrow, box, canvas, cells, label

# How strongly a mask is filled where a query may look, and where that query is padding.
MAY_LOOK, DROPPED = 0.5, 0.12
SMOOTHED_STEPS = 20


def next_token() -> Figure:
    """Five inputs, their targets one place further on, and what one position must not look at."""
    figure, axes = canvas(468, 196)
    inputs, targets = KITTEN_TOKENS[:5], KITTEN_TOKENS[1:6]
    position, wide, high, top, base = 2, 66, 30, 12, 154
    lefts = [64 + 81 * column for column in range(len(inputs))]
    for y, name, tokens in ((top, "target", targets), (base, "input", inputs)):
        label(axes, 54, y + high / 2, word(name), align="right", bold=True)
        for column, token in enumerate(tokens):
            here = y == top and column == position
            leak = y == base and column == position + 1
            color = "bad" if leak else "ink" if here else "muted"
            alpha = 0.16 if here or (y == base and column <= position + 1) else 0.0
            box(axes, lefts[column], y, wide, high, token, color=color, alpha=alpha)
    middle = lefts[position] + wide / 2
    for column in range(position + 1):
        start = lefts[column] + wide / 2
        arrow(axes, (start, base - 4), (middle + (start - middle) * 0.14, top + high + 4),
              color="ink")  # fmt: skip
    start = (lefts[position + 1] + wide / 2, base - 4)
    _dashed_arrow(axes, start, (middle + 81 * 0.14, top + high + 4))
    label(axes, start[0] + 2, (top + high + base) / 2, word("the_answer"), align="left",
          color="bad", size=10.5)  # fmt: skip
    return figure


def _dashed_arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float]
) -> None:
    """Draw a dashed arrow in the colour of what is wrong; only its line is dashed, not its head."""
    back = np.subtract(start, end)
    neck = end + back / np.hypot(*back) * 9
    axes.plot(*zip(start, neck, strict=True), color=COLORS["bad"], linewidth=1.3,
              linestyle=(0, (4, 2.5)))  # fmt: skip
    arrow(axes, tuple(neck), end, color="bad")


def three_ways() -> Figure:
    """One row of scores, its last key hidden: after the softmax, after it and rescaled, before it."""
    figure, axes = canvas(468, 306)
    scores = torch.tensor([1.0, 2.0, 3.0])
    keep = torch.tensor([True, True, False])
    weights = scores.softmax(dim=0)
    masked = weights * keep
    hidden = scores.masked_fill(~keep, -torch.inf)
    wide, lefts, tops = 42, (9, 171, 333), (66, 128, 190, 252)
    ways = (
        ("✗ ", "mask_after", "bad", ((0, "", scores), (1, "softmax", weights), (3, "× mask", masked))),
        ("", "mask_after_rescaled", "ink", ((0, "", scores), (1, "softmax", weights), (2, "× mask", masked),
                                            (3, "÷ " + word("sum"), masked / masked.sum()))),
        ("✓ ", "mask_before", "ink", ((0, "", scores), (1, "masked_fill", hidden),
                                      (3, "softmax", hidden.softmax(dim=0)))),
    )  # fmt: skip
    for left, (mark, name, color, steps) in zip(lefts, ways, strict=True):
        middle = left + 1.5 * wide
        label(axes, middle, 21, mark + word(name), bold=True, color=color)
        for column, shown in enumerate(keep.tolist()):
            text = word("key_number", number=column) if shown else word("hidden")
            label(
                axes,
                left + (column + 0.5) * wide,
                tops[0] - 11,
                text,
                size=10,
                color="muted",
            )
        before = None
        for line, step, values in steps:
            if before is not None:
                start = tops[before] + 24
                arrow(axes, (middle, start + 4), (middle, tops[line] - 4))
                label(
                    axes,
                    middle + 8,
                    (start + tops[line]) / 2,
                    step,
                    size=10,
                    align="left",
                    color="muted",
                )
            _row(
                axes,
                left,
                tops[line],
                wide,
                values,
                keep,
                values is scores or values is hidden,
            )
            before = line
        total = steps[-1][2].sum().item()
        label(axes, middle, tops[3] + 40, word("sums_to", total=_three_digits(total)), size=10.5,
              color=color, bold=color == "bad")  # fmt: skip
    for x, sign in ((153, "≠"), (315, "=")):
        label(axes, x, tops[3] + 12, sign, size=15)
    return figure


def _three_digits(number: float) -> str:
    """Return a number with three digits, or as a whole number if it is one, as in pictures of weights."""
    if number == -torch.inf:
        return "−∞"
    if abs(number - round(number)) < 1e-6:
        return str(round(number))
    return f"{number:.3f}".lstrip("0")


def _row(
    axes: Axes,
    left: float,
    top: float,
    width: float,
    values: Tensor,
    keep: Tensor,
    are_scores: bool,
) -> None:
    """Draw scores, or weights as strongly as they are; a hidden key that gets no weight is grey."""
    gone = (~keep & (are_scores | (values == 0))).tolist()
    strengths = torch.zeros_like(values) if are_scores else values
    cells(axes, left, top, [[_three_digits(value) for value in values.tolist()]], width=width, height=24,
          color=lambda _, column: "muted" if gone[column] else "blue",
          alpha=np.where(gone, 0.22, strengths.numpy())[None])  # fmt: skip


def padding() -> Figure:
    """Two padded sentences, for each the padding mask, the causal mask, and both together."""
    figure, axes = canvas(468, 432)
    sentences = (["it", "was", "tired", "<pad>"], ["it", "was", "<pad>", "<pad>"])
    lengths = torch.tensor([tokens.index("<pad>") for tokens in sentences])
    padded, causal = padding_mask(lengths, 4), causal_mask(4)
    both = combine_masks(padded, causal)
    lefts, tops, side = (56, 204, 352), (88, 254), 27
    for left, name, mask in zip(
        lefts, ("padding", "causal", "both"), (padded, causal, both), strict=True
    ):
        label(axes, left, 14, word(name), align="left", bold=True)
        label(
            axes, left, 31, str(tuple(mask.shape)), align="left", size=10, color="muted"
        )
        for tokens, top, shown in zip(
            sentences, tops, mask.expand(2, 1, 4, 4)[:, 0], strict=True
        ):
            dropped = [token == "<pad>" for token in tokens]
            _mask(axes, left, top, shown, side, side, dropped)
            for place, token in enumerate(tokens):
                middle = (place + 0.5) * side
                color = "muted" if dropped[place] else "ink"
                axes.text(left + middle + 3.6, top - 6, token, rotation=90, rotation_mode="anchor", fontsize=10,
                          color=COLORS[color], parse_math=False)  # fmt: skip
                if left == lefts[0]:
                    label(
                        axes,
                        left - 7,
                        top + middle,
                        token,
                        align="right",
                        size=10,
                        color=color,
                        math=False,
                    )
    for top in tops:
        label(axes, 184, top + 2 * side, "&", size=14)
        label(axes, 332, top + 2 * side, "=", size=14)
    for y, name, strength in (
        (392, "may_look", MAY_LOOK),
        (414, "output_dropped", DROPPED),
    ):
        cells(
            axes,
            lefts[0],
            y - 7,
            [[""]],
            width=14,
            height=14,
            color="blue",
            alpha=strength,
        )
        label(axes, lefts[0] + 22, y, word(name), align="left", size=10)
    return figure


def _mask(
    axes: Axes, left: float, top: float, mask: Tensor, width: float, height: float, dropped: Sequence[bool],
) -> None:  # fmt: skip
    """Draw a mask, filled where a query may look; rows of queries whose output is dropped are faint."""
    strength = np.where(np.array(dropped)[:, None], DROPPED, MAY_LOOK)
    cells(axes, left, top, [[""] * mask.shape[1]] * len(mask), width=width, height=height, color="blue",
          alpha=strength * mask.numpy())  # fmt: skip


def alignment() -> Figure:
    """Two new queries and five keys, three of them from the cache: the mask aligned to the start, and to the end."""
    figure, axes = canvas(468, 202)
    # Values that are a unit matrix make the output the weights: above 0 where a query may look.
    weights = F.scaled_dot_product_attention(
        torch.zeros(2, 1), torch.zeros(5, 1), torch.eye(5), is_causal=True
    )
    ways = (
        (8, "aligned_start", weights > 0, "F.scaled_dot_product_attention(\n    …, is_causal=True)"),
        (246, "aligned_end", causal_mask(2, 5), "mha.causal_mask(2, 5)"),
    )  # fmt: skip
    wide, high, top = 30, 30, 56
    for edge, name, mask, code in ways:
        left = edge + 62
        label(axes, edge, 14, word(name), align="left", bold=True)
        label(axes, left - 8, top - 13, word("key"), align="right", size=10.5)
        for column in range(5):
            label(axes, left + (column + 0.5) * wide, top - 13, str(column), size=10.5)
        for row in range(2):
            label(
                axes,
                left - 8,
                top + (row + 0.5) * high,
                word("query_number", number=row),
                align="right",
                size=10.5,
            )
        _mask(axes, left, top, mask, wide, high, [False, False])
        for first, last, source in ((0, 3, "from_cache"), (3, 5, "new")):
            start, end = left + first * wide + 3, left + last * wide - 3
            y = top + 2 * high + 8
            axes.plot([start, start, end, end], [y - 4, y, y, y - 4],
                      color=COLORS["muted"], linewidth=1)  # fmt: skip
            label(
                axes, (start + end) / 2, y + 12, word(source), size=10.5, color="muted"
            )
        for line, text in enumerate(code.split("\n")):
            label(
                axes,
                edge,
                top + 2 * high + 50 + 16 * line,
                text,
                align="left",
                size=10.5,
                color="muted",
            )
    return figure


def losses(histories: dict[str, list[float]]) -> Figure:
    """Draw two trainings' losses, each the mean of the last 20 steps, its name at its end.

    Parameters
    ----------
    histories : dict of str to list of float
        A name and one loss a step for each training, the one with a mask first.
    """
    with plt.style.context(STYLE_FILE):
        figure, axes = plt.subplots(figsize=(5.8, 3.0))
        for (name, history), color in zip(
            histories.items(), ("ink", "bad"), strict=True
        ):
            window = np.full(SMOOTHED_STEPS, 1 / SMOOTHED_STEPS)
            means = np.convolve(history, window, "valid").round(3)
            axes.plot(
                range(SMOOTHED_STEPS, len(history) + 1), means, color=COLORS[color]
            )
            axes.annotate(
                name, (len(history), means[-1]), color=COLORS[color], xytext=(7, 0), textcoords="offset points",
                va="center", parse_math=False, annotation_clip=False,
            )  # fmt: skip
        axes.set_xlim(0, max(map(len, histories.values())))
        axes.set_ylim(bottom=0)
        axes.set(xlabel=word("step"), ylabel=word("training_loss"))
    return figure


PICTURES = (next_token, three_ways, padding, alignment)
