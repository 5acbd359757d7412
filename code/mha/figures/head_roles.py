"""Pictures of chapter 7: what heads look at, which roles they fill, and how one is cut out."""

from collections.abc import Sequence
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from ..head_ablation import Head
from ..head_roles import HeldOut
from ..palette import COLORS
from ..plotting import draw_weights, fill_cells
from ..style import STYLE_FILE
from ..words import word
from .canvas import FILL_ALPHA, Point, canvas, label

# Heads that keep their colour through the chapter; all others are drawn in ink.
HEADS = {(0, 2): "vermilion", (3, 1): "blue", (2, 8): "pink", (1, 10): "green"}
STEPS = 10  # of a scale of opacity from 0 to 1, so that a map is few shapes
DASHED = (0, (4, 2.5))
RULES = {
    "always [CLS]": "rule_always_cls",
    "nearest noun": "rule_nearest_noun",
    "first noun": "rule_first_noun",
}


def first_look(
    tokens: Sequence[str],
    weights: Float[Tensor, "layers heads query key"],
    finds: dict[Head, str],
    asked: tuple[str, str] = ("it", "kitten"),
) -> Figure:
    """Draw up to four heads' weights for one sentence, each beside what it finds.

    Parameters
    ----------
    tokens, weights
        As ``MiniLM.look`` returns them.
    finds : dict
        The heads to draw and the role of each, such as ``{(0, 2): "previous"}``.
    asked : tuple of str
        The query and the key whose weight is framed.
    """
    cell, top = 9.4, 22
    side = cell * len(tokens)
    lefts, step = (44, 60 + side), side + 24
    width, height = lefts[1] + side + 62, top + step + side + 50
    figure, axes = canvas(width, height)
    row, column = map(tokens.index, asked)
    for number, (head, role) in enumerate(finds.items()):
        left, above = lefts[number % 2], top + step * (number // 2)
        place = left / width, 1 - (above + side) / height, side / width, side / height
        with plt.style.context(STYLE_FILE):
            panel = figure.add_axes(place)
            draw_weights(panel, _in_steps(weights[head]), tokens, tokens)
        panel.tick_params(labelsize=9, pad=2, left=False, bottom=False)
        panel.tick_params(
            labelleft=number % 2 == 0, labelbottom=number + 2 >= len(finds)
        )
        _frame(panel, column - 0.5, row - 0.5, 1)
        x = left if number % 2 else 4
        for dx, text, color in (
            (0, _name(head), _color(head)),
            (106, word(f"finds_{role}"), "ink"),
        ):
            label(axes, x + dx, above - 12, text, color=color, size=10.5, align="left",
                  bold=not dx)  # fmt: skip
    x, strengths = lefts[1] + side + 16, np.linspace(1, 0, STEPS + 1)[:, None]
    _cells(axes, x, top, (11, 100 / len(strengths)), strengths, "blue")
    for text, at in (("1", 5), ("0.5", 50), ("0", 95)):
        label(axes, x + 15, top + at, text, size=9, align="left")
    name = {"rotation": 90, "ha": "center", "va": "top", "color": COLORS["ink"]}
    axes.text(x + 6, top + 106, word("attention_weight"), fontsize=10, **name)
    y = top + step + 50
    _frame(axes, x + 1, y, cell)
    for line, text in enumerate((f"{asked[0]} →", asked[1])):
        label(axes, x + 15, y + 5 + 13 * line, text, size=9.5, align="left", math=False)
    return figure


def _in_steps(shares: Tensor) -> np.ndarray:
    """Return numbers from 0 to 1, each the nearest of a few steps."""
    return (shares.double().numpy() * STEPS).round() / STEPS


def _name(head: Head) -> str:
    return word("layer_and_head", layer=head[0], head=head[1])


def _color(head: Head) -> str:
    return HEADS.get(head, "ink")


def _frame(
    axes: Axes, x: float, y: float, side: float, color: str = "ink", width: float = 1.4
) -> None:
    frame = {"facecolor": "none", "edgecolor": COLORS[color], "linewidth": width}
    axes.add_patch(Rectangle((x, y), side, side, **frame, zorder=3, clip_on=False))


def _cells(
    axes: Axes, x: float, y: float, cell: Point, shares: np.ndarray, color: str
) -> None:
    """Draw a grid of cells whose opacity is a share."""
    inks = np.tile(np.array(to_rgba(COLORS[color])), (*shares.shape, 1))
    inks[..., 3] = shares
    fill_cells(axes, x, y, *cell, inks, linewidth=0.4)


def roles(
    scores: dict[str, Float[Tensor, "layers heads"]], found: dict[str, HeldOut]
) -> Figure:
    """Draw all heads' hit rates, one small map a role, each with its chosen head and its best rule.

    Parameters
    ----------
    scores : dict
        For each of up to eight roles, how often each head's largest weight is at a right word.
    found : dict
        For each role, what ``held_out`` returns.
    """
    cell, across, step = 11, 150, 124
    figure, axes = canvas(24 + 3 * across, 3 * step + 8)
    for number, (role, rates) in enumerate(scores.items()):
        left, top = 24 + across * (number % 3), 50 + step * (number // 3)
        layers, heads = rates.shape
        _cells(axes, left, top, (cell, cell), _in_steps(rates), "ink")
        label(axes, left, top - 41, word(f"role_{role}"), bold=True, align="left")
        head_rate, rule_rate = (
            f"{hits.double().mean().item():.2f}"
            for hits in (found[role].head_hits, found[role].rule_hits)
        )
        label(axes, left, top - 26, head_rate, size=10, align="left")
        text = f"{rule_rate}  {_rule(found[role].rule)}"
        label(axes, left, top - 11, text, size=10, color="muted", align="left")
        for place, head in enumerate(dict.fromkeys(found[role].heads)):
            x, y = left + head[1] * cell, top + head[0] * cell
            _frame(axes, x - 0.5, y - 0.5, cell + 1, "paper", 4)
            _frame(axes, x - 1.5, y - 1.5, cell + 3, _color(head), 2)
            label(axes, left + 30 + 40 * place, top - 26, str(head), size=10,
                  color=_color(head), align="left")  # fmt: skip
        if number % 3 == 0:
            for layer in range(layers):
                label(axes, left - 7, top + (layer + 0.5) * cell, str(layer), size=9)
        if number + 3 >= len(scores):
            for head in range(0, heads, 2):
                x = left + (head + 0.5) * cell
                label(axes, x, top + layers * cell + 8, str(head), size=9)
    _key_to_roles(axes, 24 + across * 2, 50 + 2 * step, cell)
    return figure


def _rule(name: str) -> str:
    """Return what a rule of ``rule_hits`` is called in the book's language."""
    if name in RULES:
        return word(RULES[name])
    return word("rule_offset", offset=name.replace("-", "−"))


def _key_to_roles(axes: Axes, left: float, top: float, cell: float) -> None:
    """Say what colours, frames and numbers of the maps mean."""
    strengths, wide = np.linspace(0, 1, STEPS + 1)[None], 132
    _cells(axes, left, top - 16, (wide / strengths.size, cell), strengths, "ink")
    for x, text, align in ((3, "0", "left"), (wide - 3, "1", "right")):
        label(axes, left + x, top - 24, text, size=9, align=align)
    label(axes, left + wide / 2, top - 24, word("hit_rate"), size=10)
    _frame(axes, left + 1, top + 9, cell + 3, width=2)
    for y, name, color in (
        (15, "chosen_head", "ink"),
        (30, "on_one_half", "ink"),
        (45, "on_the_other", "ink"),
        (64, "best_rule", "muted"),
    ):
        label(axes, left + 24, top + y, word(name), size=10, color=color, align="left")


@plt.style.context(STYLE_FILE)
def pairs(shares: Float[Tensor, "pairs 2"], head: Head) -> Figure:
    """Draw how a head divides a pronoun's weight between two nouns, before and after one word is exchanged.

    Parameters
    ----------
    shares : Tensor
        ``(pairs, 2)``: the share of the noun that is right in the first sentence, in the first sentence and in the
        second, as ``pair_preferences`` returns them for one head.
    head : tuple
        The layer and the head.
    """
    figure, axes = plt.subplots(figsize=(4.6, 4.6))
    x, y = shares.double().numpy().T
    axes.add_patch(Rectangle((0.5, 0), 0.5, 0.5, facecolor=COLORS["panel"], zorder=0))
    for ends in (((0.5, 0.5), (0, 1)), ((0, 1), (0.5, 0.5))):
        stroke(axes, *ends, "line")
    stroke(axes, (0, 1), (0, 1), linestyle=DASHED)
    text = word("exchange_changes_nothing")
    style = {"fontsize": 10, "linespacing": 1.3, "va": "top"}
    axes.text(0.015, 0.95, text, color=COLORS["muted"], **style)
    style = {"alpha": 0.8, "markeredgewidth": 0, "clip_on": False}
    axes.plot(x.round(3), y.round(3), "o", color=COLORS[_color(head)], **style)
    for right, up, name in (
        (0, 1, "wrong_both_times"),
        (1, 1, "first_noun_both_times"),
        (0, 0, "second_noun_both_times"),
        (1, 0, "right_both_times"),
    ):
        number = int((((x > 0.5) == right) & ((y > 0.5) == up)).sum())
        text = word(name, number=number, all=len(x))
        x_text = 0.515 if right else 0.015 if up else 0.06  # not on the diagonal
        axes.text(x_text, 1.01 if up else 0.015, text, fontsize=10)
    axes.set_title(_name(head), color=COLORS[_color(head)], fontweight="bold", pad=22)
    axes.set(xlabel=word("first_share"), ylabel=word("second_share"), aspect="equal")
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
    return figure


def note(
    axes: Axes, text: str, place: tuple[float, float], color: str = "ink", **style
) -> None:
    """Write ``text`` at a place of the data, some points aside."""
    style = {"textcoords": "offset points", "linespacing": 1.3, "fontsize": 10} | style
    axes.annotate(text, place, color=COLORS[color], annotation_clip=False, **style)


def stroke(
    axes: Axes, xs: Sequence[float], ys: Sequence[float], color: str = "muted", **style
) -> None:
    """Draw a line that is no measurement."""
    style = {"linewidth": 0.9, "zorder": 1, "solid_capstyle": "butt"} | style
    axes.plot(xs, ys, color=COLORS[color], **style)


def pruning(width: int = 384, num_heads: int = 12, gone: Head = (0, 2)) -> Figure:
    """One head's part of the four projections: set to zero in the last one, or cut out of all of them."""
    unit, across, down, left, top = 5.5, 88, 99, 116, 30
    figure, axes = canvas(left + 4 * across - 12, top + 3 * down - 8)
    d_k, side, start = width // num_heads, unit * num_heads, unit * gone[1]
    color = COLORS[_color(gone)]
    filled = {"facecolor": to_rgba(COLORS["ink"], FILL_ALPHA), "edgecolor": "none"}
    framed = {"facecolor": "none", "edgecolor": COLORS["ink"], "linewidth": 1.1}
    cut = {"edgecolor": color, "linewidth": 1.1, "linestyle": DASHED}
    for row, way in enumerate(("whole", "masked", "pruned")):
        y, rest = top + row * down, width - d_k if way == "pruned" else width
        label(axes, 4, y + 12, word(way), bold=True, align="left")
        notes = word(f"{way}_note", number=f"{4 * width * rest:,}").split("\n")
        for line, text in enumerate(notes):
            label(axes, 4, y + 30 + 15 * line, text, size=10, color="muted", align="left")  # fmt: skip
        for column, name in enumerate("qkvo"):
            x, last = left + column * across, name == "o"
            # In W_o a head has columns, in the others rows.
            part = partial(_part, axes, x, y, side, upright=last)
            for style in (filled, framed):
                part(0, side * rest / width, **style)
            if way == "pruned":
                part(start, 0, **cut)
            elif way == "masked" and last:
                part(start, unit, facecolor=COLORS["paper"], **cut)
                label(axes, x + start + unit / 2, y - 7, "0", size=9, color=color)
            else:
                part(start, unit, facecolor=color)
            if row == 0:
                label(axes, x + side / 2, y - 16, f"$W_{name}$", size=12)
            shape = f"{width} × {rest}" if last else f"{rest} × {width}"
            ink = "ink" if way == "pruned" else "muted"
            label(axes, x, y + side + 11, shape, size=9.5, color=ink, align="left")
    text = word("head", number=gone[1])
    label(axes, left - 6, top + start + unit / 2, text, size=10, color=color, align="right")  # fmt: skip
    return figure


def _part(
    axes: Axes, x: float, y: float, side: float, begin: float, length: float, *, upright: bool, **style,
) -> None:  # fmt: skip
    """Draw some rows of a square, or with ``upright`` some of its columns."""
    place = (x + begin, y) if upright else (x, y + begin)
    size = (length, side) if upright else (side, length)
    axes.add_patch(Rectangle(place, *size, **style))


PICTURES = (pruning,)
