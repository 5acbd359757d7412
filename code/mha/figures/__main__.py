"""Write every picture of the book to ``figures/``: ``python -m mha.figures [FOLDER]``."""

import sys
from pathlib import Path

from mha.style import to_svg

from . import pictures


def main() -> None:
    """Draw all pictures and remove those that no drawing code makes any more."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "figures")
    folder.mkdir(parents=True, exist_ok=True)
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
