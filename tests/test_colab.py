"""Each notebook runs as on Colab: from an empty folder, where torch is installed and the package is not.

The set-up cell then installs the package from the repository's address. Here git is told to find that address
in a copy of the working tree, so that what is tested is what is about to be pushed.
"""

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


@pytest.fixture
def colab(tmp_path) -> Path:
    """Return the Python of an environment that has what this one has, except the package."""
    folder = tmp_path / "environment"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", folder],
        check=True,
        capture_output=True,
    )
    here = Path(sysconfig.get_paths()["purelib"])
    there = (
        folder
        / "lib"
        / f"python{sys.version_info.major}.{sys.version_info.minor}"
        / "site-packages"
    )
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
        [python, "-c", probe], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert found.stdout.split() == ["None", "True"]
    return python


def test_the_notebook_runs_from_an_empty_folder(
    notebook, origin, colab, tmp_path, monkeypatch
):
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
    document = nbformat.read(notebook, as_version=4)
    probe = nbformat.v4.new_code_cell("print(mha.__file__)")
    document.cells.append(probe)

    # A kernel of that environment, under a name of its own.
    kernel = tmp_path / "jupyter" / "kernels" / "colab"
    kernel.mkdir(parents=True)
    command = [
        str(colab),
        "-m",
        "ipykernel_launcher",
        "-f",
        "{connection_file}",
        "--log-level=ERROR",
    ]
    specification = {"argv": command, "language": "python", "display_name": "Colab"}
    (kernel / "kernel.json").write_text(json.dumps(specification), encoding="utf-8")
    monkeypatch.setenv("JUPYTER_PATH", str(kernel.parent.parent))
    client = NotebookClient(
        document,
        kernel_name="colab",
        timeout=tool.CELL_TIMEOUT,
        resources={"metadata": {"path": str(empty)}},
    )
    client.execute()

    where = Path(document.cells[-1].outputs[0].text.strip())
    assert where.is_relative_to(colab.parent.parent), f"the package came from {where}"
    assert not tool.problems(document)
    assert not list(empty.iterdir()), "the notebook leaves files behind"
