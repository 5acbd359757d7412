"""How a softmax saturates as keys get wider: the measurement, and its picture."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from ..measures import KEYS, WIDTHS, mean_entropy, mean_sorted_weights
from ..palette import COLORS, head_color
from ..style import STYLE_FILE
from ..words import word


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
