"""Pictures of chapter 9: what reaches the last output and when, what it costs, who learns which job."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.ticker import NullLocator
from torch import Tensor

from ..palette import COLORS, head_color
from ..plotting import fill_cells
from ..style import STYLE_FILE
from ..words import word
from .canvas import FILL_ALPHA, Point, canvas, label
from .head_roles import DASHED, note, stroke
from .timing import logarithmic

# How each layer is drawn: colour, line, marker, and the colour that fills the marker.
STYLES = {
    "convolution": ("muted", ":", "^", "muted"),
    "recurrence": ("ink", "--", "s", "paper"),
    "attention": ("ink", "-", "o", "ink"),
}
SAME_LINE = {
    "convolution": {"markersize": 4, "zorder": 2.2},
    "recurrence": {"markersize": 8},
}
TOKENS, ACROSS, RADIUS = 7, 20, 7.5  # of the diagram of paths
TOP, MIDDLE, BOTTOM = 50, 92, 134


def paths() -> Figure:
    """What the last output sees in three layers, and how many products must be done before each number."""
    figure, axes = canvas(468, 204)
    for panel, name in enumerate(STYLES):
        left = 12 + 158 * panel
        xs = [left + ACROSS * token for token in range(TOKENS)]
        label(axes, xs[3], 14, word(name), size=12, bold=True)
        {"convolution": _windows, "recurrence": _chain, "attention": _fan}[name](axes, xs)  # fmt: skip
        label(axes, xs[3], 160, word(f"sees_{name}"), size=10.5)
        label(axes, xs[3], 176, word(f"path_{name}"), size=10.5)
    label(axes, 234, 197, word("products_before"), size=10, color="muted")
    return figure


def _windows(axes: Axes, xs: Sequence[float]) -> None:
    """Draw two convolutions that each see three tokens."""
    field = {TOP: 1, MIDDLE: 3, BOTTOM: 5}  # how many the last output sees
    for upper, lower in ((TOP, MIDDLE), (MIDDLE, BOTTOM)):
        for token in range(TOKENS):
            for seen in range(max(0, token - 2), token + 1):
                strong = token >= TOKENS - field[upper]
                _edge(axes, (xs[seen], lower), (xs[token], upper), strong)
    for y, text in ((TOP, "2"), (MIDDLE, "1"), (BOTTOM, "")):
        for token, x in enumerate(xs):
            _node(axes, x, y, text, token >= TOKENS - field[y])


def _chain(axes: Axes, xs: Sequence[float]) -> None:
    """Draw a state that is carried from token to token."""
    for token, x in enumerate(xs):
        _edge(axes, (x, BOTTOM), (x, TOP))
        if token:
            _edge(axes, (xs[token - 1], TOP), (x, TOP))
    for token, x in enumerate(xs):
        _node(axes, x, BOTTOM)
        _node(axes, x, TOP, str(token + 1))


def _fan(axes: Axes, xs: Sequence[float]) -> None:
    """Draw causal attention."""
    for strong in (False, True):
        for token in range(TOKENS):
            if strong == (token == TOKENS - 1):
                for seen in range(token + 1):
                    _edge(axes, (xs[seen], BOTTOM), (xs[token], TOP), strong)
    for token, x in enumerate(xs):
        _node(axes, x, BOTTOM)
        _node(axes, x, TOP, "6", token == TOKENS - 1)


def _edge(axes: Axes, start: Point, end: Point, strong: bool = True) -> None:
    style = {"color": COLORS["ink" if strong else "line"]}
    style |= {"linewidth": 1.2 if strong else 0.8, "zorder": 0.8 if strong else 0.7}
    axes.plot(*zip(start, end, strict=True), **style)


def _node(axes: Axes, x: float, y: float, text: str = "", strong: bool = True) -> None:
    """Draw a token's number; weak ones have no part in the last output."""
    ink = COLORS["ink" if strong else "muted"]
    fill = to_rgba(ink, FILL_ALPHA) if strong else "none"
    for facecolor, edgecolor in ((COLORS["paper"], "none"), (fill, ink)):
        colors = {"facecolor": facecolor, "edgecolor": edgecolor}
        axes.add_patch(Circle((x, y), RADIUS, linewidth=1, **colors))
    label(axes, x, y, text, size=9.5, color="ink" if strong else "muted")


@plt.style.context(STYLE_FILE)
def reach(felt: dict[str, Float[Tensor, "seq"]]) -> Figure:
    """Draw how strongly the last output depends on each input; nothing is drawn where it does not.

    Parameters
    ----------
    felt : dict
        Under the names of the layers, such as ``"attention"``, what :func:`mha.alternatives.felt` returns.
    """
    figure, axes = plt.subplots(figsize=(6.4, 3.0))
    axes.set_yscale("log")
    for name, gradient in felt.items():
        back = gradient.flip(0).double().numpy()
        places = np.flatnonzero(back)
        values = back[places] / back[0]
        _line(axes, name, places, values, markevery=max(1, len(places) // 12))
        end, gone = (places[-1], values[-1]), len(places)
        if gone == len(back):
            note(axes, word(name), end, xytext=(8, 0), va="center")
        else:
            x, upright = gone - 0.5, axes.get_xaxis_transform()
            stroke(axes, (x, x), (0, 0.9), transform=upright)
            text = word("nothing_from", name=word(name))
            note(axes, text, (x, 0), xytext=(6, 8), xycoords=upright)
    axes.yaxis.set_minor_locator(NullLocator())
    length = max(map(len, felt.values()))
    axes.set(xlim=(-1, 1.22 * length), xticks=range(0, length, 10))
    axes.spines["bottom"].set_bounds(-1, length - 1)
    axes.set(xlabel=word("tokens_back"), ylabel=word("felt_axis"))
    return figure


def _line(axes: Axes, name: str, xs: Sequence[float], ys: Sequence[float], **style) -> None:  # fmt: skip
    color, line, marker, fill = STYLES[name]
    style = {"markersize": 5, "linewidth": 1.5} | style
    axes.plot(
        xs, ys, color=COLORS[color], linestyle=line, marker=marker,
        markerfacecolor=COLORS[fill], **style,
    )  # fmt: skip


@plt.style.context(STYLE_FILE)
def costs(
    lengths: Sequence[int],
    flops: dict[str, Sequence[float]],
    seconds: dict[str, Sequence[float]],
) -> Figure:
    """Draw what each layer counts and what it takes, both as multiples of the convolution.

    Parameters
    ----------
    lengths : sequence of int
        Numbers of tokens.
    flops, seconds : dict
        Under the names of the layers, one number for each length.
    """
    figure, panels = plt.subplots(1, 2, figsize=(6.6, 3.0), sharey=True)
    for axes, values, title in zip(
        panels, (flops, seconds), ("counted", "timed"), strict=True
    ):
        for name, numbers in values.items():
            ratios = np.divide(numbers, values["convolution"])
            # Where two lines are one, small triangles lie inside large squares.
            style = SAME_LINE.get(name, {})
            _line(axes, name, lengths, ratios, **style)
        axes.set_title(word(title))
        logarithmic(axes, lengths, base=2)
        axes.set_xlabel(word("tokens_axis"))
    panels[0].set_ylabel(word("in_convolutions"))
    names = list(STYLES)
    handles = [panels[1].lines[list(seconds).index(name)] for name in names]
    figure.legend(handles, [word(name) for name in names], loc="outside upper center", ncols=3)  # fmt: skip
    return figure


@plt.style.context(STYLE_FILE)
def jobs(
    shares: dict[str, dict[str, Sequence[Sequence[float]]]],
    chances: dict[str, float],
    lengths: Sequence[int],
) -> Figure:
    """Draw which layer learns which job, one dot a seed: at the trained length, and at a longer one.

    Parameters
    ----------
    shares : dict
        ``shares[job][layer]``: for each seed its accuracies at the lengths, from 0 to 1.
    chances : dict
        What guessing reaches in each job.
    lengths : sequence of int
        The trained length, and the longer one.
    """
    figure, panels = plt.subplots(1, len(shares), figsize=(6.6, 2.5), sharey=True)
    for axes, (job, layers) in zip(panels, shares.items(), strict=True):
        axes.set_title(word(f"job_{job}"))
        for row, seeds in enumerate(layers.values()):
            stroke(axes, (0, 100), (row, row), "line")
            for number, fill in enumerate(("ink", "paper")):
                right = [round(100 * shares[number]) for shares in seeds]
                rows = row + 0.34 * number + np.linspace(-0.25, -0.09, len(seeds))
                axes.plot(right, rows, "o", markersize=4.5, color=COLORS["ink"], clip_on=False,
                          markerfacecolor=COLORS[fill], markeredgewidth=0.9)  # fmt: skip
        stroke(axes, [100 * chances[job]] * 2, (-0.5, len(layers) - 0.5), linestyle=DASHED)  # fmt: skip
        axes.set_yticks(range(len(layers)), labels=[word(name) for name in layers])
        axes.tick_params(axis="y", length=0, labelsize=10.5)
        axes.spines["left"].set_visible(False)
        axes.set(xlim=(0, 100), xticks=(0, 50, 100), ylim=(len(layers) - 0.5, -0.5))
    panels[len(panels) // 2].set_xlabel(word("right_percent"))
    ink = {"color": COLORS["ink"], "linestyle": "", "marker": "o", "markersize": 4.5}
    handles = [plt.Line2D([], [], markerfacecolor=COLORS[fill], **ink) for fill in ("ink", "paper")]  # fmt: skip
    names = [word(key, number=n) for key, n in zip(("trained_length", "longer"), lengths, strict=True)]  # fmt: skip
    handles.append(plt.Line2D([], [], color=COLORS["muted"], linewidth=0.9, linestyle=DASHED))  # fmt: skip
    figure.legend(handles, [*names, word("guessing")], loc="outside upper center", ncols=3)  # fmt: skip
    return figure


@plt.style.context(STYLE_FILE)
def team(reached: dict[str, Bool[Tensor, "read changed"]]) -> Figure:
    """Draw which heads a change of each head reaches.

    Parameters
    ----------
    reached : dict
        Under the keys of words, such as ``"in_this_layer"``, what ``head_influence`` returns.
    """
    figure, panels = plt.subplots(1, len(reached), figsize=(6.4, 2.6))
    for axes, (key, marks) in zip(panels, reached.items(), strict=True):
        rows, columns = marks.shape
        inks = np.array([to_rgba("none"), to_rgba(COLORS["muted"])])
        fill_cells(axes, 0, 0, 1, 1, inks[marks.int().numpy()], linewidth=0.8)
        axes.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal")
        axes.set_title(word(key), fontsize=10.5, loc="center")
        for axis, count in ((axes.xaxis, columns), (axes.yaxis, rows)):
            axis.set_ticks(np.arange(count) + 0.5, labels=map(str, range(count)))
            axis.set_tick_params(length=0)
            for head, tick in enumerate(axis.get_ticklabels()):
                tick.set(color=head_color(head), fontweight="bold")
        axes.set_xlabel(word("head_changed"))
    panels[0].set_ylabel(word("head_read"))
    return figure


PICTURES = (paths,)
