"""The book's drawn pictures, one module a chapter; ``python -m mha.figures`` writes them all as SVG.

Each module lists its pictures in ``PICTURES``: functions without required arguments that return a figure.
The picture ``compromise`` of the module ``single_head`` becomes ``figures/single_head_compromise.svg``.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator

from matplotlib.figure import Figure


def pictures() -> Iterator[tuple[str, Callable[[], Figure]]]:
    """Yield each picture's file name, without its ending, and the function that draws it."""
    for module_info in pkgutil.iter_modules(__path__):
        module = (
            importlib.import_module(f"{__name__}.{module_info.name}")
            if module_info.name != "__main__"
            else None
        )
        for draw in getattr(module, "PICTURES", ()):
            yield f"{module_info.name}_{draw.__name__}", draw
