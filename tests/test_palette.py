"""Colours can be read on their paper and told apart, also by readers who see two primary colours only."""

import ast
import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from mha import palette
from mha.style import STYLE_FILE

PAPER = {"light": "#ffffff", "dark": "#121212"}  # the dark paper is the built site's
HEADS = ("blue", "vermilion", "green", "pink", "ochre", "violet", "teal", "brown")
TEXT = ("ink", "muted", "bad", *HEADS)

# Machado, Oliveira and Fernandes 2009, "A Physiologically-based Model for Simulation of Color Vision
# Deficiency", severity 1.0; for linear RGB.
VISION = {
    "full": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}


def color(name, theme):
    return palette.THEME_VARIABLES[name][1 if theme == "light" else 2]


def linear(hexadecimal):
    channels = np.array([int(hexadecimal[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(
        channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4
    )


def contrast(first, second):
    """Return the contrast ratio of the Web Content Accessibility Guidelines 2.1, from 1 to 21."""
    low, high = sorted(linear(c) @ [0.2126, 0.7152, 0.0722] for c in (first, second))
    return (high + 0.05) / (low + 0.05)


def lab(rgb):
    """CIE Lab, with the white of D65, of linear RGB."""
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ np.clip(rgb, 0, 1) / to_xyz.sum(axis=1)
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def difference(first, second, vision):
    return np.linalg.norm(
        lab(VISION[vision] @ linear(first)) - lab(VISION[vision] @ linear(second))
    )


def test_the_measures_themselves():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    assert lab(linear("#ffffff")) == pytest.approx([100, 0, 0], abs=0.02)
    assert lab(linear("#ff0000")) == pytest.approx([53.24, 80.09, 67.20], abs=0.05)
    for matrix in VISION.values():
        assert matrix.sum(axis=1) == pytest.approx(1, abs=1e-5)  # grey stays grey
    assert difference("#d01c1c", "#4d7a1e", "full") > 3 * difference(
        "#d01c1c", "#4d7a1e", "deuteranopia"
    )


@pytest.mark.parametrize("theme", PAPER)
@pytest.mark.parametrize("name", TEXT)
def test_contrast_with_the_paper(name, theme):
    assert contrast(color(name, theme), PAPER[theme]) >= 4.5


@pytest.mark.parametrize("theme", PAPER)
@pytest.mark.parametrize("name", ["ink", "muted"])
def test_contrast_with_a_panel(name, theme):
    assert contrast(color(name, theme), color("panel", theme)) >= 4.5


@pytest.mark.parametrize("theme", PAPER)
@pytest.mark.parametrize("name", ["bad", *HEADS])
def test_letters_on_a_coloured_ground(name, theme):
    assert contrast(color(name, theme), color("on_color", theme)) >= 4.5


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("theme", PAPER)
@pytest.mark.parametrize(
    ("first", "second"), list(itertools.combinations(HEADS[:4], 2))
)
def test_the_first_four_heads_can_be_told_apart(first, second, theme, vision):
    assert difference(color(first, theme), color(second, theme), vision) >= 10


@pytest.mark.parametrize("theme", PAPER)
def test_all_eight_heads_differ_in_full_colour(theme):
    for first, second in itertools.combinations(HEADS, 2):
        assert difference(color(first, theme), color(second, theme), "full") >= 10, (
            first,
            second,
        )


def test_head_colours_keep_their_order_and_repeat():
    assert tuple(palette.COLORS[name] for name in HEADS) == palette.HEAD_COLORS
    assert [palette.head_color(head) for head in range(8)] == list(palette.HEAD_COLORS)
    assert palette.head_color(8) == palette.head_color(0) and palette.head_color(
        11
    ) == palette.head_color(3)


def test_every_entry_is_well_formed():
    variables = [variable for variable, _, _ in palette.THEME_VARIABLES.values()]
    assert len(set(variables)) == len(variables)
    for name, (variable, light, dark) in palette.THEME_VARIABLES.items():
        assert variable == f"--mha-{name.replace('_', '-')}"
        assert re.fullmatch("#[0-9a-f]{6}", light)
        assert re.fullmatch("#[0-9a-f]{6}", dark)
    # A picture is recoloured by replacing light colours: two names of one colour could not be told apart.
    lights = list(palette.COLORS.values())
    assert len(set(lights)) == len(lights)


def test_the_file_imports_nothing():
    tree = ast.parse(Path(palette.__file__).read_text(encoding="utf-8"))
    assert not [
        node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)
    ]


def style_entries():
    lines = STYLE_FILE.read_text(encoding="utf-8").splitlines()
    return dict(
        re.split(r":\s*", line, maxsplit=1)
        for line in lines
        if line and not line.startswith("#")
    )


def test_the_style_file_has_the_palettes_colours():
    entries = style_entries()
    cycle = re.findall("[0-9a-f]{6}", entries.pop("axes.prop_cycle"))
    assert tuple(f"#{c}" for c in cycle) == palette.HEAD_COLORS
    expected = {
        "figure.facecolor": "paper",
        "savefig.facecolor": "paper",
        "text.color": "ink",
        "axes.labelcolor": "ink",
        "xtick.labelcolor": "ink",
        "ytick.labelcolor": "ink",
        "axes.edgecolor": "muted",
        "xtick.color": "muted",
        "ytick.color": "muted",
        "grid.color": "line",
    }
    found = {
        key: value
        for key, value in entries.items()
        if re.fullmatch("[0-9a-f]{6}", value)
    }
    assert found == {
        key: palette.COLORS[name].removeprefix("#") for key, name in expected.items()
    }
