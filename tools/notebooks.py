"""Run the notebooks, and keep them in one normal form.

    python tools/notebooks.py          run all, store their outputs
    python tools/notebooks.py 05       run one: by its number, its name or its path
    python tools/notebooks.py --check  run nothing; fail when a file is not in normal form

The normal form makes a change of a notebook readable, and strict comparison of outputs possible: cells are
numbered 1 to n, ids are fixed, the set-up cell is the same everywhere, and what changes with each run is not
stored.
A notebook that fails is left as it was.
"""

import copy
import json
import os
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

import repository

CHAPTERS = repository.ROOT / "chapters"

# Longer than any cell may take on a slow machine; it ends a cell that hangs.
CELL_TIMEOUT = 300

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

SETUP_MARK = "# Set-up:"  # how the set-up cell begins, and no other
SETUP = """\
# Set-up: where the book's package is missing (as on Colab), this installs it;
# elsewhere it only imports.
import importlib
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("mha") is None:
    source = "git+https://github.com/{repository}@{branch}"
    command = [sys.executable, "-m", "pip", "install", "--quiet", source]
    subprocess.run(command, check=True)
    importlib.invalidate_caches()

import matplotlib.pyplot as plt
import numpy as np
import torch

import mha

mha.use_book_style()"""


class NotebookError(Exception):
    """A notebook that cannot be stored; the message says where and why."""


def setup_cell(root: Path = repository.ROOT) -> str:
    """Return the text of the set-up cell, the first code cell of every notebook."""
    return SETUP.format(
        repository=repository.configured(root), branch=repository.branch(root)
    )


def read(path: Path) -> nbformat.NotebookNode:
    """Read a notebook; an older format is brought to version 4.5."""
    notebook = nbformat.from_dict(json.loads(path.read_text(encoding="utf-8")))
    if (notebook.get("nbformat"), notebook.get("nbformat_minor")) != (4, 5):
        notebook = nbformat.convert(notebook, 4)
        notebook.nbformat_minor = 5
    return notebook


def dumps(notebook: nbformat.NotebookNode) -> str:
    """Return a notebook as the text of its file."""
    split = nbformat.v4.rwbase.split_lines(copy.deepcopy(notebook))
    return json.dumps(split, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def normalise(
    notebook: nbformat.NotebookNode, root: Path = repository.ROOT
) -> nbformat.NotebookNode:
    """Return a notebook in normal form; the argument stays as it is."""
    notebook = nbformat.from_dict(
        nbformat.v4.rwbase.rejoin_lines(copy.deepcopy(notebook))
    )
    notebook.nbformat, notebook.nbformat_minor = 4, 5

    metadata = notebook.metadata
    # The state of controls: large, other ids in each run, and no page can use it.
    metadata.pop("widgets", None)
    metadata["accelerator"] = "GPU"
    metadata["colab"] = {"gpuType": "T4", "provenance": []}
    metadata["kernelspec"] = {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    }
    # The name alone: the version would change with every reader's Python.
    metadata["language_info"] = {"name": "python"}

    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if code_cells:
        first = code_cells[0]
        if not first.source.startswith(SETUP_MARK):
            # The author's own code: the set-up cell goes before it.
            first = nbformat.v4.new_code_cell()
            notebook.cells.insert(notebook.cells.index(code_cells[0]), first)
            code_cells.insert(0, first)
        first.source = setup_cell(root)
        first.metadata["tags"] = sorted({*first.metadata.get("tags", []), "hide-input"})
        first.metadata["mystnb"] = {"code_prompt_show": "Show the set-up"}

    for count, cell in enumerate(code_cells, start=1):
        cell.execution_count = count
        cell.outputs = _joined(
            [output for output in cell.outputs if not _is_widget(output)]
        )
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count

    used = set()
    for number, cell in enumerate(notebook.cells, start=1):
        cell.source = cell.source.rstrip("\n")
        for key in ("execution", "collapsed", "ExecuteTime", "id", "outputId", "colab"):
            cell.metadata.pop(key, None)
        if (
            not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", str(cell.get("id", "")))
            or cell.id in used
        ):
            # Named after the place, so that two runs agree; a further number only where that id is taken.
            cell.id = next(
                c
                for s in range(1000)
                if (c := f"cell-{number:02d}{f'-{s}' if s else ''}") not in used
            )
        used.add(cell.id)
        if cell.cell_type != "code":
            cell.pop("outputs", None)
            cell.pop("execution_count", None)
    return notebook


def problems(notebook: nbformat.NotebookNode) -> list[str]:
    """Return what must not be stored: errors, and text on stderr."""
    found = []
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for count, cell in enumerate(code_cells, start=1):
        for output in cell.outputs:
            if output.output_type == "stream" and output.name == "stderr":
                text = "".join(output.text).strip()
                found.append(
                    f"code cell {count} writes to stderr: {text.splitlines()[-1] if text else ''}"
                )
            elif output.output_type == "error":
                found.append(
                    f"code cell {count} raises {output.ename}: {output.evalue}"
                )
    return found


def execute(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Run a notebook in a fresh kernel that works in `folder`; outputs go into the notebook."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        # A kernel's own remarks on how it talks to this program are no concern of the reader.
        extra_arguments=["--log-level=ERROR"],
    )
    client.execute()


def update(path: Path) -> bool:
    """Run a notebook and store it in normal form; return whether the file changed."""
    # Normalised before as well, so that the set-up cell which runs is the one that is stored.
    notebook = normalise(read(path))
    try:
        execute(notebook, path.parent)
    except CellExecutionError as error:
        raise NotebookError(f"{path.name}, {_traceback(notebook)}") from error
    except (CellTimeoutError, DeadKernelError) as error:
        raise NotebookError(f"{path.name}: {error}") from error
    notebook = normalise(notebook)
    nbformat.validate(notebook)
    if found := problems(notebook):
        raise NotebookError("\n".join(f"{path.name}, {problem}" for problem in found))
    return _write(path, dumps(notebook))


def is_normal(path: Path, root: Path = repository.ROOT) -> bool:
    """Return whether a notebook's file is in normal form."""
    return path.read_text(encoding="utf-8") == dumps(normalise(read(path), root))


def find(name: str | None = None) -> list[Path]:
    """Return all notebooks, or the one with this number, name or path.

    Raises
    ------
    NotebookError
        If there is no such notebook, or more than one.
    """
    paths = sorted(CHAPTERS.glob("*.ipynb"))
    if not name:
        return paths
    stem = Path(name).name.removesuffix(".ipynb")
    found = [path for path in paths if stem in (path.stem, *path.stem.split("_", 1))]
    if len(found) != 1:
        raise NotebookError(
            f"no notebook is named {name!r}; there are: {', '.join(path.stem for path in paths)}"
        )
    return found


def main(arguments: list[str]) -> int:
    """Run the command line."""
    check = "--check" in arguments
    names = [argument for argument in arguments if argument != "--check"]
    if len(names) > 1 or any(name.startswith("-") for name in names):
        print(__doc__, file=sys.stderr)
        return 2
    # Before any kernel starts: one thread, so that sums come out in the same order on every machine.
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        paths = find(*names)
    except NotebookError as error:
        print(error, file=sys.stderr)
        return 2
    failed = 0
    for path in paths:
        if check:
            if not is_normal(path):
                print(
                    f"{path.name} is not in normal form: make notebooks NB={path.stem}",
                    file=sys.stderr,
                )
                failed = 1
            continue
        try:
            print(
                f"{path.name}: {'stored' if update(path) else 'unchanged'}", flush=True
            )
        except NotebookError as error:
            print(error, file=sys.stderr)
            failed = 1
    return failed


def _joined(outputs: list) -> list:
    """Join consecutive pieces of one stream: where they are cut depends on timing."""
    joined = []
    for output in outputs:
        previous = joined[-1] if joined else None
        if (
            output.output_type == "stream"
            and previous is not None
            and previous.output_type == "stream"
            and previous.name == output.name
        ):
            previous.text += output.text
        else:
            joined.append(output)
    return joined


def _is_widget(output: nbformat.NotebookNode) -> bool:
    """Return whether an output is a live control: dead on a page, and with other ids in each run."""
    return WIDGET_VIEW in output.get("data", {})


def _traceback(notebook: nbformat.NotebookNode) -> str:
    """Return the last cell that ran, by number, and its traceback without colours."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    number, cell = [
        (n, c) for n, c in enumerate(cells, start=1) if c.outputs or c.execution_count
    ][-1]
    lines = [line for output in cell.outputs for line in output.get("traceback", [])]
    return f"code cell {number}:\n" + re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(lines))


def _write(path: Path, text: str) -> bool:
    """Replace a file in one step, if its text changes: a reader sees the old one or the new one."""
    if path.read_text(encoding="utf-8") == text:
        return False
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8", newline="\n")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
