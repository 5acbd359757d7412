"""Pictures of chapter 6: how to time, and what the recorded devices showed."""

import itertools
import math
import textwrap
from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Polygon, Rectangle
from matplotlib.ticker import NullFormatter, NullLocator

from ..palette import COLORS
from ..recordings import Record, load_records
from ..style import STYLE_FILE
from ..timing import Timing, compare
from ..words import word
from .canvas import Point, arrow, box, canvas, label

CALLS, SLOWER = 8, 1.02  # of each function, on the machine that becomes slower

# How each variant is drawn: colour, line, marker, and the colour that fills the marker.
QUICK, OTHER = ("ink", "-", "o", "ink"), ("ink", "--", "s", "paper")
STYLES = {
    "fused": QUICK, "cached": QUICK, "batched": OTHER, "readable": OTHER,
    "projected again": OTHER, "loop": ("muted", ":", "^", "muted"),
    "ring": ("muted", "", "o", "none"),
}  # fmt: skip
# What is drawn of each series; the first that a device has is what its others are compared with.
CHOICES = {
    "compile": ("fused", "readable", "readable, compiled", "fused, compiled"),
    "weights": ("without", "with"),
    "training": ("without", "with"),
    "mask": ("none", "is_causal", "mask"),
    "dtype": ("float32", "bfloat16", "float16"),
    "backend": ("flash", "math", "efficient", "cudnn"),
}
# PyTorch's own names, the same in every language.
IDENTIFIERS = ("is_causal", *CHOICES["dtype"], *CHOICES["backend"])
DASHED, DOTTED = (0, (4, 2.5)), (0, (1, 2))
THIN = 0.9  # a line that is no measurement


def launches() -> Figure:
    """What the CPU asks for and when the GPU does it, with a stopwatch that stops too early and a right one."""
    figure, axes = canvas(468, 226)
    cpu, gpu, high, begin, asked, done = 98, 158, 28, 60, 192, 440
    for y, stop, name, mark, color in (
        (30, done, "stopwatch_right", "✓ ", "ink"),
        (72, asked, "stopwatch_wrong", "✗ ", "bad"),
    ):
        xs, ys = (begin, begin, begin, stop, stop, stop), (-5, 5, 0, 0, -5, 5)
        _stroke(axes, xs, [y + dy for dy in ys], color, linewidth=1.6)
        text = mark + word(name)
        label(axes, begin, y - 15, text, size=10.5, color=color, bold=True, align="left")  # fmt: skip
    for y, name in ((cpu + high / 2, "cpu"), (gpu + high / 2, "gpu")):
        label(axes, 48, y, word(name), align="right", bold=True)
        _stroke(axes, (begin, 464), (y, y))
    _stroke(axes, (asked, asked), (72, cpu), "bad", linestyle=DOTTED)
    _stroke(axes, (done, done), (30, gpu + high), "ink", linestyle=DOTTED)
    axes.add_patch(
        Rectangle((asked + 4, cpu), done - asked - 4, high, facecolor=COLORS["paper"],
                  edgecolor=COLORS["muted"], linestyle=DASHED, linewidth=1.1)
    )  # fmt: skip
    label(axes, (asked + done) / 2, cpu + high / 2, word("cpu_waits"), size=10.5)
    for number in range(3):
        left, start = begin + 44 * number, 126 + 99 * number
        name = word("kernel_number", number=number + 1)
        box(axes, left, cpu, 44, high, word("launch"), size=10)
        box(axes, start, gpu, 99, high, name, size=10.5, alpha=0.3)
        arrow(axes, (left + 22, cpu + high + 1), (start + 6, gpu - 2), width=1, head=8)
    for x, y in ((117, gpu + high / 2), (432, gpu + high / 2)):
        corners = [(x - 7, y), (x, y - 9), (x + 7, y), (x, y + 9)]
        axes.add_patch(Polygon(corners, color=COLORS["ink"]))
        label(axes, x, gpu + high + 10, word("event"), size=10.5)
    arrow(axes, (238, 214), (308, 214))
    label(axes, 232, 214, word("time"), size=10.5, color="muted", align="right")
    return figure


class _Tiring:
    """The clock of a machine that needs ``SLOWER`` times as long for each call as for the one before."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    def start(self) -> None:
        """There is nothing to wait for."""

    def stop(self) -> float:
        """Return the time of one more call; the first takes 1."""
        self.taken.append(SLOWER ** len(self.taken))
        return self.taken[-1]


@plt.style.context(STYLE_FILE)
def turns() -> Figure:
    """Two equal functions on a machine that becomes slower: timed one after the other, and in turn."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.6, 2.9), sharey=True)
    functions, x = {"A": torch.clone, "B": torch.clone}, torch.zeros(1)
    after, in_turn = _Tiring(), _Tiring()
    apart: dict[str, Timing] = {}
    for name, function in functions.items():
        apart |= compare({name: function}, x, repeats=CALLS, clock=after)
    together = compare(functions, x, repeats=CALLS, clock=in_turn)
    _calls(left, "one_after_the_other", after, apart, "✗ ", "bad")
    _calls(right, "in_turn", in_turn, together, "✓ ", "ink")
    left.set(ylabel=word("time_of_a_call"), ylim=(0.97, 1.47))
    text = word("median_of", name="A")
    _beside(left, text, (2 * CALLS, apart["A"].median), "NW", "muted")
    _beside(left, word("median_of", name="B"), (-1, apart["B"].median), "NE", "muted")
    _beside(right, word("medians"), (-1, together["B"].median), "NE", "muted")
    return figure


def _calls(
    axes: Axes, title: str, clock: _Tiring, timings: dict[str, Timing], mark: str, color: str,
) -> None:  # fmt: skip
    """Draw two functions' calls in their order, their medians, and the ratio of these."""
    names = [""] * len(clock.taken)
    for (name, timing), style in zip(timings.items(), (QUICK, OTHER), strict=True):
        ink, line, marker, fill = style
        calls = [clock.taken.index(sample) for sample in timing.samples]
        axes.plot(calls, timing.samples, marker, color=COLORS[ink], markerfacecolor=COLORS[fill])  # fmt: skip
        ends = (-0.5, len(names) - 0.5), (timing.median, timing.median)
        _stroke(axes, *ends, linestyle=line, linewidth=1.3)
        for call in calls:
            names[call] = name
    ratio = timings["B"].median / timings["A"].median
    text = mark + word("ratio_of_medians", ratio=f"{ratio:.2f}")
    _corner(axes, text, color=COLORS[color], fontweight="bold")
    axes.set(title=word(title), xlabel=word("calls"))
    axes.set_xticks(range(len(names)), labels=names)


@plt.style.context(STYLE_FILE)
def heads(records: Sequence[Record] | None = None) -> Figure:
    """Time against the number of heads at equal width: a loop, one batched product, the fused kernel."""
    figure, parts = _devices(records, 2.9)
    for record, part in parts:
        runs = _runs(record, "heads")
        at = sorted({run["length"] for run in runs})
        (panels,), ends = part.subplots(1, len(at), sharey=True, squeeze=False), []
        for axes, length in zip(panels, at, strict=True):
            here = {
                name: [r for r in runs if (r["variant"], r["length"]) == (name, length)]
                for name in ("loop", "batched", "fused")
            }
            scale = 1 / here["fused"][0]["median"]
            ends.append({n: _line(axes, r, "heads", scale) for n, r in here.items()})
            logarithmic(axes, [run["heads"] for run in here["fused"]], base=2)
            axes.set_yticks([1, 2, 4, 6], labels=["1", "2", "4", "6"])
            _corner(axes, word("tokens", number=length))
            axes.set_xlabel(word("number_of_heads"))
        panels[0].set_ylabel(word("time_in_fused"))
        # Only now, for the panels share their scale.
        for axes, named in zip(panels, ends, strict=True):
            _name_ends(axes, named)
    return figure


def _name_ends(axes: Axes, ends: dict[str, Point]) -> None:
    """Write each line's name at its end; names that would overlap are moved apart."""
    to, gap = axes.transData, 14 * axes.figure.dpi / 72
    at = {name: to.transform(end)[1] for name, end in ends.items()}
    for low, high in list(itertools.pairwise(sorted(at, key=at.get))) * 20:
        overlap = max(gap - at[high] + at[low], 0)
        at[low], at[high] = at[low] - overlap / 2, at[high] + overlap / 2
    for name, (x, _) in ends.items():
        y = to.inverted().transform((0, at[name]))[1]
        _beside(axes, _name(name), (x, y), "E", STYLES[name][0])


@plt.style.context(STYLE_FILE)
def lengths(records: Sequence[Record] | None = None) -> Figure:
    """Time and peak memory against the number of tokens, with the table of weights and without it."""
    figure, parts = _devices(records, 3.3)
    for record, part in parts:
        left, right = part.subplots(1, 2)
        for axes, value, scale in ((left, "median", 1e3), (right, "peak_bytes", 1e-6)):
            ends = {}
            for name in ("readable", "fused"):
                runs = _runs(record, "length", name)
                ends[name] = _line(axes, runs, "length", scale, value)
                _beside(axes, _name(name), ends[name], "NW")
            if axes is left:
                start, _ = _guide(axes, ends["fused"], 2, 8)
                _beside(axes, word("times_four"), start, "SE", "muted")
            else:
                for power, end in zip((2, 1), ends.values(), strict=True):
                    _, end = _guide(axes, end, power, 4)
                    _beside(axes, f"×{2**power}", end, "E", "muted")
            logarithmic(axes, [run["length"] for run in runs])
            axes.set_xlabel(word("tokens_axis"))
        left.set_ylabel(word("time_axis"))
        right.set_ylabel(word("memory_axis"))
        low, high = left.get_ylim()
        left.set_ylim(low, high)
        # Where both terms of the FLOPs are equal.
        xs, ys = [2 * runs[0]["d_model"]] * 2, (low, math.sqrt(low * high))
        _stroke(left, xs, ys, linestyle=DOTTED)
        _beside(left, word("equal_terms"), (xs[1], ys[1]), "NW", "muted")
    return figure


def _guide(axes: Axes, end: Point, power: int, across: float) -> tuple[Point, Point]:
    """Draw, below a line's end, how it would grow with a power of the length; return both ends."""
    (x, y), down = end, 0.5
    xs, ys = (x / across, x), (down * y / across**power, down * y)
    _stroke(axes, xs, ys)
    return (xs[0], ys[0]), (xs[1], ys[1])


@plt.style.context(STYLE_FILE)
def roofline(records: Sequence[Record] | None = None) -> Figure:
    """What a device can reach at best for each number of FLOPs a byte, and what attention reached."""
    figure, parts = _devices(records, 3.8)
    for record, part in parts:
        axes, peak = part.subplots(), record["peak"]
        best, moved = peak["flops_per_second"]["float32"], peak["bytes_per_second"]
        scale, prefix = (1e-12, "T") if best >= 1e12 else (1e-9, "G")
        unit, best, moved = f"{prefix}FLOP/s", best * scale, moved * scale
        xs = 0.2, best / moved, 3000
        _stroke(axes, xs, (xs[0] * moved, best, best), "ink", linewidth=3)
        text = word("roof_flat", speed=f"{best:.3g} {unit}")
        _beside(axes, text, (xs[-1], best), "NW")
        text = word("roof_slanted", speed=f"{moved:.3g} {prefix}B/s")
        _beside(axes, text, (0.8, 0.8 * moved), "SE")
        for series, name, key, side in (
            ("length", "readable", "roof_points", "S"),
            ("length", "fused", "roof_points", "S"),
            ("decode", "cached", "roof_steps", "E"),
        ):
            runs = _runs(record, series, name)
            xs = [run["flops"] / run["bytes"] for run in runs]
            ys = [run["flops"] / run["median"] * scale for run in runs]
            _join(axes, name, xs, ys, linewidth=THIN)
            _join(axes, "ring", xs[:1], ys[:1], markersize=12)
            # Below the lowest point, the last one, or beside the middle.
            y = {"readable": min(ys), "fused": ys[-1], "cached": math.sqrt(min(ys) * max(ys))}  # fmt: skip
            text = word(key, name=_name(name), number=runs[-1]["length"])
            _beside(axes, text, (xs[-1], y[name]), side)
        text = word("ring", number=runs[0]["length"])
        _corner(axes, text, x=0.98, y=0.1, ha="right", color=COLORS["muted"])
        logarithmic(axes)
        axes.set(xlabel=word("flops_a_byte"), ylabel=word("achieved", unit=unit))
    return figure


@plt.style.context(STYLE_FILE)
def choices(records: Sequence[Record] | None = None) -> Figure:
    """How long each choice takes, compared with another of its group, one column a device."""
    records = load_records() if records is None else records
    rows = [(series, name) for series, names in CHOICES.items() for name in names]
    figure, (panels,) = plt.subplots(
        1, len(records), figsize=(6.6, 4.2), sharey=True, squeeze=False
    )
    reached, references = [1.0], {series: [] for series in CHOICES}
    for axes, record in zip(panels, records, strict=True):
        runs = {(run["series"], run["variant"]): run for run in record["runs"]}
        missing = {(entry["series"], entry["variant"]) for entry in record["skipped"]}
        for row, (series, name) in enumerate(rows):
            first = next(n for n in CHOICES[series] if (series, n) in runs)
            if name == CHOICES[series][0]:  # its row holds the title of the group
                references[series].append(_name(first))
            elif (series, name) in runs:
                run, one = runs[series, name], runs[series, first]["median"]
                reached += _dot(axes, row, run["median"] / one, run["spread"] / one / 2)  # fmt: skip
            elif (series, name) in missing:
                text = word("skipped" if len(records) == 1 else "skipped_short")
                _beside(axes, text, (1, row), "E", "muted", 9)
        _stroke(axes, (1, 1), (-0.6, len(rows) - 0.5))
        _beside(axes, word("as_fast"), (1, -1), "", "muted", 10)
        axes.set_title(_device(record, 48 // len(records)))
    low, high = min(reached), max(reached)
    margin = (high / low) ** (0.14 * len(records))  # for the numbers beside the dots
    wide = (0.03, 0.1, 0.3, 1, 3, 10, 30)
    steps = wide if high > 6 * low else (0.5, 0.7, 1, 1.5, 2, 3)
    for axes in panels:
        logarithmic(axes, [step for step in steps if low / 1.1 < step < high * 1.1])
        axes.set(yscale="linear", xlim=(low / margin, high * margin))
        axes.set_ylim(len(rows) - 0.5, -1.5)
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0, pad=130)
        for text in axes.texts:
            text.set_in_layout(False)
    texts = []
    for series, name in rows:
        known = " / ".join(dict.fromkeys(references[series]))
        title = word("choice_and_reference", choice=word(f"choice_{series}"), reference=known)  # fmt: skip
        texts.append(title if name == CHOICES[series][0] else "    " + _name(name))
    panels[0].set_yticks(range(len(rows)), labels=texts, ha="left")
    for tick in panels[0].get_yticklabels():
        tick.set_color(COLORS["ink" if tick.get_text().startswith(" ") else "muted"])
    figure.supxlabel(word("time_in_reference"), x=0.99, ha="right", fontsize=11)
    return figure


def _dot(axes: Axes, row: int, ratio: float, half: float) -> Point:
    """Draw a ratio and its spread, the number on the side away from 1; return from where to where it reaches."""
    axes.errorbar(ratio, row, xerr=half, fmt="o", color=COLORS["ink"], elinewidth=1.3)
    text = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
    end, side = (ratio - half, "W") if ratio < 1 else (ratio + half, "E")
    _beside(axes, text, (end, row), side, size=10)
    return ratio - half, ratio + half


@plt.style.context(STYLE_FILE)
def decoding(records: Sequence[Record] | None = None) -> Figure:
    """The time of one step against the number of keys: from a cache, or with all keys projected again."""
    figure, parts = _devices(records, 3.3, across=2)
    for record, part in parts:
        axes = part.subplots()
        for name in ("cached", "projected again"):
            runs = _runs(record, "decode", name)
            end = _line(axes, runs, "length", 1e3)
            _beside(axes, _name(name), end, "NW")
        logarithmic(axes, [run["length"] for run in runs])
        axes.set(xlabel=word("keys_axis"), ylabel=word("time_of_a_step"))
    return figure


def _devices(
    records: Sequence[Record] | None, height: float, across: int = 1
) -> tuple[Figure, list[tuple[Record, SubFigure]]]:
    """Return a figure, and each record with its part of the figure, under the device's name."""
    records = load_records() if records is None else records
    across = min(across, len(records))
    down = math.ceil(len(records) / across)
    figure = plt.figure(figsize=(6.6, height * (1 if down == 1 else 0.85 * down)))
    parts = figure.subfigures(down, across, squeeze=False).flat
    named = list(zip(records, parts, strict=False))
    for record, part in named:
        part.suptitle(_device(record, 72 // across), x=0.01, ha="left", fontsize=11)
    return figure, named


def _device(record: Record, width: int) -> str:
    """Return what a device is called, in lines of ``width`` letters."""
    name = record["device"]
    if record["kind"] == "cpu":
        name = word("device_and_threads", device=name, threads=record["threads"])
    return textwrap.fill(name, width)


def _runs(record: Record, series: str, variant: str | None = None) -> list[Record]:
    """Return the runs of a series, or of one of its variants."""
    runs = [run for run in record["runs"] if run["series"] == series]
    return [run for run in runs if variant in (None, run["variant"])]


def _name(variant: str) -> str:
    """Return a variant's name in the language of the book."""
    if variant in IDENTIFIERS:
        return variant
    return word("variant_" + variant.replace(",", "").replace(" ", "_"))


def _line(
    axes: Axes, runs: list[Record], x: str, scale: float, y: str = "median"
) -> Point:
    """Draw a variant's line, times with their spread, and return its end."""
    xs, ys = [run[x] for run in runs], [run[y] * scale for run in runs]
    bars = [run["spread"] * scale / 2 for run in runs] if y == "median" else None
    _join(axes, runs[0]["variant"], xs, ys, yerr=bars)
    return xs[-1], ys[-1]


def _join(axes: Axes, variant: str, *points: Sequence[float], **style: object) -> None:
    """Draw a variant's points, joined in their order."""
    color, line, marker, fill = STYLES[variant]
    axes.errorbar(
        *points, color=COLORS[color], linestyle=line, marker=marker,
        markerfacecolor=COLORS.get(fill, fill), **{"linewidth": 1.6, "elinewidth": 1.3} | style,
    )  # fmt: skip


def _stroke(
    axes: Axes, xs: Sequence[float], ys: Sequence[float], color: str = "muted", **style
) -> None:
    """Draw a line that is no measurement, below those that are."""
    style = {"linewidth": THIN, "zorder": 1, "solid_joinstyle": "miter"} | style
    axes.plot(xs, ys, color=COLORS[color], **style)


def _beside(
    axes: Axes, text: str, place: Point, side: str, color: str = "ink", size: float = 10.5,
) -> None:  # fmt: skip
    """Write ``text`` beside a place of the data; ``side`` is a point of the compass, such as "NW"."""
    across, up = ("E" in side) - ("W" in side), ("N" in side) - ("S" in side)
    axes.annotate(
        text, place, xytext=(8 * across, (4 if across else 8) * up), color=COLORS[color],
        textcoords="offset points", ha=("center", "left", "right")[across],
        va=("center", "bottom", "top")[up], fontsize=size, annotation_clip=False,
    )  # fmt: skip


def _corner(axes: Axes, text: str, x: float = 0.03, y: float = 0.98, **style) -> None:
    """Write ``text`` in a corner of a panel, by default the upper left."""
    axes.text(x, y, text, transform=axes.transAxes, va="top", **style)


def logarithmic(axes: Axes, values: Sequence[float] = (), base: int = 10) -> None:
    """Make both axes logarithmic, with ticks of x at ``values``: of many, each second is written."""
    axes.set_xscale("log")
    axes.set_yscale("log", base=base)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    if values:
        step = 1 if len(values) < 7 else 2
        texts = ["" if n % step else f"{value:g}" for n, value in enumerate(values)]
        axes.set_xticks(values, labels=texts)
        axes.xaxis.set_minor_locator(NullLocator())


PICTURES = (launches, turns, heads, lengths, roofline, choices, decoding)
