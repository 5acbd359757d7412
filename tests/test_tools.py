"""The programs that keep the book together: addresses, notebooks, claims, pictures, the Makefile."""

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import nbformat
import pytest

import find_claims
import inline_svg
import notebooks as tool
import repository

# The repository's address ---------------------------------------------------------------------------------


@pytest.fixture
def copy(root, tmp_path) -> Path:
    """Return a folder with a copy of every file that may hold the address."""
    names = ("pyproject.toml", "_config.yml", "README.md")
    pages = [path for path in (root / "chapters").iterdir() if path.is_file()]
    for path in [*(root / name for name in names), *pages]:
        target = tmp_path / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_address_changes_everywhere_and_back(copy):
    before, old = contents(copy), repository.configured(copy)
    changed = {
        path.relative_to(copy).as_posix()
        for path in repository.rewrite("octocat/hello.world_2", copy)
    }
    assert {"pyproject.toml", "_config.yml", "README.md"} <= changed
    assert {name for name in before if name.endswith(".ipynb")} <= changed
    assert repository.configured(copy) == "octocat/hello.world_2"
    for name, content in contents(copy).items():
        assert old.encode() not in content, name
    for path in (copy / "chapters").glob("*.ipynb"):
        assert tool.is_normal(path, copy)
    assert repository.rewrite("octocat/hello.world_2", copy) == []
    repository.rewrite(old, copy)
    assert contents(copy) == before


def test_only_the_address_itself_changes(copy):
    old = repository.configured(copy)
    owner, name = old.split("/")
    lines = (
        f"https://github.com/{old}. https://github.com/{old}.git https://github.com/{old}-two "
        f"https://{owner}.github.io/{name}/ other/{old} https://github.com/{old}/issues"
    )
    (copy / "README.md").write_text(lines, encoding="utf-8")
    repository.rewrite("a/b", copy)
    assert (copy / "README.md").read_text(encoding="utf-8") == (
        f"https://github.com/a/b. https://github.com/a/b.git https://github.com/{old}-two "
        f"https://a.github.io/b/ other/{old} https://github.com/a/b/issues"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "name",
        "a/b/c",
        "-a/b",
        "a-/b",
        "a--b/c",
        "a/b c",
        "a/..",
        "a/b.git",
        "https://github.com/a/b",
        "a/b\n",
    ],
)
def test_what_is_no_repository_is_refused(copy, wrong):
    before = contents(copy)
    with pytest.raises(ValueError, match="owner/name"):
        repository.rewrite(wrong, copy)
    assert contents(copy) == before


def run(root: Path, *command: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *command],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_check_of_the_address_says_what_to_do(root):
    assert (
        run(root, "tools/repository.py", "--check", repository.configured()).returncode
        == 0
    )
    assert (
        run(
            root, "tools/repository.py", "--check", repository.configured().upper()
        ).returncode
        == 0
    )
    other = run(root, "tools/repository.py", "--check", "octocat/fork")
    assert other.returncode == 1
    assert other.stderr.count("\n") == 1
    assert "make repository REPO=octocat/fork" in other.stderr
    assert run(root, "tools/repository.py", "no-slash").returncode == 2


# Notebooks -------------------------------------------------------------------------------------------------


def make(*sources: str) -> nbformat.NotebookNode:
    cells = [
        nbformat.v4.new_code_cell(source) for source in ("# Set-up: old", *sources)
    ]
    return nbformat.v4.new_notebook(cells=cells)


def test_the_normal_form():
    notebook = make("print(1)", "print(2)")
    first, cell, last = notebook.cells
    cell.metadata.update(execution={"iopub": 1}, collapsed=True, tags=["kept"])
    cell.execution_count = 17
    cell.outputs = [
        nbformat.v4.new_output("stream", name="stdout", text="a"),
        nbformat.v4.new_output("stream", name="stdout", text="b\n"),
        nbformat.v4.new_output(
            "display_data", {tool.WIDGET_VIEW: {}, "text/plain": "interactive(…)"}
        ),
        nbformat.v4.new_output("stream", name="stdout", text="c\n"),
        nbformat.v4.new_output(
            "execute_result", {"text/plain": "√"}, execution_count=17
        ),
    ]
    last.id = cell.id
    notebook.metadata["widgets"] = {"state": {}}
    notebook.metadata["myst"] = {"kept": 1}
    before = json.dumps(notebook)

    normal = tool.normalise(notebook)
    assert json.dumps(notebook) == before, "the argument was changed"
    assert normal.cells[0].source == tool.setup_cell()
    assert normal.cells[0].metadata["tags"] == ["hide-input"]
    assert [cell.execution_count for cell in normal.cells] == [1, 2, 3]
    assert normal.cells[1].metadata == {"tags": ["kept"]}
    assert [output.get("text") for output in normal.cells[1].outputs] == [
        "ab\nc\n",
        None,
    ]
    assert normal.cells[1].outputs[-1].execution_count == 2
    assert len({cell.id for cell in normal.cells}) == 3
    assert normal.cells[0].id == first.id
    assert normal.cells[2].id == "cell-03"
    assert "widgets" not in normal.metadata
    assert normal.metadata["myst"] == {"kept": 1}
    assert normal.metadata["accelerator"] == "GPU"
    nbformat.validate(normal)
    assert tool.dumps(tool.normalise(normal)) == tool.dumps(normal)
    assert "√" in tool.dumps(normal)
    assert tool.dumps(normal).endswith("}\n")


def test_the_first_cell_of_an_author_is_kept():
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_markdown_cell("# A title"),
            nbformat.v4.new_code_cell("answer = 42"),
        ]
    )
    normal = tool.normalise(notebook)
    title, setup, own = normal.cells
    assert title.source == "# A title"
    assert setup.source == tool.setup_cell()
    assert own.source == "answer = 42"
    assert (setup.execution_count, own.execution_count) == (1, 2)
    assert tool.dumps(tool.normalise(normal)) == tool.dumps(normal)


def test_reading_and_writing_changes_nothing(notebook):
    assert tool.dumps(tool.read(notebook)) == notebook.read_text(encoding="utf-8")


def store(path: Path, *sources: str) -> str:
    notebook = make(*sources)
    text = tool.dumps(tool.normalise(notebook))
    path.write_text(text, encoding="utf-8")
    return text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("print(1)\nx = {}['missing']", "code cell 2:\n.*KeyError"),
        (
            "import sys\nprint('careful', file=sys.stderr)",
            "code cell 2 writes to stderr: careful",
        ),
    ],
)
def test_a_notebook_that_fails_stays_as_it_was(tmp_path, source, message):
    path = tmp_path / "01_new.ipynb"
    before = store(path, source, "print('later')")
    with pytest.raises(tool.NotebookError, match=f"(?s)01_new.ipynb, {message}"):
        tool.update(path)
    assert path.read_text(encoding="utf-8") == before
    assert [path.name for path in tmp_path.iterdir()] == ["01_new.ipynb"]


def test_a_notebook_that_runs_is_stored_once(tmp_path):
    path = tmp_path / "01_new.ipynb"
    store(
        path,
        "print('a')\nprint('b')\n1 + 1",
        "import os\nprint(os.getcwd() == r'" + str(tmp_path) + "')",
    )
    assert tool.update(path)
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert cells[1]["outputs"][0]["text"] == ["a\n", "b\n"]
    assert cells[2]["outputs"][0]["text"] == ["True\n"]
    assert tool.is_normal(path)
    assert not tool.update(path), "a second run changed the file"


def test_a_notebook_is_found_by_number_name_and_path(root):
    for path in sorted((root / "chapters").glob("*.ipynb")):
        number, slug = path.stem.split("_", 1)
        for name in (
            number,
            slug,
            path.stem,
            path.name,
            str(path),
            f"chapters/{path.name}",
        ):
            assert tool.find(name) == [path], name
    with pytest.raises(tool.NotebookError, match="no notebook is named"):
        tool.find("99")
    assert tool.find("") == tool.find() == sorted((root / "chapters").glob("*.ipynb"))


# Claims ----------------------------------------------------------------------------------------------------

CELL = """
%matplotlib inline
with mha.claim("Rows sum to 1: Σ = 1."):
    assert total == 1
for _ in range(2):
    with claim("Two "
               "parts."):
        torch.testing.assert_close(a, b)
with mha.claim("Nothing is checked."):
    print("assert")
with mha.claim(f"No {literal}."):
    assert x
with mha.claim("It raises."), open("x"):
    with pytest.raises(ValueError):
        f()
with mha.claim("True is true."):
    assert True
"""


def test_claims_are_found_with_their_checks():
    found = [(claim.sentence, claim.checked) for claim in find_claims.find_claims(CELL)]
    assert found == [
        ("Rows sum to 1: Σ = 1.", True),
        ("Two parts.", True),
        ("Nothing is checked.", False),
        (None, True),
        ("It raises.", True),
        ("True is true.", False),
    ]
    assert find_claims.find_claims(CELL)[0].anchor == "claim-rows-sum-to-1-σ-1"
    assert find_claims.find_claims("this is no Python") == []
    assert find_claims.slug("«d_k» is 64!") == "d-k-is-64"


# Pictures --------------------------------------------------------------------------------------------------

DRAWING = """<?xml version="1.0"?>
<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="72pt" height="36pt"
 viewBox="0 0 72 36">
<!-- a comment --><metadata>m</metadata>
<style type="text/css">*{fill: #0068a9} .a, .b {stroke: url(#g)}</style>
<defs><linearGradient id="g"/><g id="dot"/></defs>
<g id="unused" style="fill: #FFF; stroke: #ffffff80" fill="#ffffff"><use xlink:href="#dot"/></g>
<text>A &lt;b&gt; and #ffffff</text>
</svg>"""


def test_a_drawing_stands_in_a_page():
    markup = inline_svg.inline(
        DRAWING, 'a "dot"', "f1-", {"#ffffff": "--paper", "#0068a9": "--blue"}
    )
    for gone in (
        "<?xml",
        "DOCTYPE",
        "comment",
        "metadata",
        "xlink",
        "unused",
        "height=",
        "#0068a9",
    ):
        assert gone not in markup, gone
    root = ElementTree.fromstring(markup)
    assert root.get("role") == "img"
    assert root.get("aria-label") == 'a "dot"'
    assert root.get("viewBox") == "0 0 72 36"
    assert "max-width:96px" in root.get("style")
    group = root.find("{*}g")
    assert group.get("style") == "fill: var(--paper); stroke: #ffffff80"
    assert group.get("fill") == "var(--paper)"
    assert group.find("{*}use").get("href") == "#f1-dot"
    assert {element.get("id") for element in root.iter() if element.get("id")} == {
        "f1-g",
        "f1-dot",
        "f1-picture",
    }
    style = root.find("{*}style").text
    assert (
        style
        == "#f1-picture *{fill: var(--blue)}#f1-picture .a,#f1-picture .b{stroke: url(#f1-g)}"
    )
    assert root.find("{*}text").text == "A <b> and #ffffff"


def test_a_drawing_without_lengths_or_with_a_width():
    plain = inline_svg.inline(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 50 10"/>', "x", "f-", {}
    )
    assert "max-width:50px" in plain
    narrow = inline_svg.inline(DRAWING, "x", "f-", {}, width="60%")
    assert "max-width:60%" in narrow
    sized = inline_svg.inline(
        '<svg xmlns="http://www.w3.org/2000/svg" width="1in" height="48"/>',
        "x",
        "f-",
        {},
    )
    assert 'viewBox="0 0 96 48"' in sized
    with pytest.raises(ValueError, match="viewBox"):
        inline_svg.inline('<svg xmlns="http://www.w3.org/2000/svg"/>', "x", "f-", {})


# The Makefile ----------------------------------------------------------------------------------------------


@pytest.fixture
def bare(root, tmp_path) -> Path:
    """Return a folder with the Makefile alone."""
    shutil.copyfile(root / "Makefile", tmp_path / "Makefile")
    shutil.copyfile(root / "requirements.txt", tmp_path / "requirements.txt")
    return tmp_path


def run_make(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    # Not the make that runs the tests: its flags would be handed down.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MAKE")
    }
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_make_alone_lists_the_commands(bare):
    result = run_make(bare)
    assert result.returncode == 0
    for command in (
        "book",
        "test",
        "serve",
        "notebooks",
        "figures",
        "lint",
        "clean",
        "repository",
    ):
        assert f"make {command}" in result.stdout


def only_sentence(result: subprocess.CompletedProcess) -> str:
    """Return the one line of the error output that is not make's own."""
    (sentence,) = (
        line for line in result.stderr.splitlines() if not line.startswith("make")
    )
    return sentence


@pytest.mark.parametrize("behaviour", ["exit 1", "echo old", None])
def test_a_missing_or_old_python_is_said_in_one_sentence(bare, behaviour):
    fake = bare / "fake python"
    if behaviour:
        fake.write_text(f"#!/bin/sh\n{behaviour}\n", encoding="utf-8")
        fake.chmod(0o755)
    result = run_make(bare, "book", f"PYTHON={fake}")
    assert result.returncode != 0
    assert "Python 3.11 or newer" in only_sentence(result)
    assert not (bare / ".venv").exists()


def test_a_python_without_venv_is_said_in_one_sentence(bare):
    fake = bare / "python"
    fake.write_text(
        '#!/bin/sh\ncase "$2" in *version*) echo fits;; *) exit 1;; esac\n',
        encoding="utf-8",
    )
    fake.chmod(0o755)
    result = run_make(bare, "book", f"PYTHON={fake}")
    assert result.returncode != 0
    assert "venv" in only_sentence(result)
    assert not (bare / ".venv").exists()


def test_a_failed_installation_leaves_no_mark(bare):
    """The next `make` must try again, not go on with half of the packages."""
    binaries = bare / ".venv" / "bin"
    binaries.mkdir(parents=True)
    python = binaries / "python"
    python.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    python.chmod(0o755)
    (bare / ".venv" / ".python").touch()
    assert run_make(bare, "book").returncode != 0
    assert not (bare / ".venv" / ".book").exists()


def test_repository_without_a_name(bare):
    result = run_make(bare, "repository")
    assert result.returncode != 0
    assert "REPO=owner/name" in result.stderr
