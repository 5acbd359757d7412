"""Pictures of chapter 7: what changes in a trained model without some of its heads."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ..palette import COLORS
from ..resampling import rank_correlation
from ..style import STYLE_FILE
from ..words import word
from .canvas import FILL_ALPHA, Point
from .head_roles import DASHED, HEADS, stroke

DOTTED = (0, (1, 1.5))


@plt.style.context(STYLE_FILE)
def effects(effects: Float[Tensor, "layers heads"]) -> Figure:
    """Draw how far the removal of each head alone moves the sentences, layer by layer, with the layers' means.

    Parameters
    ----------
    effects : Tensor
        As ``ablation_effects`` returns them.
    """
    figure, axes = plt.subplots(figsize=(6.6, 3.4))
    values, means = _rounded(effects), _rounded(effects.mean(dim=1))
    layers, heads = values.shape
    largest = tuple(map(int, np.unravel_index(values.argmax(), values.shape)))
    middles = [layer * (heads + 2) + (heads - 1) / 2 for layer in range(layers)]
    for layer, middle in enumerate(middles):
        xs = middle + np.arange(heads) - (heads - 1) / 2
        colors = [COLORS[HEADS.get((layer, head), "muted")] for head in range(heads)]
        axes.bar(xs, values[layer], color=colors, width=0.8)
        ends = middle - heads / 2, middle + heads / 2
        stroke(axes, ends, (means[layer],) * 2, "ink", linewidth=1.4, zorder=3)
        for head, x in enumerate(xs):
            if (layer, head) in (*HEADS, largest):
                # Above the neighbours, over which the label reaches as well.
                near = values[layer, max(head - 2, 0) : head + 3]
                place = x, max(*near, means[layer])
                color = HEADS.get((layer, head), "ink")
                _beside(axes, str((layer, head)), place, "N", color, 10)
    texts = [f"{n}\n{mean:.4f}" for n, mean in enumerate(effects.mean(dim=1))]
    axes.set_xticks(middles, labels=texts)
    axes.tick_params(axis="x", length=0)
    axes.set(
        xlabel=word("layer_and_mean"), ylabel=word("effect"), xlim=(-1.5, xs[-1] + 1.5)
    )
    return figure


@plt.style.context(STYLE_FILE)
def removal(
    counts: Sequence[int],
    curves: dict[str, Sequence[Sequence[float]]],
    exchanged: float,
) -> Figure:
    """Draw how similar sentences stay to themselves the more heads are gone, in several orders of removal.

    Parameters
    ----------
    counts : sequence of int
        How many heads are gone at each point of a curve.
    curves : dict
        Lists of curves as ``removal_curve`` returns them, under ``"cheapest"``, ``"spared"`` (the last layer's heads
        stay), ``"random"`` and ``"dearest"``. Of several the mean is drawn, in a band from the smallest to the
        largest. A curve may end early.
    exchanged : float
        The similarity of sentences that differ in one word.
    """
    figure, axes = plt.subplots(figsize=(6.6, 4.0))
    for name, color, line, at, side in (
        ("cheapest", "ink", "-", 0.42, "NE"),
        ("spared", "muted", DASHED, 1, "NE"),
        ("random", "muted", "-", 0.5, "SW"),
        ("dearest", "ink", DOTTED, 0.34, "SW"),
    ):
        runs = np.array(curves[name]).round(3)
        xs, lows, highs = counts[: runs.shape[1]], runs.min(axis=0), runs.max(axis=0)
        if len(runs) > 1:
            style = {"color": COLORS[color], "alpha": FILL_ALPHA, "linewidth": 0}
            axes.fill_between(xs, lows, highs, **style)
        axes.plot(xs, runs.mean(axis=0).round(3), color=COLORS[color], linestyle=line)
        point = round(at * (len(xs) - 1))
        place = xs[point], (lows if "S" in side else highs)[point]
        _beside(axes, word(f"removal_{name}"), place, side, color)
    exchanged = round(exchanged, 3)
    stroke(axes, (0, counts[-1]), (exchanged, exchanged))
    text = word("one_word_exchanged", similarity=f"{exchanged:.2f}")
    _beside(axes, text, (counts[-1], exchanged), "N", "muted", ha="right")
    axes.set(xlabel=word("heads_gone"), ylabel=word("similarity"))
    axes.set(xticks=range(0, counts[-1] + 1, 12), xlim=(0, counts[-1]))
    return figure


@plt.style.context(STYLE_FILE)
def weight_and_effect(
    on_words: Float[Tensor, "layers heads"],
    added: Float[Tensor, "layers heads"],
    effects: Float[Tensor, "layers heads"],
) -> Figure:
    """Draw what a head's removal changes against its weight on words, and against the length of what it adds.

    Parameters
    ----------
    on_words : Tensor
        How much of its weight each head puts on words, not on delimiters.
    added, effects : Tensor
        As ``lengths_added`` and ``ablation_effects`` return them.
    """
    figure, panels = plt.subplots(1, 2, figsize=(6.6, 3.6), sharey=True)
    ys, last = _rounded(effects), len(effects) - 1
    styles = [
        {"marker": "s" if layer == last else "o", "alpha": (layer + 2) / (last + 2)}
        for layer in range(last + 1)
    ]
    dots = {"linestyle": "", "color": COLORS["ink"], "markeredgewidth": 0}
    for axes, values, name in zip(
        panels, (on_words, added), ("weight_on_words", "length_added"), strict=True
    ):
        xs = _rounded(values)
        for layer, style in enumerate(styles):
            axes.plot(xs[layer], ys[layer], markersize=5.5, **dots, **style)
        named = {int(xs.argmax()): "S", int(ys.argmax()): "W"}
        for place, side in named.items():
            head = divmod(place, ys.shape[1])
            _beside(axes, str(head), (xs[head], ys[head]), side, size=10)
        number = f"{rank_correlation(values, effects):.2f}"
        axes.set_title(word("rank_correlation", number=number))
        axes.set(yscale="log", xlabel=word(name))
    panels[0].set_ylabel(word("effect"))
    panels[0].yaxis.set_major_formatter("{x:g}")
    in_axes = {"transform": panels[1].transAxes, "clip_on": False}
    for layer, style in enumerate(styles):
        x = 0.96 - 0.08 * (last - layer)
        panels[1].plot(x, 0.13, markersize=5.5, **dots, **style, **in_axes)
        panels[1].text(x, 0.02, str(layer), ha="center", fontsize=10, **in_axes)
    x = 0.9 - 0.08 * last
    panels[1].text(x, 0.02, word("layer"), ha="right", fontsize=10, **in_axes)
    return figure


def _rounded(values: Tensor) -> np.ndarray:
    """Return numbers with three digits, so that a last one that differs between machines makes no other picture."""
    return np.vectorize(lambda value: float(f"{value:.3g}"))(values.double().numpy())


def _beside(
    axes: Axes, text: str, place: Point, side: str, color: str = "ink", size: float = 10.5, **style,
) -> None:  # fmt: skip
    """Write ``text`` beside a place of the data; ``side`` is a point of the compass, such as "NW"."""
    across, up = ("E" in side) - ("W" in side), ("N" in side) - ("S" in side)
    style = {"ha": ("center", "left", "right")[across]} | style
    axes.annotate(
        text, place, xytext=(7 * across, 4 * up), color=COLORS[color], fontsize=size,
        textcoords="offset points", va=("center", "bottom", "top")[up], annotation_clip=False,
        linespacing=1.3, **style,
    )  # fmt: skip
