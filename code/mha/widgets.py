"""Chapter 1's controls: one for a running kernel, and one for a page, which needs none."""

import json
from string import Template

import ipywidgets
import matplotlib.pyplot as plt
from IPython.display import HTML, display

from .figures.saturation import (
    SATURATION_WIDTHS,
    relative_entropy,
    saturation,
    saturation_weights,
)
from .palette import COLORS
from .words import word


def saturation_controls() -> None:
    """Show a slider for ``d_k`` and a switch for the scaling, and redraw chapter 1's saturation picture with them."""
    width = ipywidgets.SelectionSlider(
        options=SATURATION_WIDTHS, value=64, description=word("width_control")
    )
    scaled = ipywidgets.Checkbox(
        value=False, description=word("scaled_control"), indent=False
    )
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


# Colours fall back to the palette's where the book's style sheet is missing, as in a notebook.
PAGE = Template("""\
<div class="mha-moving" style="max-width: 34rem; margin: 1rem auto">
<div style="display: flex; flex-wrap: wrap; gap: .5rem 1.5rem; align-items: center">
<label>$width_label <input type="range" min="0" max="$last" value="$start" style="vertical-align: middle">
<output style="display: inline-block; min-width: 2rem"></output></label>
<label><input type="checkbox"> $scaled_label</label>
</div>
<div role="img" aria-label="$picture_label" style="display: flex; align-items: flex-end; gap: 3px; height: 8rem;
 border-bottom: 1px solid var(--mha-muted, $muted); margin: .75rem 0 .25rem"></div>
<div style="display: flex; justify-content: space-between; font-size: .9em"><span>$keys_label</span>
<span>$entropy_label: <output></output></span></div>
<script>
{
  const root = document.currentScript.closest(".mha-moving");
  const rows = $rows, widths = $widths;
  const [slider, box] = root.querySelectorAll("input");
  const [width, entropy] = root.querySelectorAll("output");
  const picture = root.querySelector("[role=img]");
  picture.innerHTML = '<div style="flex: 1; transition: height .2s"></div>'.repeat(rows.scaled[0].weights.length);
  const draw = () => {
    const row = rows[box.checked ? "scaled" : "raw"][slider.value];
    [...picture.children].forEach((bar, i) => {
      bar.style.height = 100 * row.weights[i] + "%";
      bar.style.background = box.checked ? "var(--mha-blue, $blue)" : "var(--mha-bad, $bad)";
    });
    width.value = widths[slider.value];
    entropy.value = row.entropy.toFixed(2);
  };
  slider.addEventListener("input", draw);
  box.addEventListener("input", draw);
  draw();
}
</script>
</div>""")


def moving_saturation() -> None:
    """Show one query's weights as bars that follow a slider for ``d_k`` and a switch for the scaling.

    All sixteen rows of weights lie in the HTML, so that the figure moves on a published page, where no Python runs.
    """
    rows: dict[str, list[dict[str, object]]] = {}
    for name, scaled in (("scaled", True), ("raw", False)):
        weights = [saturation_weights(d_k, scaled)[0] for d_k in SATURATION_WIDTHS]
        rows[name] = [
            {
                "weights": [round(w, 3) for w in row.tolist()],
                "entropy": round(relative_entropy(row).item(), 3),
            }
            for row in weights
        ]
    page = PAGE.substitute(
        COLORS,
        rows=json.dumps(rows),
        widths=json.dumps(SATURATION_WIDTHS),
        last=len(SATURATION_WIDTHS) - 1,
        start=SATURATION_WIDTHS.index(64),
        width_label=word("width_control"),
        scaled_label=word("scaled_control"),
        picture_label=word("moving_saturation_alt"),
        keys_label=word("softmax_row"),
        entropy_label=word("entropy"),
    )
    display(HTML(page))
