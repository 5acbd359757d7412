"""Pictures of chapter 8: who reads whose keys and values, how a cache fills, and what it takes."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ..kv_sharing import CachedModel, cache_bytes, kv_numbers_per_token
from ..palette import COLORS, head_color
from ..style import STYLE_FILE
from ..words import word
from .canvas import FILL_ALPHA, Point, arrow, box, canvas, cells, label
from .head_roles import DASHED, stroke

HEADS = 4  # of queries, in all diagrams
SIDE, STEP = 22, 28  # a head's box, and from one to the next
STEPS, PROMPT, ROOM, SLOT = 3, 4, 8, 34  # of the cache, the last a slot's width


def sharing() -> Figure:
    """Which keys and values each head reads, in four kinds of attention, and what is kept for a token."""
    figure, axes = canvas(466, 242)
    across, queries, stored = 118, 48, 154
    band = {"facecolor": COLORS["panel"], "edgecolor": "none", "zorder": -5}
    axes.add_patch(Rectangle((0, stored - 12), 466, 100, **band))
    kinds = {"MHA": 4, "GQA": 2, "MQA": 1, "MLA": 0}  # heads of keys and values
    for panel, (name, kv_heads) in enumerate(kinds.items()):
        left = 4 + across * panel
        middle = left + (STEP * (HEADS - 1) + SIDE) / 2
        label(axes, middle, 14, name, size=12, bold=True)
        text = word(f"sharing_{name.lower()}")
        label(axes, middle, 32, text, size=10, color="muted")
        xs = [left + STEP * head + SIDE / 2 for head in range(HEADS)]
        if kv_heads:
            group = HEADS // kv_heads
            for kv in range(kv_heads):
                members = range(kv * group, (kv + 1) * group)
                x = sum(xs[head] for head in members) / group
                for head in members:
                    ends = (xs[head], x), (queries + SIDE, stored)
                    _line(axes, *ends, head_color(head))
                _pair(axes, x, stored, head_color(kv) if group == 1 else "ink")
            text = word("kept_numbers", number=kv_numbers_per_token(kv_heads, 1))
        else:
            _latent(axes, xs, queries + SIDE, stored)
            text = word("kept_latent")
        for head, x in enumerate(xs):
            box(axes, x - SIDE / 2, queries, SIDE, SIDE, "$q$", color=head_color(head))
        label(axes, middle, stored + 53, text, size=13)
    label(axes, 233, stored + 76, word("kept_for_a_token"), size=10, color="muted")
    return figure


def _line(axes: Axes, xs: Point, ys: Point, color: str, width: float = 1.6, **style) -> None:  # fmt: skip
    style = {"linewidth": width, "zorder": 0.9, "solid_capstyle": "butt"} | style
    axes.plot(xs, ys, color=COLORS.get(color, color), **style)


def _pair(axes: Axes, x: float, top: float, color: str, *, made: bool = False) -> None:
    """Draw a key above a value around ``x``; those that are made for one step only have a dashed frame."""
    _frame(axes, x - SIDE / 2, top, SIDE, color, made)
    for text, y in (("$k$", 10), ("$v$", 26)):
        label(axes, x, top + y, text, size=11)


def _frame(axes: Axes, x: float, top: float, wide: float, color: str, made: bool = False) -> None:  # fmt: skip
    ink = COLORS.get(color, color)
    fill = "none" if made else to_rgba(ink, FILL_ALPHA)
    style = {"facecolor": fill, "edgecolor": ink, "linestyle": DASHED if made else "-"}
    axes.add_patch(Rectangle((x, top), wide, 34, linewidth=1.1, **style))


def _latent(axes: Axes, xs: Sequence[float], start: float, stored: float) -> None:
    """Draw a latent and a rotary key, and the keys and values that heads make of them."""
    left, top, bottom = xs[0] - SIDE / 2, start + 16, (start + 50, stored)
    for head, x in enumerate(xs):
        color = head_color(head)
        _line(axes, (x, x), (start, top), color)
        _line(axes, (x, left + 31), bottom, color)
        _line(axes, (x, left + 87), bottom, "muted", 0.9, linestyle=(0, (1.5, 2)))
        _pair(axes, x, top, color, made=True)
    for x, wide, text in ((0, 62, word("latent")), (68, 38, word("rotary_key"))):
        _frame(axes, left + x, stored, wide, "ink")
        label(axes, left + x + wide / 2, stored + 17, text, size=10)


def cache() -> Figure:
    """Three steps with a cache: one slot is written, all slots before it are read as they are."""
    left, top, down = 66, 46, 75
    figure, axes = canvas(466, 272)
    for x, name in ((384, word("slots_made")), (434, word("slots_read"))):
        label(axes, x, 10, name, size=10, color="muted")
    for step in range(STEPS):
        new, y = PROMPT + step, top + step * down
        end = left + (new + 1) * SLOT
        label(axes, 4, y + 12, word("step_number", number=step + 1), bold=True, align="left")  # fmt: skip
        query = left + (new + 0.5) * SLOT, y - 25
        for slot in range(new + 1):
            xs = query[0], left + (slot + 0.5) * SLOT
            _line(axes, xs, (query[1], y), "blue", 1)
        box(axes, query[0] - 10, query[1] - 10, 20, 20, "$q$", color="blue", size=12)
        places = [[str(slot) if slot <= new else "" for slot in range(ROOM)]]
        strength = [[0.18] * new + [0.85] + [0] * (ROOM - new - 1)]
        color = ["ink"] * new + ["blue"] + ["ink"] * ROOM
        cells(axes, left, y, places, width=SLOT, height=24, alpha=strength,
              color=lambda _, column, color=color: color[column])  # fmt: skip
        arrow(axes, (end, y + 38), (end, y + 26), color="ink")
        _code(axes, end + 6, y + 32, f"length = {new + 1}")
        label(axes, 384, y + 12, "1", size=12)
        label(axes, 434, y + 12, str(new + 1), size=12)
    keys = {4: ("kept", "ink", 0.18), 140: ("written", "blue", 0.85), 290: ("empty", "ink", 0)}  # fmt: skip
    for x, (name, color, alpha) in keys.items():
        cells(axes, x, 256, [[""]], width=14, height=12, color=color, alpha=alpha)
        label(axes, x + 20, 262, word(f"slot_{name}"), size=10, align="left")
    return figure


def repeat_order() -> Figure:
    """Which values four heads get from two: by ``repeat_interleave`` their own, by ``repeat`` others."""
    figure, axes = canvas(466, 186)
    values = torch.tensor([10, 20]).view(1, 2, 1, 1)  # (batch, kv_heads, key, d_v)
    right = values.repeat_interleave(2, dim=1).flatten().tolist()
    for left, got, code in (
        (4, right, "v.repeat_interleave(2, dim=1)"),
        (250, values.repeat(1, 2, 1, 1).flatten().tolist(), "v.repeat(1, 2, 1, 1)"),
    ):
        _code(axes, left, 14, code)
        _repeated(axes, left + 5, values.flatten().tolist(), got, right)
    return figure


def _repeated(axes: Axes, left: float, values: list[int], got: list[int], right: list[int]) -> None:  # fmt: skip
    """Draw what each head got below its name, and a line to the head of the values that it is from."""
    wide, step, top, below = 36, 56, 54, 130
    xs = [left + step * head + wide / 2 for head in range(HEADS)]
    places = {value: (xs[2 * kv] + xs[2 * kv + 1]) / 2 for kv, value in enumerate(values)}  # fmt: skip
    for head, x in enumerate(xs):
        own, good = head_color(head), got[head] == right[head]
        color, ink, mark = (own, "ink", "✓") if good else ("bad", "bad", "✗")
        name = word("head", number=head)
        label(axes, x, top - 12, name, size=10, color=own, bold=True)
        _line(axes, (x, places[got[head]]), (top + 28, below), color)
        box(axes, x - wide / 2, top, wide, 28, color=color)
        label(axes, x - 6, top + 14, str(got[head]), color=ink)
        label(axes, x + 11, top + 14, mark, color=ink)
    for kv, (value, x) in enumerate(places.items()):
        box(axes, x - wide / 2, below, wide, 28, str(value), size=11)
        label(axes, x, below + 42, word("kv_head", number=kv), size=10, color="muted")


def _code(axes: Axes, x: float, y: float, text: str) -> None:
    axes.text(x, y, text, color=COLORS["ink"], fontsize=10, family="DejaVu Sans Mono", va="center")  # fmt: skip


@plt.style.context(STYLE_FILE)
def sizes(models: dict[str, CachedModel], length: int) -> Figure:
    """Draw how much each model's cache takes for one sequence, beside keys and values of its own for each head.

    Parameters
    ----------
    models : dict
        ``MODELS`` of :mod:`mha.kv_sharing`, or others.
    length : int
        Number of tokens.
    """
    figure, axes = plt.subplots(figsize=(6.5, 0.48 * len(models) + 0.8))
    reached = []
    for row, model in enumerate(models.values()):
        numbers = kv_numbers_per_token(model.num_heads, model.d_k)
        kept = cache_bytes(model.num_layers, model.numbers_per_token, length)
        full = cache_bytes(model.num_layers, numbers, length)
        reached += kept, full
        stroke(axes, (kept, full), (row, row), linewidth=1.4)
        text = size(kept)
        if full != kept:
            style = {"color": COLORS["ink"], "markerfacecolor": COLORS["paper"]}
            axes.plot(full, row, "o", markersize=7, **style)
            text = word("kept_of_all", kept=text, all=size(full), factor=f"{full / kept:.3g}")  # fmt: skip
        axes.plot(kept, row, "o", markersize=7, color=COLORS["ink"])
        _beside(axes, text, max(kept, full), row)
    _rows(axes, list(models))
    axes.set_xscale("log", base=2)
    low = 2 ** (min(reached).bit_length() - 2)
    ticks = [low * 8**power for power in range(12) if low * 8**power <= max(reached)]
    axes.set_xticks(ticks, labels=[size(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(low, 1.2 * max(reached))
    axes.set_xlabel(word("cache_axis", number=f"{length:,}"))
    return figure


def _rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), labels=names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0, labelsize=10.5)
    axes.spines["left"].set_visible(False)


def _beside(axes: Axes, text: str, x: float, row: int) -> None:
    style = {"textcoords": "offset points", "va": "center", "fontsize": 10}
    axes.annotate(text, (x, row), xytext=(6, 0), **style)


def size(nbytes: float) -> str:
    """Return a number of bytes with up to three digits, in the largest unit that is not greater."""
    units = ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1)
    unit, scale = next((u, s) for u, s in units if nbytes >= s or s == 1)
    number = nbytes / scale
    return f"{number:.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"


@plt.style.context(STYLE_FILE)
def steps(
    names: Sequence[str],
    nbytes: Sequence[int],
    seconds: Sequence[tuple[float, float]],
) -> Figure:
    """Draw what the cache takes and how long a step lasts, one row for each kind of attention.

    Parameters
    ----------
    names : sequence of str
        From the row above to the last one, such as ``["MHA", "GQA", "MQA", "MLA"]``.
    nbytes : sequence of int
        ``KVCache.nbytes`` of each.
    seconds : sequence of tuple
        Time of one step, after one token and with the full cache; drawn as parts of the first kind's.
    """
    inches = 6.5, 0.42 * len(names) + 0.85
    figure, (left, right) = plt.subplots(1, 2, figsize=inches, sharey=True)
    for row, nbyte in enumerate(nbytes):
        left.barh(row, nbyte / 2**20, 0.6, color=COLORS["muted"])
        _beside(left, size(nbyte), nbyte / 2**20, row)
    unit = seconds[0][1]
    for row, (without, whole) in enumerate(seconds):
        start, end = min(without, whole) / unit, whole / unit
        outline = {"color": "none", "edgecolor": COLORS["muted"], "linewidth": 1}
        right.barh(row, start, 0.6, **outline)
        right.barh(row, end - start, 0.6, start, color=COLORS["muted"])
        _beside(right, f"{end:.2f}", end, row)
    right.set_xticks((0, 0.5, 1))
    left.set_xlabel(word("cache_mib"))
    right.set_xlabel(word("time_of_step_relative", name=names[0]))
    for axes, most in (
        (left, max(nbytes) / 2**20),
        (right, max(whole for _, whole in seconds) / unit),
    ):
        axes.set_xlim(0, 1.3 * most)
        _rows(axes, names)
    return figure


PICTURES = (sharing, cache, repeat_order)
