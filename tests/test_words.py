"""Words in pictures: one table a language, the same keys in each, and every word asked for is there."""

import ast
import string
from pathlib import Path

import pytest

import mha
from mha.words import WORDS, set_language, word

PACKAGE = Path(mha.__file__).parent


@pytest.fixture
def other_language(monkeypatch):
    monkeypatch.setitem(WORDS, "xx", {key: text.upper().replace("{", "<{").replace("}", "}>") for key, text in
                                      {"key": "key", "head": "kopf"}.items()})  # fmt: skip
    WORDS["xx"]["head"] = "Kopf {number}"
    yield
    set_language("en")


def calls_of_word():
    """Yield file, key and placeholder names of every call ``word("key", name=…)`` in the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "word":
                yield path, node


def test_every_word_that_is_asked_for_is_in_every_table():
    calls = list(calls_of_word())
    assert calls
    for path, node in calls:
        key = node.args[0]
        if not isinstance(key, ast.Constant):
            continue  # built from a variable: the drawing tests draw those
        for language, table in WORDS.items():
            assert key.value in table, (
                f"{path.name}:{node.lineno}: no {key.value!r} in {language!r}"
            )
            given = {keyword.arg for keyword in node.keywords}
            if given:
                wanted = {
                    name
                    for _, name, _, _ in string.Formatter().parse(table[key.value])
                    if name
                }
                assert wanted == given, (
                    f"{path.name}:{node.lineno}: {key.value!r} needs {wanted}, gets {given}"
                )


def test_every_language_has_the_same_keys_and_no_empty_word():
    for table in WORDS.values():
        assert set(table) == set(WORDS["en"])
        assert all(text.strip() for text in table.values())


def test_a_word_with_and_without_values():
    assert word("query") == "query"
    assert word("head", number=3) == "head 3"
    assert (
        word("scaled") == "scaled by $1/\\sqrt{d_k}$"
    )  # braces of mathematics are no placeholders


def test_missing_words_and_values_are_errors():
    with pytest.raises(KeyError, match="no such word"):
        word("no such word")
    with pytest.raises(KeyError):
        word("head", other=3)


def test_choosing_a_language(other_language):
    set_language("xx")
    assert word("head", number=0) == "Kopf 0"
    set_language("en")
    assert word("head", number=0) == "head 0"


@pytest.mark.parametrize("language", ["", "xx", "EN"])
def test_an_unknown_language_keeps_the_one_before(language):
    with pytest.raises(ValueError, match="language: expected one of"):
        set_language(language)
    assert word("query") == "query"


def test_a_picture_speaks_the_chosen_language(other_language):
    import matplotlib.pyplot as plt
    import torch

    monkey = WORDS["xx"]
    monkey.update(
        {key: f"«{text}»" for key, text in WORDS["en"].items() if key not in monkey}
    )
    monkey["query"] = "Frage"
    set_language("xx")
    figure = mha.plot_attention(torch.eye(2)[None])
    assert figure.axes[0].get_ylabel() == "Frage"
    assert figure.axes[0].get_title(loc="left") == "Kopf 0"
    plt.close(figure)
