"""The layout of the repository: one slug finds everything, and each notebook keeps the book's rules."""

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import find_claims
import notebooks as tool
import repository
from mha import minilm_files

PACKAGE = "code/mha"
MAX_BYTES = 600_000
MAX_LINES = 25
PAGE_WIDTH = 84  # characters of code that a page shows between its sidebars

# Pages that are no chapters.
PAGES_WITHOUT_MODULE = {"index", "notation", "claims"}


def chapters(root: Path) -> dict[str, Path]:
    """Return the notebooks by slug, in the order of their numbers."""
    paths = sorted((root / "chapters").glob("*.ipynb"))
    return {path.stem.split("_", 1)[1]: path for path in paths}


def code_cells(path: Path) -> list[dict]:
    return [cell for cell in load(path)["cells"] if cell["cell_type"] == "code"]


def load(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def source(cell: dict) -> str:
    return "".join(cell["source"])


def outputs(path: Path):
    for number, cell in enumerate(code_cells(path), start=1):
        for output in cell["outputs"]:
            yield number, cell, output


# One slug finds everything -----------------------------------------------------------------------------


def test_there_are_chapters(root):
    """An empty folder would let every test below pass."""
    assert chapters(root)


def test_names_of_notebooks(root):
    for path in (root / "chapters").glob("*.ipynb"):
        assert re.fullmatch(r"\d\d_[a-z][a-z0-9_]*", path.stem), path.name
    numbers = [path.stem[:2] for path in chapters(root).values()]
    assert len(set(numbers)) == len(numbers), "two chapters have the same number"


def test_each_chapter_has_its_module_and_tests(root):
    for slug in chapters(root):
        assert (root / PACKAGE / f"{slug}.py").is_file(), f"no {PACKAGE}/{slug}.py"
        tests = root / "tests" / f"test_{slug}.py"
        assert tests.is_file(), f"no tests/test_{slug}.py"
        assert "def test_" in tests.read_text(encoding="utf-8"), f"no test in {tests}"


def test_the_readme_and_the_index_link_every_chapter_on_colab(root):
    readme = (root / "README.md").read_text(encoding="utf-8")
    index = (root / "chapters" / "index.md").read_text(encoding="utf-8")
    for path in chapters(root).values():
        assert repository.colab_link(f"chapters/{path.stem}") in readme, (
            f"README.md does not link {path.stem} on Colab"
        )
        assert f"{{colab}}`{path.stem}`" in index, f"index.md does not link {path.stem}"


def test_each_figure_belongs_to_a_page(root):
    slugs = [*chapters(root), *PAGES_WITHOUT_MODULE]
    for path in (root / "figures").iterdir():
        assert path.suffix == ".svg", f"figures/ holds SVG files only, not {path.name}"
        assert any(path.stem.startswith(f"{slug}_") for slug in slugs), (
            f"{path.name} begins with no page's slug"
        )


def test_each_figure_is_used(root):
    """A Markdown page shows the file; a notebook draws it, with the function of the same name."""
    pages = [*(root / "chapters").glob("*.md"), root / "README.md"]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    for path in (root / "figures").glob("*.svg"):
        drawn = False
        for slug, notebook in chapters(root).items():
            if path.stem.startswith(f"{slug}_"):
                code = "\n".join(source(cell) for cell in code_cells(notebook))
                drawn = (
                    re.search(rf"\.{path.stem.removeprefix(f'{slug}_')}\(", code)
                    is not None
                )
        assert drawn or f"figures/{path.name}" in text, f"no page shows {path.name}"


def test_the_table_of_contents_names_every_page(root):
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    named = [
        toc["root"],
        *(entry["file"] for part in toc["parts"] for entry in part["chapters"]),
    ]
    there = {
        f"chapters/{path.stem}"
        for path in (root / "chapters").iterdir()
        if path.suffix in (".md", ".ipynb")
    }
    assert len(named) == len(set(named))
    assert set(named) == there
    numbered = [name for name in named if re.match(r"chapters/\d", name)]
    assert numbered == sorted(numbered)


# Modules -----------------------------------------------------------------------------------------------


def imported_modules(path: Path) -> set[str]:
    """Return the names below `mha` that a module imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {
                alias.name.split(".")[1]
                for alias in node.names
                if alias.name.startswith("mha.")
            }
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                found |= (
                    {module.split(".")[0]}
                    if module
                    else {alias.name for alias in node.names}
                )
            elif module == "mha":
                found |= {alias.name for alias in node.names}
            elif module.startswith("mha."):
                found.add(module.split(".")[1])
    return found


def test_modules_import_only_what_came_before(root):
    order = list(chapters(root))
    shared = {path.stem for path in (root / PACKAGE).glob("*.py")} - set(order)
    for position, slug in enumerate(order):
        path = root / PACKAGE / f"{slug}.py"
        if path.is_file():
            later = imported_modules(path) - shared - set(order[:position])
            assert not later, (
                f"{slug}.py imports {sorted(later)}, which no earlier chapter has"
            )


def test_chapters_modules_do_not_lean_on_the_drawing_code(root):
    """Also not by way of another module: attention works without a single picture."""
    for slug in chapters(root):
        reached, queue = set(), [slug]
        while queue:
            name = queue.pop()
            path = root / PACKAGE / f"{name}.py"
            if name not in reached and path.is_file():
                queue += imported_modules(path)
            reached.add(name)
        assert "figures" not in reached, f"{slug}.py leads to mha.figures"


def test_the_folder_code_is_no_package(root):
    """A package named `code` would shadow the module of that name that pdb and IPython import."""
    assert not list((root / "code").glob("*.py"))


def test_no_name_of_ours_is_in_the_standard_library(root):
    folders = [
        path
        for path in root.iterdir()
        if path.is_dir() and not path.name.startswith((".", "_"))
    ]
    modules = [
        *root.glob("*.py"),
        *(root / "tools").glob("*.py"),
        *(root / PACKAGE).rglob("*.py"),
    ]
    names = {path.name for path in folders} | {path.stem for path in modules}
    # `code` is only a folder: not a package, and not on the path.
    taken = (names & set(sys.stdlib_module_names)) - {"code", "__init__", "__main__"}
    assert not taken


# Notebooks ---------------------------------------------------------------------------------------------


def test_the_setup_cell_is_the_same_everywhere(notebook):
    first = code_cells(notebook)[0]
    assert source(first) == tool.setup_cell()
    assert "hide-input" in first["metadata"]["tags"]
    assert first["outputs"] == []


def test_cells_are_numbered_in_order(notebook):
    """A cell without a number is never compared with its new output."""
    counts = [cell["execution_count"] for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1))


def test_normal_form(notebook):
    assert tool.is_normal(notebook), f"run make notebooks NB={notebook.stem}"


def test_colab_gets_a_gpu(notebook):
    metadata = load(notebook)["metadata"]
    assert metadata["accelerator"] == "GPU"
    assert metadata["colab"]["gpuType"] == "T4"


def test_size(notebook):
    assert notebook.stat().st_size <= MAX_BYTES


def test_cells_are_short(notebook):
    for number, cell in enumerate(code_cells(notebook)[1:], start=2):
        lines = len(source(cell).splitlines())
        assert lines <= MAX_LINES, f"code cell {number} has {lines} lines"


def test_nothing_on_stderr_and_no_error(notebook):
    for number, _, output in outputs(notebook):
        assert output.get("name") != "stderr", f"code cell {number} writes to stderr"
        assert output["output_type"] != "error", f"code cell {number} stores an error"


def test_no_live_control_is_stored(notebook):
    for number, _, output in outputs(notebook):
        assert tool.WIDGET_VIEW not in output.get("data", {}), (
            f"code cell {number} stores a control"
        )
    assert "widgets" not in load(notebook)["metadata"]


def test_cells_with_a_picture_say_what_it_shows(notebook):
    for number, cell, output in outputs(notebook):
        if any(mime.startswith("image/") for mime in output.get("data", {})):
            alt = cell["metadata"].get("mystnb", {}).get("image", {}).get("alt", "")
            assert len(alt.strip()) >= 10, (
                f"code cell {number} shows a picture without alt text (mystnb.image.alt)"
            )
            assert "/" not in alt or " " in alt, (
                f"the alt text of code cell {number} looks like a path"
            )


def test_markdown_pictures_say_what_they_show(root):
    for path in sorted((root / "chapters").iterdir()):
        if path.suffix == ".md":
            texts = [path.read_text(encoding="utf-8")]
        elif path.suffix == ".ipynb":
            texts = [
                source(cell)
                for cell in load(path)["cells"]
                if cell["cell_type"] == "markdown"
            ]
        else:
            continue
        for text in texts:
            assert not re.search(r"!\[\s*\]\(", text), (
                f"{path.name} has a picture without alt text"
            )


def test_maths_stands_in_its_own_paragraph(notebook):
    """Text that is glued to `$$` breaks the built page without a warning."""
    for cell in load(notebook)["cells"]:
        if cell["cell_type"] == "markdown":
            lines = source(cell).splitlines()
            marks = [number for number, line in enumerate(lines) if "$$" in line]
            for number in marks:
                assert lines[number].strip() == "$$", (
                    f"put $$ on a line of its own: {lines[number]!r}"
                )
            for opening, closing in zip(marks[::2], marks[1::2], strict=True):
                assert opening == 0 or not lines[opening - 1].strip(), (
                    f"no empty line before {lines[opening + 1]!r}"
                )
                assert closing + 1 == len(lines) or not lines[closing + 1].strip(), (
                    "no empty line behind $$"
                )


def descriptions(path: Path) -> dict:
    if path.suffix == ".ipynb":
        return load(path)["metadata"].get("myst", {}).get("html_meta", {})
    match = re.match(r"---\n(.*?)\n---\n", path.read_text(encoding="utf-8"), re.S)
    front = yaml.safe_load(match[1]) if match else {}
    return front.get("myst", {}).get("html_meta", {})


def test_each_page_has_a_description_for_search_engines(root):
    seen = {}
    for path in sorted((root / "chapters").iterdir()):
        if path.suffix in (".md", ".ipynb"):
            meta = descriptions(path)
            description = meta.get("description", "")
            assert 50 <= len(description) <= 160, (
                f"{path.name}: {len(description)} characters"
            )
            assert meta.get("property=og:description"), (
                f"{path.name} has no og:description"
            )
            assert description not in seen, (
                f"{path.name} and {seen[description]} have the same description"
            )
            seen[description] = path.name


# Claims ------------------------------------------------------------------------------------------------


def test_claims_are_sentences_and_can_fail(notebook):
    for number, cell in enumerate(code_cells(notebook), start=1):
        for claim in find_claims.find_claims(source(cell)):
            assert claim.sentence is not None, (
                f"code cell {number}: a claim must be one literal string"
            )
            assert claim.sentence.endswith((".", "!", "?")), (
                f"no sentence: {claim.sentence!r}"
            )
            assert claim.checked, f"nothing is asserted for {claim.sentence!r}"
            printed = "".join(
                "".join(output.get("text", "")) for output in cell["outputs"]
            )
            assert f"✓ {claim.sentence}" in printed, (
                f"not proved when the notebook ran: {claim.sentence!r}"
            )


def test_each_chapter_makes_a_claim(notebook):
    assert any(find_claims.find_claims(source(cell)) for cell in code_cells(notebook))


def test_claims_are_unique(root):
    anchors = {}
    for path in chapters(root).values():
        for cell in code_cells(path):
            for claim in find_claims.find_claims(source(cell)):
                where = f"{path.name}: {claim.sentence}"
                assert claim.anchor not in anchors, (
                    f"{where} | {anchors.get(claim.anchor)}"
                )
                anchors[claim.anchor] = where


# Address, dependencies ---------------------------------------------------------------------------------


def test_the_repository_address_is_the_same_everywhere(root):
    configured = repository.configured(root)
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
    assert config["repository"]["url"] == f"https://github.com/{configured}"
    assert config["repository"]["branch"] == repository.branch(root)
    assert f"github.com/{configured}" in (root / "README.md").read_text(
        encoding="utf-8"
    )
    for path in repository.files(root):
        text = path.read_text(encoding="utf-8")
        for found in re.findall(
            r"colab\.research\.google\.com/github/([\w.-]+/[\w.-]+)/blob/([\w.-]+)/",
            text,
        ):
            assert found == (configured, repository.branch(root)), (
                f"{path.name} leads to {found}"
            )
        for found in re.findall(
            r"git\+https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?@", text
        ):
            assert found == configured, f"{path.name} installs from {found}"


def test_no_other_file_holds_the_address(root):
    """`make repository` would leave it as it is there."""
    folders = ("code", "tools", "tests", "assets", "figures", ".github", ".ci")
    files = [path for name in folders for path in (root / name).rglob("*")]
    files += [*root.iterdir(), *(root / "chapters").iterdir()]
    known = set(repository.files(root))
    holding = [
        str(path.relative_to(root))
        for path in files
        if path.is_file()
        and path not in known
        and "__pycache__" not in path.parts
        and repository.configured(root).encode() in path.read_bytes()
    ]
    # The package's own description, written when it is installed, is no source.
    assert not [name for name in holding if ".egg-info" not in name]


def test_pins_are_exact_and_match_what_is_installed(root):
    lines = (root / "requirements.txt").read_text(encoding="utf-8").splitlines()
    requirements = [
        Requirement(line) for line in lines if line.strip() and not line.startswith("#")
    ]
    names = [requirement.name.lower().replace("_", "-") for requirement in requirements]
    assert len(set(names)) == len(names), "a package is pinned twice"
    for requirement in requirements:
        pins = list(requirement.specifier)
        assert [pin.operator for pin in pins] == ["=="], f"{requirement} is not pinned"
        assert "*" not in pins[0].version, f"{requirement} is not pinned"
        if requirement.marker is None or requirement.marker.evaluate():
            # The part behind "+" says for which hardware torch was built.
            installed = importlib.metadata.version(requirement.name).split("+")[0]
            assert installed == pins[0].version, (
                f"{requirement.name} {installed} is installed"
            )


def test_the_trained_model_is_pinned_and_installed(root):
    lines = (root / "requirements-model.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and line[0] != "#"]
    for pin in pins:
        assert [part.operator for part in pin.specifier] == ["=="], f"{pin} is loose"
        installed = importlib.metadata.version(pin.name)
        assert pin.specifier.contains(installed), f"{pin.name} {installed}"
    assert {pin.name for pin in pins} >= {"safetensors", "tokenizers"}
    # The one that readers are told to install.
    assert minilm_files.PACKAGE in [str(pin) for pin in pins]
    assert minilm_files.PACKAGE in (root / "README.md").read_text(encoding="utf-8")


def test_everything_that_is_installed_is_pinned(root):
    lines = (root / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pinned = {
        Requirement(line).name.lower().replace("_", "-")
        for line in lines
        if line and line[0] != "#"
    }
    needed, queue = (
        set(),
        ["mha", "jupyter-book", "nbval", "pytest-xdist", "hypothesis", "torch"],
    )
    while queue:
        name = queue.pop().lower().replace("_", "-")
        if name in needed:
            continue
        needed.add(name)
        for text in importlib.metadata.requires(name) or []:
            requirement = Requirement(text)
            # torch pins the packages of its GPU builds itself, each to one version.
            own = name == "torch" and any(
                pin.operator == "==" for pin in requirement.specifier
            )
            if not own and (
                requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            ):
                queue.append(requirement.name)
    assert needed - pinned - {"mha"} <= {"triton"}


@pytest.fixture(scope="module")
def wheel(root, tmp_path_factory) -> zipfile.ZipFile:
    """Return the package as pip builds it for a reader."""
    folder = tmp_path_factory.mktemp("wheel")
    # From a copy, because building leaves files behind.
    source_folder = folder / "source"
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (source_folder / name).parent.mkdir(parents=True, exist_ok=True)
        (source_folder / name).write_bytes((root / name).read_bytes())
    for path in (root / "code").rglob("*"):
        if (
            path.is_file()
            and "__pycache__" not in path.parts
            and ".egg-info" not in str(path)
        ):
            target = source_folder / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
    ]
    subprocess.run(
        [*command, "--wheel-dir", folder, source_folder],
        check=True,
        capture_output=True,
    )
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_asks_for_lower_bounds_only(wheel):
    (name,) = [
        name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")
    ]
    metadata = Parser().parsestr(wheel.read(name).decode())
    requirements = [Requirement(text) for text in metadata.get_all("Requires-Dist")]
    assert {requirement.name for requirement in requirements} >= {
        "torch",
        "numpy",
        "matplotlib",
        "ipywidgets",
    }
    for requirement in requirements:
        assert [pin.operator for pin in requirement.specifier] == [">="], str(
            requirement
        )
    # What Colab has, or had in the runtime before.
    colab = {
        "torch": "2.11.0",
        "numpy": "2.1.3",
        "matplotlib": "3.10.0",
        "ipywidgets": "7.7.1",
    }
    for requirement in requirements:
        if requirement.name in colab:
            assert requirement.specifier.contains(colab[requirement.name]), str(
                requirement
            )


def test_the_wheel_holds_the_package_and_its_data(root, wheel):
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    files = [
        path
        for path in (root / PACKAGE).rglob("*")
        if path.suffix in (".py", ".mplstyle", ".json", ".txt")
    ]
    assert names == {str(path.relative_to(root / "code")) for path in files}
    assert any(re.fullmatch(r"mha/recorded/\w+\.json", name) for name in names)


def test_python_versions_agree(root):
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["requires-python"] == ">=3.11"
    assert project["tool"]["ruff"]["target-version"] == "py311"
    assert "3, 11" in (root / "Makefile").read_text(encoding="utf-8")


def test_shown_sources_and_prints_fit_the_page(notebook):
    for number, _, output in outputs(notebook):
        text = output.get("data", {}).get("text/markdown", output.get("text", ""))
        for line in "".join(text).splitlines():
            assert line.startswith("✓") or len(line) <= PAGE_WIDTH, (
                f"code cell {number} shows a line of {len(line)} characters: {line}"
            )


def test_each_printed_tick_is_a_claim_of_its_cell(notebook):
    for number, cell, output in outputs(notebook):
        claimed = [claim.sentence for claim in find_claims.find_claims(source(cell))]
        for line in "".join(output.get("text", "")).splitlines():
            if "✓" in line:
                assert line.removeprefix("✓ ") in claimed, (
                    f"code cell {number} prints a tick that no claim of it made: {line}"
                )


def test_pictures_are_stored_as_svg_alone(notebook):
    """Nbval compares SVG; a stored PNG or JPEG it would take unseen."""
    for number, _, output in outputs(notebook):
        kinds = {kind for kind in output.get("data", {}) if kind.startswith("image/")}
        assert kinds <= {"image/svg+xml"}, f"code cell {number} stores {kinds}"
