"""The small model of characters: what it reads, that it sees no future, and that it learns a text of its own."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import mha
from mha import character_model
from mha.character_model import (
    CharacterModel,
    continue_text,
    next_character_loss,
    random_windows,
    train,
)

LETTERS, CONTEXT, WIDTH = 5, 8, 12  # all different, or a swapped axis would not show


def model(seed=0, **options):
    torch.manual_seed(seed)
    sizes = {"d_model": WIDTH, "num_heads": 3, "num_blocks": 2} | options
    return CharacterModel(LETTERS, CONTEXT, **sizes)


def letters(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(LETTERS, shape, generator=generator)


def periodic(length):
    return torch.arange(length) % LETTERS


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# --- the text ---


def test_the_help_text_is_long_plain_and_the_same_each_time():
    text = character_model.python_help_text()
    assert len(text) > 300_000 and text.isascii()
    assert text == character_model.python_help_text()
    assert "lambda" in text and 30 < len(set(text)) < 128


# --- the model ---


def test_its_parameters():
    shapes = {name: tuple(p.shape) for name, p in model().named_parameters()}
    around = {name: shape for name, shape in shapes.items() if "blocks" not in name}
    assert around == {
        "characters.weight": (LETTERS, WIDTH),
        "positions.weight": (CONTEXT, WIDTH),
        "norm.weight": (WIDTH,),
        "norm.bias": (WIDTH,),
        "scores.weight": (LETTERS, WIDTH),
        "scores.bias": (LETTERS,),
    }
    block = mha.count_parameters(mha.TransformerBlock(WIDTH, 3, 4 * WIDTH))
    for blocks in (1, 2, 3):
        assert mha.count_parameters(model(num_blocks=blocks)) == blocks * block + sum(
            map(math.prod, around.values())
        )
    assert set(model().state_dict()) == set(shapes)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("seq", [1, 3, CONTEXT])
def test_its_scores_are_those_of_blocks_on_characters_and_places(seq, is_causal):
    reader, text = model(is_causal=is_causal), letters(2, seq)
    x = torch.stack([reader.characters.weight[line] for line in text])
    x = x + torch.stack([reader.positions.weight[place] for place in range(seq)])
    keep = torch.ones(seq, seq).bool()
    for block in reader.blocks:
        x = block(x, keep.tril() if is_causal else keep)
    expected = reader.norm(x) @ reader.scores.weight.T + reader.scores.bias
    assert_close(reader(text), expected)


def reach(reader, text):
    """Return, ``(output, input)``, which character changes the scores at which place, in any digit."""
    with torch.no_grad():
        before, columns = reader(text), []
        for place in range(text.shape[1]):
            changed = text.clone()
            changed[:, place] = (changed[:, place] + 1) % LETTERS
            columns.append((reader(changed) != before).any(dim=-1).any(dim=0))
    return torch.stack(columns, dim=1)


@pytest.mark.parametrize("seq", [5, CONTEXT])
def test_a_later_character_changes_no_earlier_score_unless_the_mask_is_off(seq):
    reader = model()
    assert torch.equal(reach(reader, letters(3, seq)), torch.ones(seq, seq).tril() > 0)
    reader.is_causal = False
    assert reach(reader, letters(3, seq)).all()


def test_the_mask_is_no_parameter():
    seeing, blinded = model(is_causal=False), model()
    names = seeing.state_dict()
    for name, number in blinded.state_dict().items():
        assert torch.equal(number, names[name]), name
    text = letters(2, CONTEXT)
    assert not torch.allclose(blinded(text), seeing(text))
    blinded.is_causal = False
    assert torch.equal(blinded(text), seeing(text))
    for name, number in blinded.state_dict().items():
        assert torch.equal(number, names[name]), name


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ((0, 8), {}, "num_characters: expected at least 1, got 0"),
        ((5, 0), {}, "context: expected at least 1, got 0"),
        ((5, 8), {"num_blocks": 0}, "num_blocks: expected at least 1, got 0"),
        ((5, 8), {"num_heads": 0}, "num_heads: expected at least 1, got 0"),
        ((5, 8), {"d_model": 10, "num_heads": 3}, "d_model=10 and num_heads=3"),
    ],
)
def test_sizes_that_do_not_fit(sizes, options, message):
    with pytest.raises(ValueError, match=message):
        CharacterModel(*sizes, **options)


def test_a_text_longer_than_the_context():
    with pytest.raises(ValueError, match="text: expected at most 8 characters, got 9"):
        model()(letters(1, 9))


@pytest.mark.parametrize("shape", [(5,), (1, 2, 3)], ids=str)
def test_a_text_of_other_axes_and_one_that_is_no_tensor(shape):
    with pytest.raises(
        ValueError, match=r"text: expected shape \(batch, seq\)"
    ) as error:
        model()(letters(*shape))
    assert str(shape) in str(error.value)
    with pytest.raises(TypeError, match=r"text: expected a torch\.Tensor, got str"):
        model()("abc")


# --- windows ---


def test_windows_are_pieces_of_the_text_from_every_place():
    text = torch.randperm(12, generator=seeded())  # no two pieces are alike
    windows = random_windows(text, 300, 5, seeded())
    pieces = text.unfold(0, 5, 1)  # (8, 5), the last one ends with the text
    assert {tuple(window) for window in windows.tolist()} == set(
        map(tuple, pieces.tolist())
    )
    assert windows.shape == (300, 5)


def test_a_window_as_long_as_the_text_is_the_text():
    text = letters(6)
    assert torch.equal(random_windows(text, 3, 6, seeded()), text.expand(3, 6))


def test_windows_follow_their_generator(same_random_numbers):
    text = torch.arange(500)
    windows = random_windows(text, 20, 4, seeded(3))
    assert torch.equal(windows, random_windows(text, 20, 4, seeded(3)))
    assert not torch.equal(windows, random_windows(text, 20, 4, seeded(4)))
    generator = seeded(3)
    first, second = (random_windows(text, 20, 4, generator) for _ in range(2))
    assert torch.equal(first, windows) and not torch.equal(second, windows)


def test_windows_of_a_text_that_is_too_short():
    with pytest.raises(ValueError, match="text: expected at least 4 characters, got 3"):
        random_windows(letters(3), 1, 4, seeded())
    with pytest.raises(ValueError, match="length: expected at least 1, got 0"):
        random_windows(letters(3), 1, 0, seeded())
    with pytest.raises(ValueError, match="count: expected at least 1, got 0"):
        random_windows(letters(3), 0, 2, seeded())


# --- the loss ---


@pytest.mark.parametrize("is_causal", [True, False])
def test_the_loss_is_the_mean_over_all_characters_but_the_first(is_causal):
    reader, windows = model(is_causal=is_causal), letters(3, CONTEXT + 1)
    losses = []
    for window in windows:
        scores = reader(window[None, :-1])[0]
        for place, wanted in enumerate(window[1:]):
            losses.append(scores[place].logsumexp(dim=0) - scores[place, wanted])
    loss = next_character_loss(reader, windows)
    assert len(losses) == 3 * CONTEXT
    assert_close(loss, torch.stack(losses).mean())
    scores = reader(windows[:, :-1])
    means = [
        F.cross_entropy(scores[:, place], windows[:, place + 1])
        for place in range(CONTEXT)
    ]
    assert_close(loss, torch.stack(means).mean())


def test_one_character_alone_has_nothing_to_predict():
    # Its mean over no characters would be NaN.
    with pytest.raises(ValueError, match="windows: expected at least 2, got 1"):
        next_character_loss(model(), letters(3, 1))


@pytest.mark.parametrize("num_characters", [2, 20, 100])
def test_before_training_it_knows_nothing(num_characters):
    torch.manual_seed(0)
    reader = CharacterModel(num_characters, 16)
    windows = torch.randint(num_characters, (20, 17), generator=seeded())
    loss = next_character_loss(reader, windows).item()
    assert abs(loss - math.log(num_characters)) < 0.4


# --- training ---

SMALL = {"d_model": 16, "num_heads": 2, "num_blocks": 1}
QUICK = {"steps": 40, "batch": 16, "learning_rate": 2e-2}


def test_training_learns_a_periodic_text():
    reader = model(**SMALL)
    losses = train(reader, periodic(100), **QUICK)
    assert len(losses) == 40 and all(type(loss) is float for loss in losses)
    assert abs(losses[0] - math.log(LETTERS)) < 0.4
    assert losses[-1] < 0.1 * losses[0]
    assert next_character_loss(reader, periodic(CONTEXT + 1)[None]).item() < 0.2
    assert reader.training
    continued = continue_text(reader, periodic(3), 20)
    assert torch.equal(continued, periodic(23))


def test_the_loss_of_a_step_is_that_before_it_on_its_window():
    text, reader = periodic(100), model(**SMALL)
    windows = random_windows(text, 16, CONTEXT + 1, seeded(5))
    expected = next_character_loss(reader, windows).item()
    losses = train(reader, text, steps=2, batch=16, seed=5)
    assert losses[0] == pytest.approx(expected, abs=1e-6)


def test_training_follows_its_seed(same_random_numbers):
    text = letters(100)

    def losses(seed):
        with torch.random.fork_rng():
            reader = model(**SMALL)
        return train(reader, text, steps=5, seed=seed)

    assert losses(0) == losses(0)
    assert losses(0) != losses(1)


def test_training_on_a_text_shorter_than_a_window():
    with pytest.raises(ValueError, match="text: expected at least 9 characters, got 8"):
        train(model(**SMALL), letters(CONTEXT), steps=1)


# --- continuing ---


@pytest.mark.parametrize("prompt", [1, CONTEXT, 3 * CONTEXT])
def test_the_text_goes_on_behind_the_prompt(prompt):
    text = letters(prompt)
    copy, longer = text.clone(), continue_text(model(), text, 2 * CONTEXT)
    assert torch.equal(text, copy) and torch.equal(longer[:prompt], text)
    assert len(longer) == prompt + 2 * CONTEXT
    assert longer.dtype == text.dtype and 0 <= longer.min() <= longer.max() < LETTERS
    assert torch.equal(continue_text(model(), text, 0), text)


@pytest.mark.parametrize("prompt", [2, 3 * CONTEXT])
def test_each_character_follows_from_the_last_ones_written(prompt):
    reader, read = model(), []
    reader.register_forward_pre_hook(lambda _module, inputs: read.append(*inputs))
    longer = continue_text(reader, letters(prompt), 20)
    assert len(read) == 20
    for written, text in enumerate(read, start=prompt):
        assert torch.equal(text[0], longer[max(0, written - CONTEXT) : written])
    end = continue_text(reader, longer[:prompt][-CONTEXT:], 20)[-20:]
    assert torch.equal(longer[-20:], end)


def test_continuing_follows_its_seed(same_random_numbers):
    with torch.random.fork_rng():
        reader = model()
    text = letters(4)
    first = continue_text(reader, text, 40, seed=2)
    assert torch.equal(first, continue_text(reader, text, 40, seed=2))
    assert not torch.equal(first, continue_text(reader, text, 40, seed=3))


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2])
def test_characters_are_drawn_as_often_as_the_scores_say(temperature):
    reader, shares = model(**SMALL), torch.tensor([0.3, 0.0, 0.4, 0.2, 0.1])
    with torch.no_grad():
        reader.scores.weight.zero_()
        reader.scores.bias.copy_(shares.log())
    drawn = continue_text(reader, letters(1), 1000, temperature=temperature)[1:]
    expected = shares ** (1 / temperature)
    found = torch.bincount(drawn, minlength=LETTERS) / 1000
    assert_close(found, expected / expected.sum(), atol=0.05, rtol=0)
    assert found[1] == 0


def test_the_temperature_is_one_unless_said():
    reader, text = model(), letters(4)
    plain = continue_text(reader, text, 40)
    assert torch.equal(plain, continue_text(reader, text, 40, temperature=1.0))
    assert not torch.equal(plain, continue_text(reader, text, 40, temperature=0.2))


@pytest.mark.parametrize("temperature", [0, -1.0])
def test_a_temperature_that_is_none(temperature):
    with pytest.raises(
        ValueError,
        match=f"temperature: expected a number > 0, got {temperature}",
    ):
        continue_text(model(), letters(2), 1, temperature=temperature)
    with pytest.raises(TypeError, match="temperature: expected a number, got '1'"):
        continue_text(model(), letters(2), 1, temperature="1")


def test_continuing_records_no_gradients():
    reader, recorded = model(), []
    reader.register_forward_hook(
        lambda _module, _inputs, scores: recorded.append(scores.requires_grad)
    )
    continue_text(reader, letters(4), 3)
    assert recorded == [False] * 3 and torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in reader.parameters())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: character_model.CharacterModel(5, 8, d_model=0), "d_model: expected at least 1, got 0"),
        (lambda m: random_windows(torch.zeros(1, 9).long(), 1, 1, torch.Generator()), r"text: .*\(1, 9\)"),
        (lambda m: character_model.continue_text(m, torch.tensor([]).long(), 3), r"text: .*not empty, got \(0,\)"),
        (lambda m: character_model.train(m, torch.zeros(99).long(), steps=0), "steps: expected at least 1, got 0"),
        (lambda m: character_model.train(m, torch.zeros(99).long(), batch=0), "count: expected at least 1, got 0"),
    ],
)  # fmt: skip
def test_numbers_and_texts_that_make_no_sense(call, message):
    with pytest.raises(ValueError, match=message):
        call(character_model.CharacterModel(5, 8, d_model=8, num_heads=2, num_blocks=1))
