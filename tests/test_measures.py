"""The measurements behind claims and pictures."""

import torch

from mha import measures
from mha.sentence import KITTEN_TOKENS


def test_the_compromise_is_computed() -> None:
    apart, together = (
        measures.plane_keys(measures.APART),
        measures.plane_keys(measures.TOGETHER),
    )
    neutral = measures.weights_of_it(torch.zeros(2, dtype=torch.float64), apart)
    torch.testing.assert_close(neutral, torch.full((13,), 1 / 13, dtype=torch.float64))
    targets = [KITTEN_TOKENS.index(token) for token in measures.APART]
    shared = measures.weights_of_it(measures.UP, together)[targets]
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
    a = measures.random_weights(2, scaled=False, queries=3)
    b = measures.random_weights(2, scaled=False, queries=3)
    torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert a.shape == (3, 12)
    torch.testing.assert_close(a.sum(dim=-1), torch.ones(3, dtype=torch.float64))
    # Unscaled at 2 and scaled at 2 differ by the factor alone: the logarithms are proportional.
    logs = [row.log() - row.log().mean(dim=-1, keepdim=True)
            for row in (a, measures.random_weights(2, scaled=True, queries=3))]  # fmt: skip
    torch.testing.assert_close(logs[0], logs[1] * 2**0.5)


def test_mean_sorted_weights_fall_and_sum_to_one() -> None:
    for scaled in (True, False):
        weights = measures.mean_sorted_weights(64, scaled)
        assert weights.tolist() == sorted(weights.tolist(), reverse=True)
        torch.testing.assert_close(
            weights.sum(), torch.tensor(1.0, dtype=torch.float64)
        )


def test_relative_entropy_is_one_for_uniform_and_zero_for_one_key() -> None:
    rows = torch.tensor(
        [[0.25, 0.25, 0.25, 0.25], [0.0, 1.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]]
    )
    torch.testing.assert_close(
        measures.relative_entropy(rows), torch.tensor([1.0, 0.0, 0.5])
    )


def test_nearest_neighbours() -> None:
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [5.0, 0.0], [5.5, 0.0]])
    assert measures.nearest_neighbours(points) == [1, 0, 3, 2]
