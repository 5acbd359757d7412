"""Rotary positions: turning keeps lengths, and dot products see nothing but the distance."""

import math

import pytest
import torch

from mha.rotary import rotate

B, L, D = 3, 7, 10


def inputs(dtype=torch.float64):
    torch.manual_seed(0)
    return torch.randn(B, L, D, dtype=torch.float64).to(dtype)


def test_one_pair_by_hand():
    # With d = 2 the only pair turns by one radian a position.
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0], [3.0, 4.0]]).double()
    turned = rotate(x, torch.tensor([0, 1, 1, 2]))
    cos, sin = math.cos, math.sin
    expected = [
        [1.0, 0.0],
        [cos(1), sin(1)],
        [-2 * sin(1), 2 * cos(1)],
        [3 * cos(2) - 4 * sin(2), 3 * sin(2) + 4 * cos(2)],
    ]
    torch.testing.assert_close(turned, torch.tensor(expected).double())
    torch.testing.assert_close(turned[1], torch.tensor([0.5403, 0.8415]).double(), atol=1e-4, rtol=0)  # fmt: skip


def test_later_pairs_turn_slower():
    # d = 4 and base 100: one radian a position, and a tenth.
    x = torch.tensor([[1.0, 0.0, 1.0, 0.0]]).double()
    turned = rotate(x, torch.tensor([5]), base=100.0)
    expected = [math.cos(5), math.sin(5), math.cos(0.5), math.sin(0.5)]
    torch.testing.assert_close(turned[0], torch.tensor(expected).double())


def test_it_is_a_product_of_complex_numbers():
    # An independent way to say it, as public code does: a pair is a complex number.
    x, positions = inputs(), torch.tensor([0, 1, 2, 5, 100, 1000, -3])
    speeds = 10000.0 ** (-torch.arange(0, D, 2).double() / D)
    turns = torch.polar(torch.ones(L, D // 2).double(), positions[:, None] * speeds)
    pairs = torch.view_as_complex(x.unflatten(-1, (D // 2, 2)))
    expected = torch.view_as_real(pairs * turns).flatten(-2)
    torch.testing.assert_close(rotate(x, positions), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])  # fmt: skip
def test_position_zero_changes_nothing(dtype):
    x = inputs(dtype)
    assert torch.equal(rotate(x, torch.zeros(L).long()), x)


@pytest.mark.parametrize(
    ("dtype", "close"),
    [
        (torch.float64, 1e-12),
        (torch.float32, 1e-5),
        (torch.bfloat16, 0.02),
        (torch.float16, 2e-3),
    ],
)
def test_every_type_has_its_accuracy_and_keeps_lengths(dtype, close):
    x, positions = inputs(dtype), torch.arange(40, 40 + L)
    turned = rotate(x, positions)
    assert turned.dtype == dtype and turned.shape == x.shape
    exact = rotate(x.double(), positions)
    torch.testing.assert_close(turned.double(), exact, rtol=close, atol=close)
    torch.testing.assert_close(
        turned.double().norm(dim=-1), x.double().norm(dim=-1), rtol=close, atol=close
    )


@pytest.mark.parametrize("shift", [1, 13, 1000, -5])
def test_scores_depend_on_the_distance_alone(shift):
    query, key = inputs(), inputs().flip(0)
    places = torch.arange(L)
    here = rotate(query, places) @ rotate(key, places).mT
    there = rotate(query, places + shift) @ rotate(key, places + shift).mT
    torch.testing.assert_close(there, here)
    # And they do depend on it: the same two vectors, at all distances.
    same = torch.ones(L, D).double()
    scores = (rotate(same, places) @ rotate(same, places).mT)[0]
    assert len(set(scores.round(decimals=6).tolist())) == L
    assert scores[0] == D == scores.max()


def test_heads_and_batches_turn_alike_and_gradients_turn_back():
    x = inputs().requires_grad_()
    places = torch.arange(L)
    torch.testing.assert_close(rotate(x[:, None], places)[:, 0], rotate(x, places))
    torch.testing.assert_close(rotate(x[1], places), rotate(x, places)[1])
    direction = inputs().flip(0)
    (rotate(x, places) * direction).sum().backward()
    torch.testing.assert_close(x.grad, rotate(direction, -places))
    torch.testing.assert_close(rotate(rotate(x, places), -places), x)


def test_the_callers_tensors_are_left_alone_and_layout_does_not_matter():
    x, places = inputs(), torch.arange(L)
    copies = x.clone(), places.clone()
    twisted = x.mT.contiguous().mT
    torch.testing.assert_close(rotate(twisted, places.int()), rotate(x, places))
    assert torch.equal(x, copies[0]) and torch.equal(places, copies[1])


@pytest.mark.parametrize("shape", [(0, 5, 4), (2, 0, 4), (2, 5, 0)])
def test_lengths_of_zero(shape):
    assert rotate(torch.ones(shape), torch.arange(shape[1])).shape == shape


def test_compile():
    compiled = torch.compile(rotate, fullgraph=True, backend="aot_eager")
    x, places = inputs(), torch.arange(L)
    torch.testing.assert_close(compiled(x, places), rotate(x, places))


@pytest.mark.parametrize(
    ("x", "positions", "base", "error", "message"),
    [
        (torch.ones(L, 3), torch.arange(L), 10.0, ValueError, r"x: expected an even width, got shape \(7, 3\)"),
        (torch.ones(L, 4), torch.arange(6), 10.0, ValueError, "positions: expected 7, one a token of x, got 6"),
        (torch.ones(L, 4), torch.ones(B, L).long(), 10.0, ValueError, r"positions: expected shape \(seq,\), got"),
        (torch.ones(L, 4), torch.ones(L), 10.0, TypeError, "positions: expected whole numbers, got torch.float32"),
        (torch.ones(L, 4), torch.ones(L).bool(), 10.0, TypeError, "positions: expected whole numbers, got torch.bool"),
        (torch.ones(L, 4), list(range(L)), 10.0, TypeError, "positions: expected a torch.Tensor, got list"),
        (torch.ones(L, 4).long(), torch.arange(L), 10.0, TypeError, "x: expected a floating-point tensor"),
        (torch.ones(4), torch.arange(1), 10.0, ValueError, "x: expected shape"),
        (torch.ones(L, 4), torch.arange(L), 0.0, ValueError, "base: expected a finite number above 0, got 0.0"),
        (torch.ones(L, 4), torch.arange(L), float("nan"), ValueError, "a finite number above 0, got nan"),
        (torch.ones(L, 4), torch.arange(L), float("inf"), ValueError, "a finite number above 0, got inf"),
        (torch.ones(L, 4), torch.arange(L), "1", TypeError, "base: expected a number, got '1'"),
    ],
)  # fmt: skip
def test_what_does_not_fit(x, positions, base, error, message):
    with pytest.raises(error, match=message):
        rotate(x, positions, base)
