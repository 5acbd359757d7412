"""Intervals that know what belongs together, and a correlation of ranks."""

import pytest
import torch

from mha.resampling import interval, rank_correlation


def test_an_interval_holds_the_mean_and_narrows_with_more_blocks():
    generator = torch.Generator().manual_seed(1)
    widths = []
    for count in (50, 5000):
        values = (torch.rand(count, generator=generator) < 0.3).float()
        low, high = interval(values, torch.arange(count))
        assert low < values.mean() < high
        widths.append(high - low)
        expected = 2 * 1.96 * (0.3 * 0.7 / count) ** 0.5
        assert high - low == pytest.approx(expected, rel=0.2)
    assert widths[1] < 0.15 * widths[0]


def test_cases_of_a_block_count_as_one():
    values = (torch.arange(40) % 2).repeat_interleave(10)
    blocks = torch.arange(40).repeat_interleave(10)
    together, apart = interval(values, blocks), interval(values, torch.arange(400))
    ratio = (together[1] - together[0]) / (apart[1] - apart[0])
    assert ratio == pytest.approx(10**0.5, rel=0.2)


def test_larger_blocks_weigh_more():
    values = torch.tensor([1.0, 1.0, 1.0, 0.0])
    assert interval(values, torch.tensor([7, 7, 7, 3])) == (0.0, 1.0)
    assert interval(torch.ones(4), torch.tensor([7, 7, 7, 3])) == (1.0, 1.0)
    low, high = interval(values.repeat(200), torch.arange(800) // 4)
    assert low == high == 0.75


def test_an_interval_follows_its_seed_and_leaves_the_readers_alone():
    values = torch.rand(30, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(5)
    assert interval(values, torch.arange(30)) == interval(values, torch.arange(30))
    drawn = torch.rand(2)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(2))
    assert interval(values, torch.arange(30)) != interval(
        values, torch.arange(30), seed=1
    )


def test_values_that_make_no_interval():
    with pytest.raises(ValueError, match=r"blocks: .* got \(3,\) for values \(4,\)"):
        interval(torch.rand(4), torch.arange(3))
    with pytest.raises(ValueError, match="at least one value"):
        interval(torch.rand(0), torch.arange(0))
    with pytest.raises(ValueError, match="draws: expected at least 1, got 0"):
        interval(torch.rand(4), torch.arange(4), draws=0)


def test_rank_correlations_that_are_known():
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert rank_correlation(x, x.exp()) == pytest.approx(1)
    assert rank_correlation(x, -x) == pytest.approx(-1)
    # Ranks 1 2 3 4 and 2 1 4 3: 1 - 6 · 4 / (4 · 15).
    y = torch.tensor([[5.0, 0.0], [9.0, 8.0]])
    assert rank_correlation(x, y) == pytest.approx(0.6)
    # Ranks 1 2 3 4 and 1 2.5 2.5 4.
    tied = torch.tensor([[0.0, 7.0], [7.0, 9.0]])
    assert rank_correlation(x, tied) == pytest.approx(4.5 / 22.5**0.5)


def test_values_that_have_no_correlation():
    with pytest.raises(ValueError, match=r"y: expected x's shape \(3,\), got \(4,\)"):
        rank_correlation(torch.rand(3), torch.rand(4))
    with pytest.raises(ValueError, match="different values of y: expected at least 2"):
        rank_correlation(torch.rand(3), torch.ones(3))
