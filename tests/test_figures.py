"""The drawn pictures: committed files are what the code draws, and the numbers in them are computed, not typed."""

import matplotlib.pyplot as plt
import pytest

import mha.figures
import repository
from mha.figures import single_head, two_heads
from mha.figures.canvas import written
from mha.style import to_svg

PICTURES = dict(mha.figures.pictures())


@pytest.mark.parametrize("name", PICTURES)
def test_committed_picture_is_what_the_code_draws(name: str) -> None:
    committed = (repository.ROOT / "figures" / f"{name}.svg").read_text(
        encoding="utf-8"
    )
    assert to_svg(PICTURES[name]()) == committed, (
        f"figures/{name}.svg has drifted: run make figures"
    )


def test_no_picture_without_drawing_code() -> None:
    assert {path.stem for path in (repository.ROOT / "figures").glob("*.svg")} == set(
        PICTURES
    )
    assert [
        path.name
        for path in (repository.ROOT / "figures").iterdir()
        if path.suffix != ".svg"
    ] == []


def test_drawing_leaves_no_figure_open_and_no_style_behind() -> None:
    before = dict(plt.rcParams)
    to_svg(single_head.relations())
    to_svg(two_heads.concat())
    assert plt.get_fignums() == []
    assert dict(plt.rcParams) == before


def test_matrices_are_written_with_the_fewest_digits_they_need() -> None:
    assert written([[1.0, -2.0]]) == [["1", "−2"]]
    assert written([[0.5, 1.0]]) == [["0.5", "1.0"]]
    assert written([[1 / 3, 1.0]]) == [["0.33", "1.00"]]
    assert written([["a", ""]]) == [["a", ""]]
