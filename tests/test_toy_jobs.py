"""The three jobs, what is asked in each, and who learns which."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import mha
from mha.alternatives import AttentionLayer, ConvolutionLayer, RecurrentLayer
from mha.toy_jobs import (
    JOBS,
    KEYS,
    NOTHING,
    VALUES,
    Reader,
    accuracy,
    draw_neighbours,
    draw_parity,
    draw_recall,
    train,
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# --- the jobs ---


@pytest.mark.parametrize("length", [16, 20, 50])
def test_recall_asks_for_each_told_value_once(length):
    tokens, answers = draw_recall(30, length, seeded())
    for sequence, wanted in zip(tokens.tolist(), answers.tolist(), strict=True):
        told = dict(sequence[:KEYS])
        assert sorted(told) == list(range(KEYS))
        assert all(0 <= value < VALUES for value in told.values())
        assert wanted[:KEYS] == [NOTHING] * KEYS
        later = zip(sequence[KEYS:], wanted[KEYS:], strict=True)
        asked = {key: answer for (key, _), answer in later if key < KEYS}
        assert asked == told  # all eight, so none twice
        assert all(value == VALUES for _, value in sequence[KEYS:])
        for (key, _), answer in zip(sequence, wanted, strict=True):
            assert key < KEYS or answer == NOTHING


def test_recall_asks_at_every_place_and_in_every_order():
    tokens, answers = draw_recall(300, 20, seeded())
    assert ((answers != NOTHING).any(dim=0)).tolist() == [False] * 8 + [True] * 12
    first = (tokens[:, 8:, 0] < KEYS).int().argmax(dim=1)
    assert len(tokens[range(300), 8 + first, 0].unique()) == KEYS
    assert tokens[:, :8, 1].unique().tolist() == list(range(VALUES))


def test_neighbours_are_a_token_and_the_two_before_it():
    tokens, answers = draw_neighbours(20, 9, seeded())
    for sequence, wanted in zip(tokens[..., 0].tolist(), answers.tolist(), strict=True):
        assert wanted[:2] == [NOTHING] * 2
        for place in range(2, 9):
            assert wanted[place] == sum(sequence[place - 2 : place + 1]) % 3
    assert tokens.unique().tolist() == [0, 1, 2]


def test_parity_is_of_the_ones_so_far():
    tokens, answers = draw_parity(20, 9, seeded())
    for sequence, wanted in zip(tokens[..., 0].tolist(), answers.tolist(), strict=True):
        assert wanted == [sum(sequence[: place + 1]) % 2 for place in range(9)]
    assert tokens.unique().tolist() == [0, 1]


@pytest.mark.parametrize("name", JOBS)
def test_a_job_says_how_many_numbers_there_are(name, same_random_numbers):
    job = JOBS[name]
    tokens, answers = job.draw(200, 20, seeded())
    assert tokens.shape == (200, 20, len(job.fields)) and answers.shape == (200, 20)
    assert [field.max() + 1 for field in tokens.unbind(dim=-1)] == list(job.fields)
    assert answers.max() + 1 == job.num_answers
    assert torch.equal(tokens, job.draw(200, 20, seeded())[0])
    assert not torch.equal(tokens, job.draw(200, 20, seeded(1))[0])


@pytest.mark.parametrize(("name", "least"), [("recall", 16), ("neighbours", 3)])
def test_sequences_that_are_too_short(name, least):
    with pytest.raises(ValueError, match=f"length: expected at least {least}, got"):
        JOBS[name].draw(2, least - 1, seeded())


# --- readers ---


def test_a_reader_by_hand():
    torch.manual_seed(0)
    reader = Reader(JOBS["recall"], ConvolutionLayer(6))
    tokens, _ = draw_recall(2, 16, seeded())
    first, second = (table.weight for table in reader.tables)
    x = first[tokens[..., 0]] + second[tokens[..., 1]]
    expected = reader.layer(x) @ reader.scores.weight.T + reader.scores.bias
    assert_close(reader(tokens), expected)
    assert reader(tokens).shape == (2, 16, VALUES)


def test_training_follows_its_seed(same_random_numbers):
    def numbers(seed):
        reader = train(JOBS["parity"], lambda: RecurrentLayer(4), steps=3, seed=seed)
        return torch.cat([p.flatten() for p in reader.parameters()])

    assert torch.equal(numbers(1), numbers(1))
    assert not torch.allclose(numbers(1), numbers(2))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        start = Reader(JOBS["parity"], RecurrentLayer(4))
    before = torch.cat([p.flatten() for p in start.parameters()])
    assert 0 < (numbers(1) - before).abs().max() < 0.1  # begun there, and moved


def test_training_needs_a_step():
    with pytest.raises(ValueError, match="steps: expected at least 1, got 0"):
        train(JOBS["parity"], lambda: RecurrentLayer(4), steps=0)


def test_accuracy_is_of_what_is_asked_alone():
    class Always(nn.Module):
        def forward(self, tokens):
            scores = torch.zeros(*tokens.shape[:2], VALUES)
            scores[..., 5] = 1.0
            return scores

    _, answers = draw_recall(300, 20, seeded(10_000))
    share = (answers == 5).sum() / (300 * KEYS)
    assert accuracy(Always(), JOBS["recall"], 20) == pytest.approx(share.item())
    assert abs(share - 1 / VALUES) < 0.03


@pytest.mark.parametrize(
    ("name", "winner", "loser", "bound"),
    [
        ("recall", AttentionLayer, ConvolutionLayer, 0.3),
        ("neighbours", ConvolutionLayer, AttentionLayer, 0.75),
        ("parity", RecurrentLayer, AttentionLayer, 0.75),
    ],
)
def test_each_job_has_a_winner(name, winner, loser, bound):
    job = JOBS[name]
    good, bad = (train(job, lambda make=make: make(32)) for make in (winner, loser))
    assert accuracy(good, job, 20) > 0.95
    assert accuracy(bad, job, 20) < bound
    assert accuracy(good, job, 80) > 0.85
    counts = [mha.count_parameters(reader) for reader in (good, bad)]
    assert max(counts) < 1.05 * min(counts)
