"""Controls for a running kernel; a published page shows the picture that the same cell leaves."""

import ipywidgets
import matplotlib.pyplot as plt
from IPython.display import display

from .figures.single_head import SATURATION_WIDTHS, saturation
from .words import word


def saturation_controls() -> None:
    """Show a slider for ``d_k`` and a switch for the scaling, and redraw chapter 1's saturation picture with them."""
    width = ipywidgets.SelectionSlider(options=SATURATION_WIDTHS, value=64, description=word("width_control"))
    scaled = ipywidgets.Checkbox(value=False, description=word("scaled_control"), indent=False)
    picture = ipywidgets.Output()

    def redraw(_change: object = None) -> None:
        # The new picture replaces the old one in one step, so that the page does not jump.
        picture.clear_output(wait=True)
        with picture:
            saturation(width.value, scaled.value)
            plt.show()

    for control in (width, scaled):
        control.observe(redraw, names="value")
    display(ipywidgets.VBox([ipywidgets.HBox([width, scaled]), picture]))
