"""How the book's notebooks look: pictures as SVG in the book's style, numbers rounded."""

import io
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure

from .words import set_language

STYLE_FILE = Path(__file__).with_name("book.mplstyle")

# The date and the program's version would make every new drawing of the same picture another file.
SVG_METADATA = {"Date": None, "Creator": None}


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

        set_matplotlib_formats("svg", metadata=SVG_METADATA)


def to_svg(figure: Figure) -> str:
    """Return a figure as SVG text that is the same each time the same picture is drawn.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        A figure drawn in the book's style. It is closed.
    """
    buffer = io.StringIO()
    with plt.style.context(STYLE_FILE):
        figure.savefig(buffer, format="svg", bbox_inches="tight", metadata=SVG_METADATA)
    plt.close(figure)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
