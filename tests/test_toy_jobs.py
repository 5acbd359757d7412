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


@pytest.mark.parametrize("name", JOBS)
def test_what_cannot_be_drawn(name):
    draw = JOBS[name].draw
    tokens, answers = draw(0, 20, seeded())
    assert tokens.shape == (0, 20, len(JOBS[name].fields)) and answers.shape == (0, 20)
    with pytest.raises(ValueError, match="count: expected at least 0, got -1"):
        draw(-1, 20, seeded())
    for count, length, wrong in ((2.5, 20, "count"), (2, 20.5, "length")):
        with pytest.raises(TypeError, match=f"{wrong}: expected an int, got"):
            draw(count, length, seeded())
    with pytest.raises(TypeError, match="generator: expected a Generator, got None"):
        draw(2, 20, None)


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


class Drops(nn.Module):
    """Draws random numbers in training."""

    d_model = 4

    def __init__(self):
        super().__init__()
        self.layer, self.dropout = ConvolutionLayer(4), nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(self.layer(x))


def test_dropout_in_training_follows_the_seed_alone(same_random_numbers):
    def numbers(draw_before):
        with torch.random.fork_rng():
            torch.rand(draw_before)
            reader = train(JOBS["parity"], Drops, steps=3)
        return torch.cat([p.flatten() for p in reader.parameters()])

    assert torch.equal(numbers(1), numbers(2))
    reader = train(JOBS["parity"], Drops, steps=1)  # outside: draws nothing of ours
    accuracy(reader, JOBS["parity"], 9)


def test_a_trained_reader_is_in_eval_mode_and_accuracy_changes_no_mode():
    reader = train(JOBS["parity"], Drops, steps=1)
    assert not any(part.training for part in reader.modules())
    share = accuracy(reader, JOBS["parity"], 9)
    reader.train().layer.layer.eval()
    modes = [part.training for part in reader.modules()]
    assert accuracy(reader, JOBS["parity"], 9) == share  # no dropout
    assert [part.training for part in reader.modules()] == modes


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_training_works_where_gradients_are_off(mode):
    numbers = []
    for context in (torch.enable_grad, mode):
        with context():
            reader = train(JOBS["parity"], Drops, steps=2)
        numbers.append(torch.cat([p.flatten() for p in reader.parameters()]))
    assert torch.equal(*numbers)
    assert all(p.requires_grad for p in reader.parameters())


def learn(**options):
    return train(JOBS["parity"], lambda: RecurrentLayer(4), **options)


def asked(name, **options):
    reader = Reader(JOBS["parity"], RecurrentLayer(4))
    return accuracy(reader, JOBS[name], 20, **options)


def read(name, numbers):
    return Reader(JOBS[name], RecurrentLayer(4))(torch.tensor(numbers))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: learn(steps=0), "steps: expected at least 1, got 0"),
        (lambda: learn(batch=0), "batch: expected at least 1, got 0"),
        (lambda: learn(length=0), "length: expected at least 1, got 0"),
        (lambda: learn(learning_rate=-1.0), "learning_rate: expected a number > 0, got -1"),
        (lambda: learn(learning_rate=float("nan")), "learning_rate: .* > 0, got nan"),
        (lambda: learn(learning_rate=float("inf")), "learning_rate: .* > 0, got inf"),
        (lambda: asked("parity", count=0), "count: expected at least 1, got 0"),
        (lambda: asked("recall"), r"job: .* \(\(2,\), 2\), got \(\(9, 9\), 8\)"),
        (lambda: asked("neighbours"), r"job: .* \(\(2,\), 2\), got \(\(3,\), 3\)"),
        (lambda: read("parity", [[[0], [2]]]), r"tokens\[..., 0\]: .* 0 to 1, got 2"),
        (lambda: read("recall", [[[8, 8], [0, -1]]]), r"tokens\[..., 1\]: .* 0 to 8, got -1"),
        (lambda: read("recall", [[[0], [2]]]), r"tokens: expected shape \(batch, seq, 2\), got \(1, 2, 1\)"),
        (lambda: read("parity", [[0, 1]]), r"tokens: expected shape \(batch, seq, 1\), got shape \(1, 2\)"),
    ],
)  # fmt: skip
def test_numbers_that_make_no_sense(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: train("parity", Drops), "job: expected a Job, got 'parity' of type str"),
        (lambda: Reader("parity", Drops()), "job: expected a Job, got 'parity' of type str"),
        (lambda: accuracy(Drops(), "parity", 20), "job: expected a Job, got 'parity'"),
        (lambda: accuracy(len, JOBS["parity"], 20), "reader: expected a Module, got"),
        (lambda: train(JOBS["parity"], lambda: nn.Linear(4, 4)), "layer.d_model: expected an int, got None"),
        (lambda: train(JOBS["parity"], lambda: len), "layer: expected a Module, got"),
        (lambda: learn(batch=2.5), "batch: expected an int, got 2.5"),
        (lambda: learn(learning_rate="1"), "learning_rate: expected a number, got '1'"),
        (lambda: read("parity", [[[0.0], [1.0]]]), "tokens: expected whole numbers, got torch.float32"),
    ],
)  # fmt: skip
def test_what_is_of_another_type(call, message):
    with pytest.raises(TypeError, match=message):
        call()


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
    ("name", "learns", "not_so", "bound"),
    [
        ("recall", AttentionLayer, ConvolutionLayer, 0.3),
        ("neighbours", ConvolutionLayer, AttentionLayer, 0.75),
        ("parity", RecurrentLayer, AttentionLayer, 0.75),
    ],
)
def test_each_layer_learns_a_job_that_another_does_not(name, learns, not_so, bound):
    job = JOBS[name]
    good, bad = (train(job, lambda make=make: make(32)) for make in (learns, not_so))
    assert accuracy(good, job, 20) > 0.95
    assert accuracy(bad, job, 20) < bound
    assert accuracy(good, job, 80) > 0.85
    counts = [mha.count_parameters(reader) for reader in (good, bad)]
    assert max(counts) < 1.05 * min(counts)
