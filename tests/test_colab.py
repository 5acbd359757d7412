"""The set-up cell, as on Colab: in an empty folder, where torch is installed and the package is not.

It installs the package from the repository's address. Here git is told to find that address in a copy of the
working tree, so that what is tested is what is about to be pushed. That the cells then run is nbval's test; what can
go wrong here alone is that something is not installed or is looked for in the repository.
"""

import ast
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import notebooks as tool
import repository


def git(folder: Path, *arguments: str) -> None:
    # Nothing of the user's own configuration: no hooks, no signing, no templates.
    environment = os.environ | {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    command = ["git", *identity, *arguments]
    subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True
    )


@pytest.fixture(scope="module")
def origin(root, tmp_path_factory) -> Path:
    """Return a git repository with the working tree's files on the configured branch."""
    folder = tmp_path_factory.mktemp("origin")
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=root,
        check=True,
        capture_output=True,
    )
    for name in sorted(set(filter(None, listing.stdout.decode().split("\0")))):
        # A file that was deleted but not yet committed is still listed.
        if (root / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((root / name).read_bytes())
    git(folder, "init", "--quiet", f"--initial-branch={repository.branch()}")
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "--message", "The working tree")
    return folder


@pytest.fixture(scope="module")
def colab(tmp_path_factory) -> Path:
    """Return the Python of an environment that has what this one has, except the package."""
    folder = tmp_path_factory.mktemp("colab") / "environment"
    command = [sys.executable, "-m", "venv", "--without-pip", folder]
    subprocess.run(command, check=True, capture_output=True)
    here = Path(sysconfig.get_paths()["purelib"])
    there = folder / here.relative_to(sys.prefix)
    others = folder / "others"
    others.mkdir()
    for path in here.iterdir():
        # Neither the package nor pip's note that it is installed.
        if not path.name.startswith(("mha", "__editable__")):
            (others / path.name).symlink_to(path)
    (there / "others.pth").write_text(f"{others}\n", encoding="utf-8")
    python = folder / "bin" / "python"
    probe = "import importlib.util as u; print(u.find_spec('mha'), u.find_spec('torch') is not None)"
    found = subprocess.run(
        [python, "-c", probe], check=True, capture_output=True, text=True
    )
    assert found.stdout.split() == ["None", "True"]
    return python


@pytest.fixture
def run(origin, colab, tmp_path, monkeypatch):
    """Return a function that runs cells in an empty folder, with a kernel of that environment."""
    settings = {
        f"url.file://{origin}.insteadOf": f"https://github.com/{repository.configured()}",
        # The copy belongs to whoever runs the tests, in whatever container.
        "safe.directory": "*",
    }
    monkeypatch.setenv("GIT_CONFIG_COUNT", str(len(settings)))
    for number, (key, value) in enumerate(settings.items()):
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{number}", key)
        monkeypatch.setenv(f"GIT_CONFIG_VALUE_{number}", value)
    # What the build of the package needs is installed; a reader's pip would fetch it.
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    empty = tmp_path / "content"
    empty.mkdir()
    kernel = tmp_path / "jupyter" / "kernels" / "colab"  # a name of its own
    kernel.mkdir(parents=True)
    command = [str(colab), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    command.append("--log-level=ERROR")
    specification = {"argv": command, "language": "python", "display_name": "Colab"}
    (kernel / "kernel.json").write_text(json.dumps(specification), encoding="utf-8")
    monkeypatch.setenv("JUPYTER_PATH", str(kernel.parent.parent))

    def run(cells: list[str]) -> str:
        """Return what the last cell prints."""
        document = nbformat.v4.new_notebook()
        document.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
        client = NotebookClient(
            document,
            kernel_name="colab",
            timeout=tool.CELL_TIMEOUT,
            resources={"metadata": {"path": str(empty)}},
        )
        client.execute()
        assert not tool.problems(document)
        assert not list(empty.iterdir()), "it leaves files behind"
        return document.cells[-1].outputs[0].text.strip()

    return run


def cells_of(notebook: Path) -> list[str]:
    document = nbformat.read(notebook, as_version=4)
    return [cell.source for cell in document.cells if cell.cell_type == "code"]


def imports(cells: list[str]) -> str:
    """Return all import statements of the cells."""
    found = []
    for cell in cells:
        for node in ast.walk(ast.parse(cell)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                found.append(ast.unparse(node))
    return "\n".join(found)


def test_the_set_up_cell_installs_the_package_and_imports_work(notebook, run, colab):
    cells = cells_of(notebook)
    where = run([cells[0], imports(cells[1:]), "print(mha.__file__)"])
    assert Path(where).is_relative_to(colab.parent.parent), f"it came from {where}"


def test_a_whole_notebook_runs_from_an_empty_folder(root, run):
    """One that draws and shows sources."""
    cells = cells_of(root / "chapters" / "01_single_head.ipynb")
    run([*cells, "print(mha.__file__)"])
