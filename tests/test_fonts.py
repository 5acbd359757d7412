"""Fonts for letters that the book's font lacks: never a box where an installed font has the letter."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from matplotlib import font_manager

import mha
from mha import fonts
from mha.style import to_svg


@pytest.fixture
def installed(monkeypatch):
    """Return a function that pretends a set of fonts, each with its letters, is all that is installed."""

    def pretend(letters_by_name):
        entries = [
            SimpleNamespace(name=name, fname=f"/{name}.ttf") for name in letters_by_name
        ]
        manager = SimpleNamespace(ttflist=entries, addfont=None)
        monkeypatch.setattr(font_manager, "fontManager", manager)
        monkeypatch.setattr(font_manager, "findSystemFonts", list)
        monkeypatch.setattr(font_manager, "findfont", lambda name: f"/{name}.ttf")
        letters = {
            f"/{name}.ttf": frozenset(map(ord, text))
            for name, text in letters_by_name.items()
        }
        monkeypatch.setattr(
            fonts, "_letters_of", lambda path: letters.get(path, frozenset())
        )
        fonts.fonts_with.cache_clear()

    yield pretend
    fonts.fonts_with.cache_clear()


def test_letters_of_the_books_font_need_no_other(installed):
    installed({"DejaVu Sans": "abc$<▁", "Other": "abc$<▁猫"})
    assert fonts.fonts_with(frozenset("ab$<▁")) == ()
    assert fonts.fonts_with(frozenset()) == ()


@pytest.mark.parametrize("name", ["AR PL UMing", "Noto Sans CJK SC", "WenQuanYi"])
def test_a_font_with_the_letters_goes_before_the_font_of_boxes(installed, name):
    installed(
        {"DejaVu Sans": "abc", name: "小猫", "Last Resort High-Efficiency": "abc小猫ก"}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fonts.fonts_with(frozenset("a猫")) == (name,)


def test_scripts_of_several_fonts(installed):
    installed(
        {"DejaVu Sans": "abc", "Chinese": "小猫", "Thai": "ก", "Last Resort": "小猫ก"}
    )
    assert set(fonts.fonts_with(frozenset("小猫ก"))) == {"Chinese", "Thai"}


def test_where_fonts_tie_the_one_like_the_books_own(installed):
    names = (
        "Noto Serif CJK SC",
        "Noto Sans CJK JP",
        "Noto Sans CJK SC",
        "Noto Sans Mono CJK SC",
        "ZZ",
    )
    installed({"DejaVu Sans": "abc"} | dict.fromkeys(names, "猫"))
    assert fonts.fonts_with(frozenset("猫")) == ("Noto Sans CJK SC",)


def test_letters_that_no_font_has_give_one_warning_that_names_them(installed):
    installed({"DejaVu Sans": "abc", "Chinese": "小", "Last Resort": "abc小ก"})
    with pytest.warns(
        UserWarning, match="no installed font has ก, so boxes are drawn"
    ) as caught:
        assert fonts.fonts_with(frozenset("小ก")) == ("Chinese", "Last Resort")
        assert fonts.fonts_with(frozenset("小ก")) == ("Chinese", "Last Resort")
    assert len(caught) == 1


def test_a_letter_that_no_font_has_is_drawn_all_the_same():
    # pytest.warns would pass with a second kind of warning, one of matplotlib's for every letter.
    fonts.fonts_with.cache_clear()
    token = "\U0010fffd"  # a private character of the last plane
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        svg = to_svg(mha.plot_attention(torch.eye(2), [token, "a"]))
    assert svg.endswith("</svg>\n")
    messages = [str(warning.message) for warning in caught]
    assert (
        len([text for text in messages if text.startswith("no installed font has")])
        <= 1
    )
    assert messages


def test_the_fonts_that_are_found_have_the_letters():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = fonts.fonts_with(frozenset("猫"))
    if not found or found[0].startswith(fonts.LAST_RESORT):
        pytest.skip(
            "no Chinese font is installed; this runs where one is, such as fonts-noto-cjk"
        )
    assert ord("猫") in fonts._letters_of(font_manager.findfont(found[0]))
