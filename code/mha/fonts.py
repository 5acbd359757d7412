"""Finding installed fonts for letters that the book's own font lacks, such as Chinese ones."""

import functools
import warnings
from collections.abc import Mapping

from matplotlib import font_manager
from matplotlib.ft2font import FT2Font

BOOK_FONT = "DejaVu Sans"
LAST_RESORT = "Last Resort"  # Matplotlib's font that has every character, as a box


@functools.lru_cache(maxsize=256)
def fonts_with(characters: frozenset[str]) -> tuple[str, ...]:
    """Return the names of installed fonts that together have the characters the book's own font lacks.

    Characters that no font has are drawn as boxes; one warning names them.

    Parameters
    ----------
    characters : frozenset of str
        The characters to draw.

    Returns
    -------
    tuple of str
        Empty where the book's font has them all.
    """
    missing = frozenset(map(ord, characters)) - _letters_of(
        font_manager.findfont(BOOK_FONT)
    )
    installed = _installed_fonts() if missing else {}
    families = []
    while missing:
        name = _font_with_most(missing, installed)
        if name is None:
            letters = "".join(map(chr, sorted(missing)))
            warnings.warn(
                f"no installed font has {letters}, so boxes are drawn; install one, such as Noto's",
                stacklevel=2,
            )
            # Naming the font of boxes keeps Matplotlib from warning once more for every letter.
            listed = {entry.name for entry in font_manager.fontManager.ttflist}
            families += sorted(name for name in listed if name.startswith(LAST_RESORT))
            break
        families.append(name)
        missing -= _letters_of(installed[name])
    return tuple(families)


def _font_with_most(
    characters: frozenset[int], installed: Mapping[str, str]
) -> str | None:
    """Return the font that has most of the characters: where fonts tie, one like the book's own."""

    def rank(name: str) -> tuple:
        # "CJK SC" before its siblings: the same letters, drawn as in simplified Chinese.
        found = len(characters & _letters_of(installed[name]))
        return found, "Sans" in name, "Mono" not in name, "CJK SC" in name, name

    best = max(installed, key=rank, default=None)
    return (
        best if best is not None and characters & _letters_of(installed[best]) else None
    )


def _installed_fonts() -> dict[str, str]:
    """Return name and path of every font that has letters to show; the font of boxes has none."""
    listed = {entry.fname for entry in font_manager.fontManager.ttflist}
    # A font that was installed after matplotlib wrote its cache is not in the list yet.
    for path in font_manager.findSystemFonts():
        if path not in listed:
            try:
                font_manager.fontManager.addfont(path)
            except (OSError, RuntimeError):
                continue  # not a font that matplotlib can read
    entries = font_manager.fontManager.ttflist
    return {
        entry.name: entry.fname
        for entry in entries
        if not entry.name.startswith(LAST_RESORT)
    }


@functools.cache
def _letters_of(path: str) -> frozenset[int]:
    try:
        return frozenset(FT2Font(path).get_charmap())
    except (OSError, RuntimeError):
        return frozenset()
