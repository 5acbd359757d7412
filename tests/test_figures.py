"""The drawn pictures: committed files are what the code draws, and the numbers in them are computed, not typed."""

import ast
import importlib
import inspect
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch

import mha.figures
from mha.figures import head_splitting, kitten, saturation, single_head, two_heads
from mha.figures.canvas import written
from mha.sentence import KITTEN_TOKENS
from mha.style import to_svg
from mha.words import WORDS

ROOT = Path(__file__).parents[1]
PICTURES = dict(mha.figures.pictures())


@pytest.mark.parametrize("name", PICTURES)
def test_committed_picture_is_what_the_code_draws(name: str) -> None:
    committed = (ROOT / "figures" / f"{name}.svg").read_text(encoding="utf-8")
    assert to_svg(PICTURES[name]()) == committed, (
        f"figures/{name}.svg has drifted: run make figures"
    )


def test_no_picture_without_drawing_code() -> None:
    assert {path.stem for path in (ROOT / "figures").glob("*.svg")} == set(PICTURES)
    assert [
        path.name for path in (ROOT / "figures").iterdir() if path.suffix != ".svg"
    ] == []


def test_drawing_leaves_no_figure_open_and_no_style_behind() -> None:
    before = dict(plt.rcParams)
    to_svg(single_head.relations())
    to_svg(two_heads.concat())
    assert plt.get_fignums() == []
    assert dict(plt.rcParams) == before


def test_every_word_in_the_table_is_drawn_somewhere_and_every_drawn_word_is_in_it() -> (
    None
):
    used = set()
    prefixes = set()
    for module in [*mha.figures.__path__, str(ROOT / "code" / "mha")]:
        for path in Path(module).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and getattr(node.func, "id", "") == "word"
                ):
                    for constant in ast.walk(node.args[0]):
                        if isinstance(constant, ast.Constant) and isinstance(
                            constant.value, str
                        ):
                            inside_f_string = isinstance(node.args[0], ast.JoinedStr)
                            (prefixes if inside_f_string else used).add(constant.value)
                    if isinstance(
                        node.args[0], ast.Name
                    ):  # word(kind): the loop's literals are counted below
                        used |= {"right", "wrong", "value", "output"}
    table = set(WORDS["en"])
    assert used <= table
    unused = {
        key
        for key in table - used
        if not any(prefix and key.startswith(prefix) for prefix in prefixes)
    }
    assert unused == set()


def test_the_compromise_is_computed() -> None:
    apart, together = (
        kitten.plane_keys(kitten.APART),
        kitten.plane_keys(kitten.TOGETHER),
    )
    neutral = kitten.weights_of_it(torch.zeros(2, dtype=torch.float64), apart)
    torch.testing.assert_close(neutral, torch.full((13,), 1 / 13, dtype=torch.float64))
    targets = [KITTEN_TOKENS.index(token) for token in kitten.APART]
    shared = kitten.weights_of_it(kitten.UP, together)[targets]
    torch.testing.assert_close(
        shared, torch.full((3,), 0.325, dtype=torch.float64), atol=0.005, rtol=0
    )
    # The three long keys point apart by 120 degrees, so their sum is the origin.
    torch.testing.assert_close(
        apart[targets].sum(dim=0),
        torch.zeros(2, dtype=torch.float64),
        atol=1e-12,
        rtol=0,
    )


def test_random_weights_are_the_same_draw_at_every_width() -> None:
    a = saturation.random_weights(2, scaled=False, queries=3)
    b = saturation.random_weights(2, scaled=False, queries=3)
    torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert a.shape == (3, 12)
    torch.testing.assert_close(a.sum(dim=-1), torch.ones(3, dtype=torch.float64))
    # Unscaled at 2 and scaled at 2 differ by the factor alone: the logarithms are proportional.
    logs = [row.log() - row.log().mean(dim=-1, keepdim=True)
            for row in (a, saturation.random_weights(2, scaled=True, queries=3))]  # fmt: skip
    torch.testing.assert_close(logs[0], logs[1] * 2**0.5)


def test_mean_sorted_weights_fall_and_sum_to_one() -> None:
    for scaled in (True, False):
        weights = saturation.mean_sorted_weights(64, scaled)
        assert weights.tolist() == sorted(weights.tolist(), reverse=True)
        torch.testing.assert_close(
            weights.sum(), torch.tensor(1.0, dtype=torch.float64)
        )


def test_relative_entropy_is_one_for_uniform_and_zero_for_one_key() -> None:
    rows = torch.tensor(
        [[0.25, 0.25, 0.25, 0.25], [0.0, 1.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]]
    )
    torch.testing.assert_close(
        saturation.relative_entropy(rows), torch.tensor([1.0, 0.0, 0.5])
    )


def test_nearest_neighbours() -> None:
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [5.0, 0.0], [5.5, 0.0]])
    assert head_splitting.nearest_neighbours(points) == [1, 0, 3, 2]


def test_matrices_are_written_with_the_fewest_digits_they_need() -> None:
    assert written([[1.0, -2.0]]) == [["1", "−2"]]
    assert written([[0.5, 1.0]]) == [["0.5", "1.0"]]
    assert written([[1 / 3, 1.0]]) == [["0.33", "1.00"]]
    assert written([["a", ""]]) == [["a", ""]]


def test_chapter_modules_do_not_draw() -> None:
    for name in ("single_head", "head_splitting", "two_heads", "checks"):
        source = inspect.getsource(importlib.import_module(f"mha.{name}"))
        assert "matplotlib" not in source and "figures" not in source
