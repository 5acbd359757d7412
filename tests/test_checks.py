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


@pytest.mark.parametrize("value", [-1, 3, 10**9])
def test_a_number_of_no_place(value):
    for place in range(3):
        checks.check_index("head", place, 3)
    with pytest.raises(
        ValueError, match=rf"^head: expected a number from 0 to 2, got {value}$"
    ):
        checks.check_index("head", value, 3)
    with pytest.raises(
        TypeError, match=r"^head: expected an int, got 1\.5 of type float"
    ):
        checks.check_index("head", 1.5, 3)


def test_what_can_be_listed():
    for items in ([2, 0], (2, 0), range(2, -1, -2), iter([2, 0]), torch.tensor([2, 0])):
        assert checks.listed("heads", items, "ints") == [2, 0]
    assert checks.listed("heads", [], "ints") == []


@pytest.mark.parametrize("items", [3, None, "30", 1.5, torch.tensor(3)], ids=repr)
def test_what_is_no_list(items):
    with pytest.raises(TypeError) as error:
        checks.listed("heads", items, "ints")
    assert str(error.value) == f"heads: expected a list of ints, got {items!r}"


@pytest.mark.parametrize("value", [1, 1e-9, 2.5])
def test_a_number_above_zero(value):
    checks.check_positive("rate", value)


@pytest.mark.parametrize("value", [0, 0.0, -1e-9, math.nan, math.inf, -math.inf])
def test_what_is_no_number_above_zero(value):
    with pytest.raises(ValueError, match=r"^rate: expected a number > 0, got"):
        checks.check_positive("rate", value)
    with pytest.raises(TypeError, match=r"^rate: expected a number, got '1'"):
        checks.check_positive("rate", "1")


def test_an_instance():
    checks.check_instance("job", 1, int)
    with pytest.raises(TypeError, match=r"^job: expected a str, got 1 of type int$"):
        checks.check_instance("job", 1, str)


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


def test_parts_and_whole_have_the_names_they_are_given():
    checks.check_divisible(12, 3, "num_heads", "num_kv_heads")
    with pytest.raises(ValueError, match=r"^num_heads: .* num_heads=4 and num_kv_heads=3"):  # fmt: skip
        checks.check_divisible(4, 3, "num_heads", "num_kv_heads")
    with pytest.raises(ValueError, match=r"^num_kv_heads: expected at least 1, got 0"):
        checks.check_divisible(4, 0, "num_heads", "num_kv_heads")


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8])
def test_whole_numbers(dtype):
    checks.check_whole_numbers("lengths", torch.zeros(3, dtype=dtype), "(batch,)")
    checks.check_whole_numbers("lengths", torch.zeros(0, dtype=dtype), "(batch,)")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64])
def test_what_are_no_whole_numbers(dtype):
    with pytest.raises(TypeError, match=f"^lengths: expected whole numbers, got {dtype}"):  # fmt: skip
        checks.check_whole_numbers("lengths", torch.zeros(3, dtype=dtype), "(batch,)")


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_whole_numbers_have_one_axis(shape):
    numbers = torch.zeros(shape).long()
    with pytest.raises(ValueError, match=r"^lengths: expected shape \(batch,\), got"):
        checks.check_whole_numbers("lengths", numbers, "(batch,)")
    checks.check_whole_numbers("tokens", torch.zeros(2, 3).long(), "(batch, seq)", 2)
    with pytest.raises(
        ValueError, match=r"^tokens: expected shape \(batch, seq\), got"
    ):
        checks.check_whole_numbers(
            "tokens", torch.zeros(1, 2, 3).long(), "(batch, seq)", 2
        )


def test_three_axes_of_a_modules_mask_are_batch_query_and_key():
    scores, cpu = (4, 2, 3, 5), torch.device("cpu")
    assert checks.with_head_axis(None, scores, cpu) is None
    for shape in ((3, 5), (4, 2, 3, 5), (1, 1, 3, 1)):
        mask = torch.ones(shape).bool()
        assert checks.with_head_axis(mask, scores, cpu) is mask
    mask = torch.rand(4, 3, 5) > 0.5
    assert torch.equal(checks.with_head_axis(mask, scores, cpu), mask[:, None])
    with pytest.raises(ValueError, match=r"\(batch, query, key\) = \(4, 3, 5\) for three"):  # fmt: skip
        checks.with_head_axis(torch.ones(2, 3, 5), scores, cpu)
    with pytest.raises(ValueError, match=r"^mask: expected to be on the query's device"):  # fmt: skip
        checks.with_head_axis(torch.ones(4, 3, 5, device="meta"), scores, cpu)
    with pytest.raises(TypeError, match=r"^mask: expected a boolean mask"):
        checks.with_head_axis(torch.ones(4, 3, 5).int(), scores, cpu)


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
