"""How the book's notebooks look: pictures as SVG in the book's style, numbers rounded."""

import io
import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure

from .words import set_language

STYLE_FILE = Path(__file__).with_name("book.mplstyle")

# Where SVG holds coordinates (a scale is none: it multiplies all that follow).
COORDINATES = re.compile(r"""(?<= )(?:d|x|y|width|height)="[^"]+"|translate\([^)]+\)""")
LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
# It names the date and the program's version: every new drawing of the same picture would be another file.
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
# A path's text; one with curves; and a point of one without.
PATH = re.compile(r'(?<= d=")[^"]+')
CURVED = re.compile(r"[^MLz\d.\s-]")
POINT = re.compile(r"([ML]) (\S+) (\S+)")
# A letter's shape that is used further on; its name, there and where it is used.
MOVED = re.compile(r' transform="translate\((\S+) 0\)"(?=/>)')
GLYPH = re.compile(r'<path id="([A-Za-z]+(?:-\w+)+)"')
NAMED = re.compile(r'((?:\bid="|href="#))([A-Za-z]+(?:-\w+)+)(?=")')
# What is named by a hash of its numbers, in which the last digits of a processor show.
HASHED = re.compile(r"""(?<=[#"])[pmh][0-9a-f]{10}(?=[")])""")
METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)


def use_book_style(language: str = "en") -> None:
    """Draw as the book does: its style file, SVG in notebooks, three digits in printed arrays.

    Parameters
    ----------
    language : str
        The language of the words in pictures, a key of ``mha.words.WORDS``.

    Raises
    ------
    ValueError
        If there is no table of words for the language; then nothing is changed.
    """
    set_language(language)
    plt.style.use(STYLE_FILE)
    np.set_printoptions(precision=3, suppress=True)
    torch.set_printoptions(precision=3, sci_mode=False, linewidth=100)
    ipython = sys.modules.get("IPython")
    if ipython is not None and ipython.get_ipython() is not None:
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("svg")
        formatter = ipython.get_ipython().display_formatter
        formatter.formatters["image/svg+xml"].for_type(Figure, _svg)


def to_svg(figure: Figure) -> str:
    """Return a figure as SVG text that is the same each time the same picture is drawn.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        A figure drawn in the book's style. It is closed.
    """
    svg = _svg(figure)
    plt.close(figure)
    return svg


def _svg(figure: Figure) -> str:
    """Return a figure as SVG whose coordinates have two decimals, a hundredth of a point.

    That hides the last digits, in which one processor differs from another. Together with what else is written
    shorter it makes files half as large.
    """
    buffer = io.StringIO()
    with plt.style.context(STYLE_FILE):
        figure.savefig(buffer, format="svg", bbox_inches="tight")
    svg = COMMENT.sub("", METADATA.sub("", buffer.getvalue()))
    svg = PATH.sub(_compact, COORDINATES.sub(_shortened, svg))
    svg = MOVED.sub(r' x="\1"', svg)
    glyphs = {name: f"g{n}" for n, name in enumerate(dict.fromkeys(GLYPH.findall(svg)))}
    hashes = dict.fromkeys(HASHED.findall(svg))
    counted = {name: f"{name[0]}{n}" for n, name in enumerate(hashes)}
    svg = HASHED.sub(lambda use: counted[use[0]], svg)
    svg = NAMED.sub(lambda use: use[1] + glyphs.get(use[2], use[2]), svg)
    return "\n".join(line.strip() for line in svg.splitlines() if line.strip()) + "\n"


def _shortened(coordinates: re.Match) -> str:
    # Adding 0.0 turns −0 into 0.
    short = LONG_NUMBER.sub(
        lambda n: f"{round(float(n[0]), 2) + 0.0:g}", coordinates[0]
    )
    return " ".join(short.split())


def _compact(path: re.Match) -> str:
    """Write a path's level and upright lines with the one number that changes."""
    if CURVED.search(path[0]):
        return path[0]
    steps, before = [], ("", "")
    for step in path[0].replace("z", "z ").split(" z"):
        for letter, x, y in POINT.findall(step):
            if letter == "L" and x == before[0]:
                steps.append(f"V{y}")
            elif letter == "L" and y == before[1]:
                steps.append(f"H{x}")
            else:
                steps.append(f"{letter}{x} {y}")
            before = x, y
        steps.append("z")
    return "".join(steps[:-1])
