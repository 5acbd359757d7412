"""Errors name the argument and print what was expected and what came."""

import math

import pytest
import torch

from mha import checks


@pytest.mark.parametrize("value", [1, 2, 10**9])
def test_a_number_that_is_large_enough(value):
    checks.check_at_least("heads", value)


@pytest.mark.parametrize(("value", "least"), [(0, 1), (-3, 1), (4, 5)])
def test_a_number_that_is_too_small(value, least):
    with pytest.raises(
        ValueError, match=rf"^heads: expected at least {least}, got {value}$"
    ):
        checks.check_at_least("heads", value, least)


@pytest.mark.parametrize("value", [1.0, "1", None, True, torch.tensor(1)], ids=repr)
def test_what_is_no_int(value):
    with pytest.raises(TypeError, match=r"^heads: expected an int, got .* of type "):
        checks.check_at_least("heads", value)


@pytest.mark.parametrize("value", [0, 0.0, 0.5, 0.999])
def test_a_probability(value):
    checks.check_probability("dropout", value)


@pytest.mark.parametrize("value", [1, 1.0, -1e-9, 2, math.nan, math.inf, -math.inf])
def test_what_is_no_probability(value):
    with pytest.raises(
        ValueError, match=r"^dropout: expected a probability in \[0, 1\), got"
    ):
        checks.check_probability("dropout", value)


def test_heads_that_do_not_divide_the_width_name_both_numbers():
    checks.check_divisible(512, 8)
    # facebookresearch/detr#499, pytorch/pytorch#28719
    with pytest.raises(ValueError, match=r"d_model=10 and num_heads=3 \(remainder 1\)"):
        checks.check_divisible(10, 3)
    with pytest.raises(ValueError, match=r"width=4 and num_heads=8"):
        checks.check_divisible(4, 8, "width")
    with pytest.raises(
        ValueError, match=r"num_heads: expected at least 1, got 0"
    ):  # no ZeroDivisionError
        checks.check_divisible(10, 0)


def test_too_few_axes():
    checks.check_tensor("x", torch.zeros(2, 3), 2, "two axes")
    with pytest.raises(ValueError, match=r"^x: expected two axes, got shape \(3,\)$"):
        checks.check_tensor("x", torch.zeros(3), 2, "two axes")


@pytest.mark.parametrize(
    "shape",
    [(3, 5), (2, 4, 3, 5), (1, 4, 3, 5), (2, 1, 1, 5), (1, 1, 1, 1), (2, 4, 3, 1)],
    ids=str,
)
def test_masks_that_fit(shape):
    checks.check_mask(torch.ones(shape).bool(), (2, 4, 3, 5))
    checks.check_mask(torch.ones(shape), [2, 4, 3, 5])


@pytest.mark.parametrize(
    "shape",
    [
        (5, 3),
        (5,),
        (1, 5),
        (4, 3, 5),
        (2, 3, 5),
        (4, 2, 3, 5),
        (2, 4, 5, 3),
        (2, 4, 3, 6),
    ],
    ids=str,
)
def test_masks_that_do_not_fit(shape):
    with pytest.raises(ValueError, match=r"^mask: expected shape \(3, 5\)") as error:
        checks.check_mask(torch.ones(shape).bool(), (2, 4, 3, 5))
    assert "(2, 4, 3, 5)" in str(error.value) and str(tuple(shape)) in str(error.value)


def test_a_mask_over_an_empty_axis_must_be_empty_or_one():
    checks.check_mask(torch.ones(1, 1, 5).bool(), (0, 3, 5))
    checks.check_mask(torch.ones(0, 3, 5).bool(), (0, 3, 5))
    with pytest.raises(ValueError, match="mask"):
        checks.check_mask(torch.ones(0, 3, 5).bool(), (2, 3, 5))
