"""The repository's address: read it, check it, change it everywhere.

    python tools/repository.py                     print owner/name
    python tools/repository.py owner/name          make it the address, in every file that holds it
    python tools/repository.py --check owner/name  fail with one sentence when the address is another

It stands in pyproject.toml. The other files that need it cannot read it from there, so they hold copies.
This program needs Python alone, so that it runs before anything is installed.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# GitHub's own rules: an owner has letters, digits and single inner hyphens; a name also dots and underscores.
REPOSITORY = re.compile(
    r"(?P<owner>[A-Za-z0-9](?:-?[A-Za-z0-9]){0,38})/(?P<name>[A-Za-z0-9._-]{1,100})"
)


def configured(root: Path = ROOT) -> str:
    """Return the repository as owner/name."""
    address = _pyproject(root)["project"]["urls"]["Repository"]
    return address.removeprefix("https://github.com/")


def branch(root: Path = ROOT) -> str:
    """Return the branch that readers' links lead to."""
    return _pyproject(root)["tool"]["mha"]["branch"]


def colab_link(page: str, root: Path = ROOT) -> str:
    """Return the address that opens a notebook on Colab; `page` is its path without ``.ipynb``."""
    return f"https://colab.research.google.com/github/{configured(root)}/blob/{branch(root)}/{page}.ipynb"


def validate(repository: str) -> str:
    """Return the repository if it is of the form owner/name, else raise a ValueError that says so."""
    match = REPOSITORY.fullmatch(repository)
    if match is None or match["name"] in {".", ".."} or match["name"].endswith(".git"):
        raise ValueError(
            f"expected a GitHub repository as owner/name (such as octocat/hello-world), got {repository!r}"
        )
    return repository


def files(root: Path = ROOT) -> list[Path]:
    """Return the files that may hold the address; pyproject.toml last, so that a rewrite can be repeated."""
    pages = [*(root / "chapters").glob("*.md"), *(root / "chapters").glob("*.ipynb")]
    names = ("_config.yml", "README.md", "pyproject.toml")
    return sorted(pages) + [root / name for name in names]


def rewrite(repository: str, root: Path = ROOT) -> list[Path]:
    """Put another repository in the place of the configured one, and return the files that changed."""
    validate(repository)
    old = configured(root)
    (old_owner, old_name), (owner, name) = old.split("/"), repository.split("/")
    # In links to GitHub (also Colab's and pip's), and in the address of the published site. What follows must
    # not continue the name: "book" is not a part of "book-two". A dot may end a sentence, or begin ".git".
    ends = r"(?![A-Za-z0-9_-]|\.(?!git\b)[A-Za-z0-9])"
    replacements = [
        (re.compile(rf"(?<=github\.com/){re.escape(old)}{ends}"), repository),
        (re.compile(rf"(?<=/github/){re.escape(old)}{ends}"), repository),
        (
            re.compile(
                rf"\b{re.escape(old_owner)}(?=\.github\.io/{re.escape(old_name)}{ends})"
            ),
            owner,
        ),
        (
            re.compile(
                rf"(?<=\b{re.escape(owner)}\.github\.io/){re.escape(old_name)}{ends}"
            ),
            name,
        ),
    ]
    changed = []
    for path in files(root):
        text = new = path.read_text(encoding="utf-8")
        for pattern, replacement in replacements:
            new = pattern.sub(replacement, new)
        if new != text:
            path.write_text(new, encoding="utf-8", newline="\n")
            changed.append(path)
    return changed


def main(arguments: list[str]) -> int:
    """Run the command line."""
    try:
        match arguments:
            case []:
                print(configured())
            case ["--check", repository]:
                if configured().lower() != validate(repository).lower():
                    print(
                        f"The book is configured for {configured()} but this is {repository}: "
                        f"run `make repository REPO={repository}` and commit the result.",
                        file=sys.stderr,
                    )
                    return 1
            case [repository] if not repository.startswith("-"):
                for path in rewrite(repository):
                    print(path.relative_to(ROOT))
                print(f"The repository is {repository}.")
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except ValueError as error:
        print(f"repository: {error}", file=sys.stderr)
        return 2
    return 0


def _pyproject(root: Path) -> dict:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
