"""The pair task, its readers, and what is measured on them."""

import re

import pytest
import torch
from torch.testing import assert_close

import mha
from mha import pair_readers
from mha.pair_readers import (
    PairReaders,
    accuracy,
    place_shares,
    right,
    right_without,
    specialisation,
    squares,
    symbol_scores,
    train,
)
from mha.pair_task import PairReader, Pairs, every_pair, marked_pairs, named_pairs

SYMBOLS, SEQ, WIDTH = 7, 5, 12  # all different, or a swapped axis would not show
TASKS = [(marked_pairs, 3), (named_pairs, SEQ)]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def some(draw=marked_pairs, count=20, seed=0):
    return draw(count, SYMBOLS, SEQ, seeded(seed))


def readers(heads=1, seeds=range(3), num_labels=3, **options):
    sizes = {"num_symbols": SYMBOLS, "num_labels": num_labels, "d_model": WIDTH}
    return PairReaders(seeds, num_heads=heads, **sizes | options)


# --- the task ---


@pytest.mark.parametrize("draw", [marked_pairs, named_pairs])
def test_the_answer_stands_under_the_labels_asked_for(draw):
    pairs = some(draw, 200)
    for symbols, labels, asked, places, answer in zip(*pairs, strict=True):
        for place in range(2):
            (found,) = (labels == asked[place]).nonzero()[:, 0].tolist()
            assert found == places[place]
            assert symbols[found] == answer[place]
    assert pairs.symbols.min() >= 0 and pairs.symbols.max() == SYMBOLS - 1
    assert len(pairs.places.unique(dim=0)) == SEQ * (SEQ - 1)  # all orders occur


def test_marks_and_names():
    marked, named = some(), some(named_pairs)
    assert torch.equal(marked.asked, torch.tensor([[1, 2]]).expand(20, 2))
    assert torch.equal(
        marked.labels.sort(dim=1).values, torch.tensor([[0, 0, 0, 1, 2]]).expand(20, 5)
    )
    assert torch.equal(named.labels, torch.arange(SEQ).expand(20, SEQ))
    assert torch.equal(named.asked, named.places)


@pytest.mark.parametrize("draw", [marked_pairs, named_pairs])
def test_every_pair_changes_the_two_places_alone(draw):
    pairs = some(draw)
    every = every_pair(pairs, SYMBOLS)
    assert every.answer.tolist() == [[p, q] for p in range(7) for q in range(7)]
    assert torch.equal(every.symbols.gather(1, every.places), every.answer)
    for name in ("labels", "asked", "places"):
        assert (getattr(every, name) == getattr(pairs, name)[0]).all()
    others = torch.ones(SEQ).bool()
    others[pairs.places[0]] = False
    assert (every.symbols[:, others] == pairs.symbols[0, others]).all()


def test_sequences_follow_their_generator(same_random_numbers):
    one, same, other = some(), some(), some(seed=1)
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not torch.equal(one.symbols, other.symbols)
    assert not torch.equal(one.places, other.places)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 7, 5), "count: expected at least 1, got 0"),
        ((2, 0, 5), "num_symbols: expected at least 1, got 0"),
        ((2, 7, 1), "seq: expected at least 2, got 1"),
    ],
)
def test_sequences_that_make_no_sense(sizes, message):
    for draw in (marked_pairs, named_pairs):
        with pytest.raises(ValueError, match=message):
            draw(*sizes, seeded())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: every_pair(some(), 0), ValueError, "num_symbols: expected at least 1"),
        (lambda: every_pair(some(), -2), ValueError, "num_symbols: expected at least"),
        (lambda: every_pair(some(), 2.0), TypeError, "num_symbols: expected an int"),
        (
            lambda: every_pair(Pairs(*(rows[:0] for rows in some())), 2),
            ValueError,
            "number of sequences: expected at least 1, got 0",
        ),
    ],
)
def test_every_pair_of_nothing(call, error, message):
    with pytest.raises(error, match=f"^{message}"):
        call()


# --- readers ---


def test_the_number_of_heads_changes_no_number_of_parameters():
    counts = {
        h: mha.count_parameters(PairReader(SYMBOLS, 3, WIDTH, h)) for h in (1, 2, 3, 12)
    }
    tables, projections = SYMBOLS + 3 * 3, 4 * (WIDTH * WIDTH + WIDTH)
    scores = 2 * SYMBOLS * (WIDTH + 1)
    assert set(counts.values()) == {tables * WIDTH + projections + scores}


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize(
    "options", [{}, {"blind_keys": True}, {"table_per_label": True}], ids=str
)
@pytest.mark.parametrize(("draw", "num_labels"), TASKS)
def test_readers_are_many_modules_with_the_book_s_attention(
    draw, num_labels, options, heads
):
    pairs = some(draw)
    many = readers(heads, (4, 9), num_labels, **options)
    scores, weights = many(pairs)
    for index, seed in enumerate((4, 9)):
        torch.manual_seed(seed)
        one = PairReader(SYMBOLS, num_labels, WIDTH, heads, **options)
        assert isinstance(one.attention, mha.MultiHeadAttention)
        for reader in (one, many.alone(index)):
            assert_close(scores[index], reader(pairs)[0])
            assert_close(weights[index], reader(pairs)[1])
    assert scores.shape == (2, 20, 2, SYMBOLS)
    assert weights.shape == (2, 20, heads, SEQ)


def test_a_reader_by_hand():
    torch.manual_seed(0)
    reader, pairs = PairReader(SYMBOLS, SEQ, WIDTH, 3), some(named_pairs, 1)
    x = reader.symbols.weight[pairs.symbols[0]] + reader.labels.weight
    first, second = pairs.asked[0]
    question = reader.first.weight[first] + reader.second.weight[second]
    output, weights = reader.attention(question[None], x)
    expected = output[0] @ reader.scores.weight.T + reader.scores.bias
    scores, its_weights = reader(pairs)
    assert_close(scores[0].flatten(), expected)
    assert_close(its_weights[0], weights[:, 0])


def test_blind_keys_see_no_symbol_and_others_do():
    every = every_pair(some(), SYMBOLS)
    for blind in (True, False):
        _, weights = readers(2, blind_keys=blind)(every)
        alike = torch.allclose(weights, weights[:, :1].expand_as(weights), atol=1e-6)
        assert alike == blind


def test_values_know_their_place_only_with_a_table_for_each_label():
    pairs = some()
    row = torch.full_like(pairs.symbols, 2)
    pairs = pairs._replace(symbols=row)
    plain, tables = (
        readers(table_per_label=own).alone(0).rows(pairs) for own in (False, True)
    )
    assert (plain == 2).all()
    assert torch.equal(tables, 2 + SYMBOLS * pairs.labels)


def test_making_readers_draws_nothing_of_the_caller(same_random_numbers):
    one, same = readers(seeds=(5, 5)), readers(seeds=(5,))
    for name, numbers in same.named_parameters():
        assert torch.equal(one.get_parameter(name)[0], numbers[0])
        assert torch.equal(one.get_parameter(name)[1], numbers[0])
    other = readers(seeds=(6,))
    assert not torch.equal(other.scores_weight, same.scores_weight)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: readers(seeds=()), "number of seeds: expected at least 1, got 0"),
        (lambda: readers(5), "d_model=12 and num_heads=5"),
        (lambda: readers(num_labels=0), "num_labels: expected at least 1, got 0"),
        (lambda: readers(num_symbols=0), "num_symbols: expected at least 1, got 0"),
        (lambda: readers(d_model=0), "d_model: expected at least 1, got 0"),
        (lambda: train(readers(), marked_pairs, steps=0), "steps: expected at least 1"),
        (lambda: symbol_scores(readers(blind_keys=True)), "readers: expected keys"),
        (lambda: symbol_scores(readers(table_per_label=True)), "readers: expected"),
    ],
)
def test_readers_that_make_no_sense(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PairReaders("ab"), "seeds: expected a list of ints, got 'ab'"),
        (lambda: PairReaders(3), "seeds: expected a list of ints, got 3"),
        (lambda: PairReaders(None), "seeds: expected a list of ints, got None"),
        (lambda: PairReaders([1.5]), "seed in seeds: expected an int, got 1.5 of type"),
        (lambda: PairReaders([True]), "seed in seeds: expected an int, got True"),
        (lambda: PairReaders([1, "a"]), "seed in seeds: expected an int, got 'a'"),
        (lambda: readers().alone(1.0), "index: expected an int, got 1.0 of type float"),
        (lambda: right_without(readers(), None, some()), "head: expected an int, got"),
    ],
)
def test_numbers_of_readers_and_heads_that_are_none(call, message):
    with pytest.raises(TypeError, match=f"^{message}"):
        call()


@pytest.mark.parametrize("number", [-1, 3, 99])
def test_readers_and_heads_that_are_not_there(number):
    many = readers(3)
    before = many.attention_W_o_weight.clone()
    message = f"expected a number from 0 to 2, got {number}"
    with pytest.raises(ValueError, match=f"^index: {message}"):
        many.alone(number)
    with pytest.raises(ValueError, match=f"^head: {message}"):
        right_without(many, number, some())
    assert torch.equal(many.attention_W_o_weight, before)


@pytest.mark.parametrize("wrong", [-1, 99])
@pytest.mark.parametrize("options", [{}, {"table_per_label": True}], ids=str)
@pytest.mark.parametrize(
    ("name", "highest"), [("symbols", SYMBOLS - 1), ("labels", 2), ("asked", 2)]
)
def test_what_the_tables_do_not_have(name, highest, options, wrong):
    """With a table for each label, a number too large would be another label's, and -1 the last row of all."""
    many, pairs = readers(**options), some()
    numbers = getattr(pairs, name).clone()
    numbers[3, 1] = highest + 1 if wrong == 99 else -1
    pairs = pairs._replace(**{name: numbers})
    message = (
        f"pairs.{name}: expected numbers from 0 to {highest}, "
        f"got numbers from {numbers.min()} to {numbers.max()}"
    )
    for reader in (many, many.alone(0)):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            reader(pairs)


def test_no_sequence_gives_no_answer():
    none = Pairs(*(rows[:0] for rows in some()))
    many = readers()
    assert many(none)[0].shape == (3, 0, 2, SYMBOLS)
    assert many.alone(0)(none)[1].shape == (0, 1, SEQ)


# --- training ---

QUICK = {"seq": SEQ, "steps": 150, "batch": 32}


def test_training_one_seed_among_others_or_alone_is_the_same(same_random_numbers):
    together, alone = readers(2, (3, 4)), readers(2, (4,))
    losses = train(together, marked_pairs, seq=SEQ, steps=12)
    its = train(alone, marked_pairs, seq=SEQ, steps=12)
    assert losses.shape == (12, 2) and not losses.requires_grad
    assert_close(losses[:, 1:], its, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(losses[:, 0], losses[:, 1])


def test_training_follows_its_seed_and_begins_with_the_loss_before_it():
    def losses(seed):
        return train(readers(), marked_pairs, seq=SEQ, steps=3, batch=16, seed=seed)

    pairs = marked_pairs(16, SYMBOLS, SEQ, seeded(5))
    scores = readers()(pairs)[0].log_softmax(dim=-1)
    expected = [
        -one.flatten(0, 1)[range(32), pairs.answer.flatten()].mean() for one in scores
    ]
    first = losses(5)
    assert_close(first[0], torch.stack(expected).detach())
    assert torch.equal(first, losses(5)) and not torch.equal(first, losses(6))


@pytest.fixture(scope="module")
def trained():
    """Eight readers of 12 symbols with one head, and eight with two."""
    found = {}
    for heads in (1, 2):
        found[heads] = PairReaders(range(8), num_symbols=12, num_heads=heads, d_model=8)
        train(found[heads], marked_pairs, steps=250, learning_rate=0.03)
    return found


def test_two_heads_learn_what_one_does_not(trained):
    pairs = marked_pairs(1000, 12, 6, seeded(1))
    one, two = (accuracy(trained[heads], pairs) for heads in (1, 2))
    assert two.median() > 0.97 > one.max() + 0.05
    counts = {mha.count_parameters(trained[heads]) for heads in (1, 2)}
    assert len(counts) == 1


def test_one_head_with_blind_keys_gets_no_square_right_and_two_get_all():
    """Four mixes of two symbols lie on one line, in an order that serves one of the two places only."""
    found = {}
    for heads, width in ((1, 8), (1, 32), (2, 8)):
        many = PairReaders(
            range(4), num_symbols=6, num_heads=heads, d_model=width, blind_keys=True
        )
        train(many, marked_pairs, steps=150, learning_rate=0.03)
        every = every_pair(marked_pairs(1, 6, 6, seeded()), 6)
        found[heads, width] = squares(many, every).triu(1).sum(dim=(1, 2))
    assert found[1, 8].tolist() == found[1, 32].tolist() == [0] * 4
    assert found[2, 8].median() == 15


# --- measures ---


def test_accuracy_needs_both_symbols():
    many, pairs = readers(), some()
    scores, _ = many(pairs)
    best = scores.argmax(dim=-1)
    assert torch.equal(right(many, pairs), best == pairs.answer)
    expected = [
        sum(a == b for a, b in zip(one.tolist(), pairs.answer.tolist(), strict=True))
        for one in best
    ]
    assert_close(accuracy(many, pairs), torch.tensor(expected) / 20)


def looking(share):
    """One reader whose head puts ``share`` of its weight on mark 1 and the rest on mark 2."""
    many = readers(seeds=(0,), blind_keys=True)
    with torch.no_grad():
        for name in ("W_q", "W_k"):
            getattr(many, f"attention_{name}_weight").copy_(torch.eye(WIDTH))
            getattr(many, f"attention_{name}_bias").zero_()
        many.first_weight.zero_()
        many.second_weight.zero_()
        many.second_weight[:, :, 0] = WIDTH**0.5
        many.labels_weight.zero_()
        marks = torch.tensor([0.0, share, 1 - share])
        many.labels_weight[0, :, 0] = marks.clamp(min=1e-30).log()
    return many


@pytest.mark.parametrize("share", [1.0, 0.8, 0.5, 0.1])
def test_shares_are_of_the_weight_on_both_places(share):
    shares = place_shares(looking(share), some())
    assert_close(shares, torch.tensor([[share]]))
    assert_close(specialisation(shares), torch.tensor([[abs(2 * share - 1)]]))


def test_shares_are_the_mean_over_sequences_for_each_head():
    many, pairs = readers(3), some()
    _, weights = many(pairs)
    expected = torch.zeros(3, 3)
    for row, (first, second) in enumerate(pairs.places):
        a, b = weights[:, row, :, first], weights[:, row, :, second]
        expected += a / (a + b) / 20
    assert_close(place_shares(many, pairs), expected.detach())


def test_without_a_head_its_output_is_zero_and_nothing_is_left_changed():
    many, pairs = readers(3), some()
    before = many.attention_W_o_weight.clone()
    for head in range(3):
        found = right_without(many, head, pairs)
        keep = torch.ones(3, WIDTH // 3)
        keep[head] = 0.0
        for index in range(3):
            one = many.alone(index)
            one.attention.W_o.register_forward_pre_hook(
                lambda _module, inputs, keep=keep: inputs[0] * keep.flatten()
            )
            expected = one(pairs)[0].argmax(dim=-1) == pairs.answer
            assert torch.equal(found[index], expected)
    assert torch.equal(many.attention_W_o_weight, before)
    assert not torch.equal(right_without(many, 0, pairs), right(many, pairs))


def test_squares_need_four_right_answers(monkeypatch):
    good = torch.ones(1, SYMBOLS, SYMBOLS).bool()
    good[0, 2, 5] = False  # (2, 5) alone
    good[0, 1, 1] = False
    answers = good.flatten(1)[..., None].expand(-1, -1, 2)
    monkeypatch.setattr(pair_readers, "right", lambda _readers, _pairs: answers)
    expected = torch.ones(1, SYMBOLS, SYMBOLS).bool()
    expected[0, 2, 5] = expected[0, 5, 2] = False
    expected[0, 1] = expected[0, :, 1] = False
    assert torch.equal(squares(readers(seeds=(0,)), some()), expected)


def test_symbol_scores_are_what_a_symbol_adds_to_its_score():
    many, pairs = readers(2), some()
    added = symbol_scores(many)
    assert added.shape == (3, 2, SYMBOLS)
    row = pairs.symbols.clone()
    for other in range(SYMBOLS):
        row[:, 0] = other
        _, weights = many(pairs._replace(symbols=row))
        row[:, 0] = 0
        _, before = many(pairs._replace(symbols=row))
        # A softmax's weights tell scores up to a constant: compare with the last token.
        change = (weights[..., 0] / weights[..., -1]).log()
        change = change - (before[..., 0] / before[..., -1]).log()
        expected = (added[..., other] - added[..., 0])[:, None].expand_as(change)
        assert_close(change, expected, atol=1e-5, rtol=1e-4)
