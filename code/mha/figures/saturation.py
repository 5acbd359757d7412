"""How a softmax saturates as keys get wider: the measurement, and its picture."""

import math

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure

from ..palette import COLORS, head_color
from ..single_head import scaled_dot_product_attention
from ..style import STYLE_FILE
from ..words import word

SATURATION_WIDTHS = (2, 4, 8, 16, 32, 64, 128, 256)
SATURATION_KEYS = 12


def saturation_weights(
    d_k: int, scaled: bool, queries: int = 1, seed: int = 0
) -> torch.Tensor:
    """Return the weights, ``(queries, 12)``, of random queries over 12 random keys of width ``d_k``.

    The numbers of all widths come from one draw, cut to width, so that turning ``d_k`` changes nothing else.
    """
    generator = torch.Generator().manual_seed(seed)
    widest = max(SATURATION_WIDTHS)
    query = torch.randn(queries, 1, widest, generator=generator, dtype=torch.float64)[
        ..., :d_k
    ]
    key = torch.randn(
        queries, SATURATION_KEYS, widest, generator=generator, dtype=torch.float64
    )[..., :d_k]
    scale = None if scaled else 1.0
    return scaled_dot_product_attention(query, key, key, scale=scale)[1][:, 0]


def relative_entropy(weights: torch.Tensor) -> torch.Tensor:
    """Return the entropy of each row of weights, divided by that of the uniform row: 1 = uniform, 0 = one key."""
    return torch.special.entr(weights).sum(dim=-1) / math.log(weights.shape[-1])


def saturation(d_k: int = 64, scaled: bool = False) -> Figure:
    """One query's weights at ``d_k`` (left), and the entropy of the weights against ``d_k`` (right).

    Parameters
    ----------
    d_k : int
        Width of the key, one of ``SATURATION_WIDTHS``.
    scaled : bool
        Whether the left panel divides the scores by the square root of ``d_k``.
    """
    with plt.style.context(STYLE_FILE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(6.8, 2.9))
        row = saturation_weights(d_k, scaled)[0]
        color = head_color(0) if scaled else COLORS["bad"]
        left.bar(range(SATURATION_KEYS), row.numpy().round(4), color=color, width=0.75)
        left.set_ylim(0, 1)
        left.set_xticks([])
        left.set_xlabel(word("keys_of"))
        left.set_ylabel(word("attention_weight"))
        left.set_title(f"$d_k$ = {d_k}, " + word("scaled" if scaled else "not_scaled"))
        for is_scaled, shade, marker in (
            (True, head_color(0), "o"),
            (False, COLORS["bad"], "s"),
        ):
            means = [
                relative_entropy(saturation_weights(width, is_scaled, queries=400))
                .mean()
                .item()
                for width in SATURATION_WIDTHS
            ]
            right.plot(
                SATURATION_WIDTHS, np.round(means, 3), color=shade, marker=marker
            )
            right.annotate(
                word("scaled" if is_scaled else "not_scaled"), (SATURATION_WIDTHS[3], means[3]), color=shade,
                xytext=(6, 8), textcoords="offset points",
            )  # fmt: skip
            if is_scaled == scaled:
                at = SATURATION_WIDTHS.index(d_k)
                right.plot(
                    [d_k], [round(means[at], 3)], marker="o", markersize=13, fillstyle="none",
                    color=COLORS["ink"], markeredgewidth=1.2,
                )  # fmt: skip
        right.set_xscale("log", base=2)
        right.set_xticks([2, 8, 32, 128], labels=["2", "8", "32", "128"])
        right.set_ylim(0, 1.05)
        right.set_xlabel(word("key_width_axis"))
        right.set_ylabel(word("entropy_axis"))
    return figure
