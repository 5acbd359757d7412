"""Write every picture of the book to ``figures/`` of its repository: ``python -m mha.figures``."""

import sys
from pathlib import Path

from mha.style import to_svg

from . import pictures


def main() -> None:
    """Draw all pictures and remove those that no drawing code makes any more."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "_config.yml").is_file():
        sys.exit(f"{root} is not the book's repository: run this from a clone of it")
    folder = root / "figures"
    written = set()
    for name, draw in pictures():
        path = folder / f"{name}.svg"
        path.write_text(to_svg(draw()), encoding="utf-8")
        written.add(path)
        print(path)
    for stale in set(folder.glob("*.svg")) - written:
        stale.unlink()
        print(f"{stale} removed: no code draws it")


if __name__ == "__main__":
    main()
