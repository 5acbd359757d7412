"""The controls of chapter 1: they show what belongs to the values that the reader chose."""

import json
import re

import ipywidgets
import pytest
import torch

from mha import widgets
from mha.measures import WIDTHS, mean_sorted_weights


def test_controls_redraw_with_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, drawn = [], []
    monkeypatch.setattr(widgets, "display", shown.append)
    monkeypatch.setattr(
        widgets, "saturation", lambda d_k, scaled: drawn.append((d_k, scaled))
    )

    widgets.saturation_controls()

    (box,) = shown
    (width, scaled), picture = box.children[0].children, box.children[1]
    assert isinstance(picture, ipywidgets.Output)
    assert drawn == []  # the cell has drawn the first picture itself
    width.value = 16
    scaled.value = True
    assert drawn == [(16, False), (16, True)]


def test_page_holds_the_weights_of_every_position(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = []
    monkeypatch.setattr(widgets, "display", shown.append)

    widgets.moving_saturation()

    (page,) = shown
    rows = json.loads(re.search(r"rows = (\{.*?\}), widths", page.data).group(1))
    for name, scaled in (("scaled", True), ("raw", False)):
        for position, d_k in enumerate(WIDTHS):
            stored = torch.tensor(rows[name][position]["weights"], dtype=torch.float64)
            torch.testing.assert_close(
                stored, mean_sorted_weights(d_k, scaled), rtol=0, atol=0.0005
            )
    assert "$" not in page.data  # every placeholder is filled
    assert "http" not in page.data  # nothing comes from elsewhere
