"""The book's style: pictures that are the same text each time, and nothing changed by a mistake."""

import re
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

import mha
from mha import words
from mha.style import STYLE_FILE, to_svg


@pytest.fixture(autouse=True)
def restored():
    """Put back what a test changes for the whole process."""
    language = words._language
    printing = torch._tensor_str.PRINT_OPTS
    torchs = {
        name: getattr(printing, name)
        for name in ("precision", "threshold", "edgeitems", "linewidth", "sci_mode")
    }
    with plt.rc_context(), np.printoptions():
        yield
    torch.set_printoptions(**torchs)
    words.set_language(language)
    plt.close("all")


def settings():
    return (
        dict(plt.rcParams),
        np.get_printoptions(),
        repr(torch.tensor([1 / 3, 1e6])),
        words._language,
    )


def test_the_style_is_applied():
    mha.use_book_style()
    assert plt.rcParams["svg.hashsalt"] == "mha"
    assert plt.rcParams["svg.fonttype"] == "path"
    assert str(np.array([1 / 3, 1e-9])) == "[0.333 0.   ]"
    assert str(torch.tensor([1 / 3, 1e-9])) == "tensor([0.333, 0.000])"


def test_applying_it_twice_changes_nothing_more():
    mha.use_book_style()
    before = settings()
    mha.use_book_style()
    assert settings() == before


@pytest.mark.parametrize("language", ["", "EN", "xx"])
def test_an_unknown_language_leaves_everything_as_it_was(language):
    before = settings()
    with pytest.raises(ValueError, match=r"language: expected one of \['en'.*got"):
        mha.use_book_style(language)
    assert settings() == before


def draw():
    weights = torch.tensor([[[0.7, 0.3], [0.1, 0.9]], [[0.5, 0.5], [1.0, 0.0]]])
    return mha.plot_attention(weights, ["the", "$x$"])


def test_the_same_picture_is_the_same_svg():
    first, second = to_svg(draw()), to_svg(draw())
    assert first == second
    with plt.rc_context(
        {"svg.hashsalt": None, "font.size": 20, "savefig.facecolor": "red"}
    ):
        assert to_svg(draw()) == first  # whatever the reader's own settings are


def test_another_process_draws_the_same_svg():
    code = (
        Path(__file__)
        .read_text(encoding="utf-8")
        .split("def draw():")[1]
        .split("\n\n\n")[0]
    )
    script = (
        "import torch, mha, sys\nfrom mha.style import to_svg\n\ndef draw():" + code
    )
    script += (
        "\nsys.stdout.reconfigure(encoding='utf-8')\nprint(to_svg(draw()), end='')"
    )
    environment = {
        "PYTHONPATH": str(STYLE_FILE.parents[1]),
        "MPLBACKEND": "Agg",
        "PYTHONHASHSEED": "7",
    }
    import os

    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | environment,
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode() == to_svg(draw())


@pytest.mark.parametrize("shift", [0.0, 1e-12])
def test_last_digits_show_neither_in_numbers_nor_in_names(shift):
    """Clip paths and markers are named by a hash of numbers that end otherwise on another processor."""

    def draw(shift):
        figure = plt.figure()
        for left in (0.1, 0.6):
            axes = figure.add_axes((left + shift, 0.1, 0.3 + shift, 0.8))
            axes.plot([0, 1, 2], [1, 3 + shift, 2], marker="o")
        return to_svg(figure)

    svg = draw(shift)
    assert svg == draw(0.0)
    assert 'clip-path="url(#p' in svg, "there is something to name"


def test_an_svg_carries_no_date_no_version_and_no_trailing_spaces():
    svg = to_svg(draw())
    assert svg.startswith("<?xml") and svg.endswith("</svg>\n")
    assert (
        "<dc:date>" not in svg
        and "<dc:creator>" not in svg
        and "Matplotlib v" not in svg
    )
    assert all(line == line.rstrip() for line in svg.splitlines())


def test_making_an_svg_closes_the_figure_and_leaves_the_settings():
    figure = draw()
    before = settings()
    to_svg(figure)
    assert not plt.fignum_exists(figure.number)
    assert settings() == before


def test_every_entry_of_the_style_file_is_known_to_matplotlib():
    # matplotlib only logs a bad entry and goes on without it.
    entries = [
        line.split(":")[0].strip()
        for line in STYLE_FILE.read_text(encoding="utf-8").splitlines()
        if line.strip() and not line.startswith("#")
    ]
    assert len(entries) == len(set(entries)) > 20
    loaded = plt.style.library if STYLE_FILE.stem in plt.style.library else None
    assert loaded is None  # the file is ours alone and read by its path
    with plt.style.context(STYLE_FILE):
        assert set(entries) <= set(plt.rcParams)
        assert (
            plt.rcParams["axes.spines.top"] is False
            and plt.rcParams["figure.constrained_layout.use"] is True
        )


def test_coordinates_have_two_decimals_and_scales_keep_theirs():
    svg = to_svg(draw())
    numbers = [
        number
        for place in re.findall(r' (?:d|x|y)="([^"]+)"|translate\(([^)]+)\)', svg)
        for number in re.findall(r"-?\d+\.?\d*", "".join(place))
    ]
    assert len(numbers) > 100
    assert all(len(number.partition(".")[2]) <= 2 for number in numbers)
    assert "-0" not in numbers
    assert "scale(0.015625)" in svg  # 1/64: how glyphs are stored


def test_notebooks_draw_the_same_svg(monkeypatch):
    import IPython
    from IPython.core.formatters import DisplayFormatter
    from matplotlib.figure import Figure

    class Shell:
        display_formatter = DisplayFormatter()

    shell, formats = Shell(), []
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    monkeypatch.setattr(
        "matplotlib_inline.backend_inline.set_matplotlib_formats",
        lambda *names: formats.append(names),
    )
    mha.use_book_style()
    assert formats == [("svg",)]
    formatter = shell.display_formatter.formatters["image/svg+xml"]
    figure = draw()
    in_notebook = formatter.lookup_by_type(Figure)(figure)
    assert plt.fignum_exists(figure.number)  # its cell may still draw on it
    assert in_notebook == to_svg(figure)
