"""Pictures of chapter 7: what one head cannot report, what two can, and how two share the work."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from ..palette import COLORS, head_color
from ..plotting import fill_cells
from ..style import STYLE_FILE
from ..words import word
from .head_roles import DASHED, note, stroke

DOTS = {"marker": "o", "linestyle": "", "alpha": 0.6, "markeredgewidth": 0, "clip_on": False}  # fmt: skip
CLEAN = 0.9  # from that share of its weight on one place a head counts as that place's


@plt.style.context(STYLE_FILE)
def one_or_two(accuracies: dict[str, Sequence[float]]) -> Figure:
    """Draw how often readers report both symbols, one row for each kind of reader, one dot for each seed.

    Parameters
    ----------
    accuracies : dict
        Under the keys of words, such as ``"one_head_16"``, what ``accuracy`` returns, as numbers from 0 to 1.
    """
    figure, axes = plt.subplots(figsize=(6.6, 0.5 * len(accuracies) + 0.75))
    for row, shares in enumerate(accuracies.values()):
        right, middle = _percent(shares), round(100 * float(np.median(shares)))
        stroke(axes, (0, 100), (row, row), "line")
        rows = row + np.linspace(-0.28, 0.28, len(right))  # or equal ones would be one
        axes.plot(right, rows, color=COLORS["ink"], markersize=5, **DOTS)
        ends = (middle, middle), (row - 0.38, row + 0.38)
        stroke(axes, *ends, "ink", linewidth=1.6, zorder=3)
        axes.text(112, row, str(middle), ha="right", va="center", fontsize=10)
    axes.text(112, -0.55, word("median"), ha="right", color=COLORS["muted"], fontsize=10)  # fmt: skip
    names = [word(key) for key in accuracies]
    axes.set_yticks(range(len(names)), labels=names)
    axes.tick_params(axis="y", length=0, labelsize=10.5)
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_bounds(0, 100)
    axes.set(xticks=range(0, 101, 20), xlabel=word("both_right"))
    axes.set(xlim=(-2, 112), ylim=(len(names) - 0.45, -0.6))
    return figure


def _percent(shares: Sequence[float]) -> np.ndarray:
    """Return shares as whole percentages."""
    return (100 * np.asarray(shares, dtype=float)).round()


@plt.style.context(STYLE_FILE)
def pairs_right(
    right: Bool[Tensor, "symbols symbols"], scores: Float[Tensor, "symbols"]
) -> Figure:
    """Draw which ordered pairs of symbols one reader with one head reports, its symbols sorted by their scores.

    Parameters
    ----------
    right : Tensor
        ``(first, second)``: whether both are right, for every pair that ``every_pair`` makes.
    scores : Tensor
        What each symbol adds to a token's score, one head's part of ``symbol_scores``.
    """
    figure, axes = plt.subplots(figsize=(5.4, 3.3))
    order, count = scores.argsort(), len(scores)
    good = right[order][:, order].numpy().T  # rows are the second place, from below
    inks = np.array([to_rgba("none"), to_rgba(COLORS["muted"])])[good.astype(int)]
    fill_cells(axes, 0, 0, 1, 1, inks, linewidth=0.4)
    axes.set(xlim=(0, count), ylim=(0, count), aspect="equal", xticks=(), yticks=())
    axes.set(xlabel=word("first_symbol"), ylabel=word("second_symbol"))
    axes.spines[:].set_visible(False)
    cell, x = count / 24, 1.07 * count
    for y, filled, name in ((0.93, True, "pairs_right"), (0.83, False, "pairs_wrong")):
        ink = {"facecolor": COLORS["muted"] if filled else "none", "edgecolor": COLORS["muted"]}  # fmt: skip
        key = Rectangle((x, y * count), cell, cell, **ink, clip_on=False)
        axes.add_patch(key)
        text = word(name, number=f"{(good == filled).sum():,}")
        axes.text(x + 1.6 * cell, y * count + cell / 2, text, va="center", fontsize=10)
    return figure


@plt.style.context(STYLE_FILE)
def sweep(
    heads: Sequence[int],
    accuracies: Sequence[Sequence[float]],
    published: dict[int, float],
) -> Figure:
    """Draw a result against the number of heads at equal width: the reader's own, and a published one.

    Parameters
    ----------
    heads : sequence of int
        How many heads the readers have.
    accuracies : sequence
        For each of these numbers, what ``accuracy`` returns for several seeds.
    published : dict
        The BLEU of a translator for each number of heads.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.6, 3.0))
    rights = [_percent(shares) for shares in accuracies]
    left.plot(heads, [np.median(shares) for shares in rights], color=COLORS["muted"], linewidth=1.4)  # fmt: skip
    for number, shares in zip(heads, rights, strict=True):
        # Side by side, or equal ones would be one.
        across = number * 2 ** np.linspace(-0.12, 0.12, len(shares))
        left.plot(across, shares, color=COLORS["ink"], markersize=5, **DOTS)
    numbers, scores = zip(*sorted(published.items()), strict=True)
    right.plot(numbers, scores, color=COLORS["muted"], linewidth=1.4)
    right.plot(numbers, scores, "o", color=COLORS["ink"])
    for number, score in published.items():
        side = (0, 7) if score == max(scores) else (9, -14)  # off the line
        style = {"textcoords": "offset points", "ha": "center", "fontsize": 10}
        right.annotate(f"{score:.1f}", (number, score), side, **style)
    title = word("readers", number=len(rights[0]))
    left.set(title=title, ylabel=word("both_right"), ylim=(0, 104))
    right.set(title=word("translator"), ylabel=word("bleu"))
    low, high = np.floor(2 * min(scores) - 0.5) / 2, np.ceil(2 * max(scores)) / 2
    right.set(ylim=(low, high), yticks=np.arange(low, high + 0.1, 0.5))
    for axes, ticks in ((left, heads), (right, numbers)):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, labels=list(map(str, ticks)))
        axes.set_xlim(min(ticks) / 1.3, max(ticks) * 1.3)
        axes.set_xlabel(word("number_of_heads"))
    return figure


@plt.style.context(STYLE_FILE)
def split(shares: Float[Tensor, "seeds heads"], accuracy: Sequence[float]) -> Figure:
    """Draw which of the two places each of two heads looks at, one dot for each seed.

    Parameters
    ----------
    shares : Tensor
        What ``place_shares`` returns for readers with two heads.
    accuracy : sequence of float
        The same readers' accuracies, of which the lowest is named.
    """
    figure, axes = plt.subplots(figsize=(5.2, 3.3))
    x, y = shares.double().numpy().round(3).T
    for corner in ((0, CLEAN), (CLEAN, 0)):
        style = {"facecolor": COLORS["panel"], "edgecolor": COLORS["line"], "zorder": 0}
        axes.add_patch(Rectangle(corner, 1 - CLEAN, 1 - CLEAN, **style))
    stroke(axes, (0, 1), (1, 0), linestyle=DASHED)
    axes.plot(0.5, 0.5, "+", color=COLORS["muted"], markersize=9)
    axes.plot(x, y, color=COLORS["ink"], **DOTS)
    for edge, other, place, side in (
        (x, y, (1, 0), {"xytext": (10, 0), "va": "bottom"}),
        (y, x, (0, 1), {"xytext": (0, 9), "va": "bottom"}),
    ):
        number = int(((edge >= CLEAN) & (other <= 1 - CLEAN)).sum())
        note(axes, word("clean_split", number=number), place, **side)
    for name, place, side in (
        ("half_and_half", (0.5, 0.5), {"xytext": (7, 4)}),
        ("both_on_first", (1, 1), {"xytext": (-4, -4), "ha": "right", "va": "top"}),
        ("both_on_second", (0, 0), {"xytext": (7, 7)}),
    ):
        note(axes, word(name), place, "muted", **side)
    least = int(100 * min(accuracy) + 1e-4)
    note(axes, word("seeds_and_least", number=len(x), least=least), (1, 0.55), xytext=(10, 0))  # fmt: skip
    ticks = {"xticks": (0, 0.5, 1), "yticks": (0, 0.5, 1)}
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", **ticks)
    for head, axis in enumerate((axes.xaxis, axes.yaxis)):
        axis.set_label_text(word("share_of_head", number=head), color=head_color(head))
    return figure
