"""Showing the package's own source on a page."""

import ast
import inspect
import textwrap

from IPython.display import Markdown, display


def show_source(obj: object) -> None:
    """Display the source of a function or class, its docstrings cut down to their first lines.

    The page shows what the tests ran: the text is read from the package each time the notebook runs, and the
    comparison of stored outputs fails when the code moves on and the page does not.

    Parameters
    ----------
    obj : function or class
        What to show. Anything :func:`inspect.getsource` can read.

    Raises
    ------
    TypeError
        If the object has no Python source.
    """
    try:
        source = textwrap.dedent(inspect.getsource(obj))
    except (OSError, TypeError) as error:
        raise TypeError(
            f"obj: expected something with Python source, got {obj!r}"
        ) from error
    display(Markdown(f"```python\n{_shorten_docstrings(source)}\n```"))


def _shorten_docstrings(source: str) -> str:
    lines = source.rstrip().split("\n")
    definitions = (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)
    # From the bottom up, so that the line numbers above stay right while lines are taken out.
    for node in sorted(
        (node for node in ast.walk(ast.parse(source)) if isinstance(node, definitions)),
        key=lambda node: -node.lineno,
    ):
        first = node.body[0]
        if ast.get_docstring(node) is None or first.lineno == first.end_lineno:
            continue
        summary = ast.get_docstring(node).splitlines()[0]
        before = lines[first.lineno - 1].encode()[: first.col_offset].decode()
        raw = "r" if "\\" in summary else ""
        lines[first.lineno - 1 : first.end_lineno] = [f'{before}{raw}"""{summary}"""']
    return "\n".join(lines)
