"""Sources are shown as the tests ran them, with docstrings cut to their first lines."""

import ast
import inspect

import pytest
import torch

import mha
from mha import display as module


@pytest.fixture
def shown(monkeypatch):
    """Return a function that gives the text that ``show_source`` displays."""

    def text(obj):
        displayed = []
        monkeypatch.setattr(module, "display", displayed.append)
        assert (
            mha.show_source(obj) is None
        )  # a value would appear on the page a second time
        (markdown,) = displayed
        assert markdown.data.startswith("```python\n") and markdown.data.endswith(
            "\n```"
        )
        return markdown.data.removeprefix("```python\n").removesuffix("\n```")

    return text


def plain(x):
    # A comment stays.
    return x + 1


def one_line(x):
    """Return what came."""
    return x


def documented(x):
    """Return what came.

    Parameters
    ----------
    x : object
        Anything.
    """
    text = """
    A string that is no docstring stays:
      with its indentation.
    """
    return x, text


class Documented:
    """Hold a number.

    More about it.
    """

    def method(self):
        """Give it back.

        More.
        """

        def inner():
            """Do nothing.

            Really.
            """

        return inner

    @property
    def decorated(self):
        """Say "yes".

        More.
        """
        return "yes"


def summary_on_the_second_line():
    """
    Come late.

    More.
    """
    return 1


def only_a_docstring():
    """Say it.

    Twice.
    """


def empty_docstring():
    ""
    return 1


def blank_docstring():
    """ """
    return 1


def on_one_line():
    """Stand here.

    Still here."""  # fmt: skip


def with_mathematics():
    r"""Return \sqrt{d}.

    More \n of it.
    """
    return 1


async def waits():
    """Wait.

    Long.
    """
    return 1


def test_a_function_without_docstring_is_shown_as_it_is(shown):
    assert shown(plain) == "def plain(x):\n    # A comment stays.\n    return x + 1"
    assert shown(one_line) == inspect.getsource(one_line).rstrip()


def test_docstrings_are_cut_to_their_first_line(shown):
    source = shown(documented)
    assert source.startswith(
        'def documented(x):\n    """Return what came."""\n    text = """\n    A string'
    )
    assert "Parameters" not in source and "with its indentation." in source
    assert shown(summary_on_the_second_line).splitlines()[1] == '    """Come late."""'
    assert shown(only_a_docstring) == 'def only_a_docstring():\n    """Say it."""'
    assert shown(waits) == 'async def waits():\n    """Wait."""\n    return 1'


def test_a_class_is_shown_with_every_docstring_cut(shown):
    source = shown(Documented)
    for summary in (
        '    """Hold a number."""',
        '        """Give it back."""',
        '            """Do nothing."""',
    ):
        assert summary in source.splitlines()
    assert '        """Say "yes"."""' in source.splitlines()
    assert "More" not in source and "Really" not in source
    assert "    @property\n    def decorated(self):" in source


def test_a_method_is_dedented(shown):
    assert shown(Documented.method).startswith(
        'def method(self):\n    """Give it back."""\n'
    )
    assert shown(Documented.decorated.fget).startswith(
        "@property\ndef decorated(self):\n"
    )


@pytest.mark.parametrize(
    "obj", [empty_docstring, blank_docstring, on_one_line, with_mathematics]
)
def test_odd_docstrings_leave_working_code(shown, obj):
    source = shown(obj)
    assert source.startswith(f"def {obj.__name__}():")
    tree = ast.parse(source)
    summary = (inspect.getdoc(obj) or "").strip().split("\n")[0]
    assert (ast.get_docstring(tree.body[0]) or "").strip() == summary


def without_docstrings(tree):
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.FunctionDef | ast.ClassDef)
            and ast.get_docstring(node) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)


PUBLIC = [getattr(mha, name) for name in mha.__all__]


@pytest.mark.parametrize("obj", PUBLIC, ids=lambda obj: obj.__name__)
def test_what_is_shown_is_what_runs(shown, obj):
    source = shown(obj)
    shown_tree, real_tree = ast.parse(source), ast.parse(inspect.getsource(obj))
    assert without_docstrings(shown_tree) == without_docstrings(real_tree)
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.FunctionDef | ast.ClassDef)
            and ast.get_docstring(node) is not None
        ):
            assert "\n" not in ast.get_docstring(node)


@pytest.mark.parametrize(
    "obj", [len, torch.matmul, 3, "text", None, int], ids=lambda obj: type(obj).__name__
)
def test_what_has_no_python_source_is_a_type_error(obj):
    with pytest.raises(
        TypeError, match="obj: expected something with Python source, got"
    ):
        mha.show_source(obj)
