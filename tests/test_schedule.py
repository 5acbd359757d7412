"""The learning rate of small trainings: it rises for a tenth of the steps, and falls to nearly nothing."""

import math
import re

import pytest
import torch

from mha.schedule import one_cycle


def rates(steps, learning_rate=0.5):
    """Return the learning rate of each step."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    schedule = one_cycle(optimizer, learning_rate, steps)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_it_rises_for_a_tenth_and_falls_from_then_on():
    found = rates(101)
    top = found.index(max(found))
    assert found[top] == pytest.approx(0.5, rel=1e-2) and 9 <= top <= 11
    assert found[: top + 1] == sorted(found[: top + 1])
    assert found[top:] == sorted(found[top:], reverse=True)
    assert found[0] == pytest.approx(0.5 / 25) and found[-1] < 1e-4


@pytest.mark.parametrize("steps", [1, 2, 9, 10, 11])
def test_few_steps_have_a_rate_too(steps):
    found = rates(steps)
    assert len(found) == steps
    assert all(math.isfinite(rate) and 0 < rate <= 0.5 for rate in found)


@pytest.mark.parametrize(
    ("learning_rate", "steps", "message"),
    [
        (0.1, 0, "steps: expected at least 1, got 0"),
        (0.0, 5, "learning_rate: expected a number > 0, got 0.0"),
        (float("nan"), 5, "learning_rate: expected a number > 0, got nan"),
        (float("inf"), 5, "learning_rate: expected a number > 0, got inf"),
    ],
)
def test_numbers_that_make_no_schedule(learning_rate, steps, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        rates(steps, learning_rate)
