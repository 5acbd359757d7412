"""Chapter 1's controls: one for a running kernel, and one for a page, which needs none."""

import json
from string import Template

import ipywidgets
import matplotlib.pyplot as plt
from IPython.display import HTML, display

from .figures.saturation import saturation
from .measures import WIDTHS, mean_entropy, mean_sorted_weights
from .palette import COLORS
from .words import word


def saturation_controls() -> None:
    """Show a slider for ``d_k`` and a switch for the scaling, and redraw chapter 1's saturation picture with them."""
    width = ipywidgets.SelectionSlider(
        options=WIDTHS, value=64, description=word("width_control")
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
<label>$width_label <input type="range" min="0" max="$last" value="0" style="vertical-align: middle">
<output style="display: inline-block; min-width: 2rem"></output></label>
<label><input type="checkbox"> $scaled_label</label>
</div>
<div style="display: flex; gap: .4rem; margin: .75rem 0 .25rem">
<div style="display: flex; flex-direction: column; justify-content: space-between; font-size: .85em; line-height: 1">
<span>1</span><span>0</span></div>
<div role="img" style="flex: 1; display: flex; align-items: flex-end; gap: 3px; height: 8rem;
 border-bottom: 1px solid var(--mha-muted, $muted); border-top: 1px dotted var(--mha-line, $line)"></div></div>
<div style="display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 1rem; font-size: .9em">
<span>$keys_label</span><span>$entropy_label: <output></output></span></div>
<script>
{
  const root = document.currentScript.closest(".mha-moving");
  const rows = $rows, widths = $widths;
  const [slider, box] = root.querySelectorAll("input");
  const [width, entropy] = root.querySelectorAll("output");
  const picture = root.querySelector("[role=img]");
  picture.innerHTML = '<div style="flex: 1; transition: height .2s"></div>'.repeat(rows.raw[0].weights.length);
  const draw = () => {
    const row = rows[box.checked ? "scaled" : "raw"][slider.value];
    [...picture.children].forEach((bar, i) => {
      bar.style.height = 100 * row.weights[i] + "%";
      bar.style.background = box.checked ? "var(--mha-blue, $blue)" : "var(--mha-bad, $bad)";
    });
    width.value = widths[slider.value];
    slider.setAttribute("aria-valuetext", width.value);
    entropy.value = row.entropy.toFixed(2);
    picture.setAttribute("aria-label", "$picture_label: " + row.weights.join(", "));
  };
  slider.addEventListener("input", draw);
  box.addEventListener("input", draw);
  draw();
}
</script>
</div>""")


def moving_saturation() -> None:
    """Show the mean sorted weights as bars that follow a slider for ``d_k`` and a switch for the scaling.

    All sixteen rows of weights lie in the HTML, so that the figure moves on a published page, where no Python runs.
    """
    rows = {
        name: [
            {
                "weights": [
                    round(w, 3) for w in mean_sorted_weights(d_k, scaled).tolist()
                ],
                "entropy": round(mean_entropy(d_k, scaled), 3),
            }
            for d_k in WIDTHS
        ]
        for name, scaled in (("scaled", True), ("raw", False))
    }
    page = PAGE.substitute(
        COLORS,
        rows=json.dumps(rows),
        widths=json.dumps(WIDTHS),
        last=len(WIDTHS) - 1,
        width_label=word("width_control_html"),
        scaled_label=word("scaled_control_html"),
        picture_label=word("moving_saturation_alt"),
        keys_label=word("sorted_keys"),
        entropy_label=word("entropy"),
    )
    display(HTML(page))
