"""How a softmax saturates as keys get wider: the measurement, and its picture."""

import math

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from ..palette import COLORS, head_color
from ..single_head import scaled_dot_product_attention
from ..style import STYLE_FILE
from ..words import word

WIDTHS = (2, 4, 8, 16, 32, 64, 128, 256)
KEYS = 12
QUERIES = 400  # what the means of the pictures are taken over


def random_weights(d_k: int, scaled: bool, queries: int = QUERIES) -> torch.Tensor:
    """Return the weights, ``(queries, 12)``, of random queries, each over 12 random keys.

    The numbers of all widths come from one draw, cut to width, so that turning ``d_k`` changes nothing else.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (queries, KEYS + 1, max(WIDTHS))
    vectors = torch.randn(shape, generator=generator, dtype=torch.float64)[..., :d_k]
    query, key = vectors[:, :1], vectors[:, 1:]
    scale = None if scaled else 1.0
    return scaled_dot_product_attention(query, key, key, scale=scale)[1][:, 0]


def relative_entropy(weights: torch.Tensor) -> torch.Tensor:
    """Return each row's entropy divided by that of the uniform row: 1 = uniform, 0 = one key."""
    return torch.special.entr(weights).sum(dim=-1) / math.log(weights.shape[-1])


def mean_sorted_weights(d_k: int, scaled: bool) -> torch.Tensor:
    """Return the mean over 400 queries of the largest weight, the second largest, and so on: ``(12,)``."""
    return random_weights(d_k, scaled).sort(dim=-1, descending=True).values.mean(dim=0)


def mean_entropy(d_k: int, scaled: bool) -> float:
    """Return the mean relative entropy of 400 queries."""
    return relative_entropy(random_weights(d_k, scaled)).mean().item()


def saturation(d_k: int = 64, scaled: bool = False) -> Figure:
    """Draw the mean sorted weights at ``d_k`` (left), and the entropy of the weights against ``d_k`` (right).

    Parameters
    ----------
    d_k : int
        Width of the key, one of ``WIDTHS``.
    scaled : bool
        Whether the scores are divided by the square root of ``d_k``; the curve of this choice is marked at ``d_k``.
    """
    colors = {True: head_color(0), False: COLORS["bad"]}
    names = {True: word("scaled"), False: word("not_scaled")}
    with plt.style.context(STYLE_FILE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(6.6, 2.9))
        weights = mean_sorted_weights(d_k, scaled).numpy().round(3)
        left.bar(range(KEYS), weights, color=colors[scaled], width=0.75)
        left.set(
            ylim=(0, 1),
            xticks=[],
            xlabel=word("sorted_keys"),
            ylabel=word("attention_weight"),
        )
        left.set_title(f"$d_k$ = {d_k}, {names[scaled]}")
        for choice, marker in ((True, "o"), (False, "s")):
            means = [round(mean_entropy(width, choice), 3) for width in WIDTHS]
            right.plot(WIDTHS, means, color=colors[choice], marker=marker)
            right.annotate(
                names[choice], (WIDTHS[3], means[3]), color=colors[choice], xytext=(6, 8),
                textcoords="offset points",
            )  # fmt: skip
        here = round(mean_entropy(d_k, scaled), 3)
        right.plot(
            [d_k], [here], "o", markersize=13, fillstyle="none", color=COLORS["ink"]
        )
        right.set_xscale("log", base=2)
        right.set_xticks([2, 8, 32, 128], labels=["2", "8", "32", "128"])
        right.set(
            ylim=(0, 1.05), xlabel=word("key_width_axis"), ylabel=word("entropy_axis")
        )
    return figure
