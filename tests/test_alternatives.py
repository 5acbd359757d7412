"""Convolution, recurrence and attention side by side: what each computes, what it sees and what it costs."""

import math

import pytest
import torch
from small_layers import LAYERS, SEQ, WIDTH, made, tokens
from torch import nn
from torch.testing import assert_close

import mha
from mha.alternatives import (
    AttentionLayer,
    ConvolutionLayer,
    RecurrentLayer,
    sinusoids,
)

# --- the layers ---


def test_the_parameters_are_six_squares_and_little_more():
    counts = {make: mha.count_parameters(make(32)) for make in LAYERS}
    assert counts == {
        ConvolutionLayer: 6 * 32**2 + 2 * 32,
        RecurrentLayer: 6 * 32**2 + 6 * 32,
        AttentionLayer: 6 * 32**2 + 10 * 32,
    }
    assert max(counts.values()) < 1.05 * min(counts.values())


@pytest.mark.parametrize("make", LAYERS)
def test_each_token_depends_on_itself_and_never_on_later_ones(make):
    reached = mha.influence(made(make), tokens())
    assert torch.equal(reached, reached.tril())
    assert reached.diagonal().all()


@pytest.mark.parametrize("make", LAYERS)
def test_one_sequence_or_many(make):
    layer, x = made(make), tokens()
    many = layer(x)
    assert many.shape == x.shape
    for row, its in zip(x, many, strict=True):
        assert_close(layer(row), its)


@pytest.mark.parametrize("shape", [(0, WIDTH), (2, 0, WIDTH), (0, 3, WIDTH)])
@pytest.mark.parametrize("make", LAYERS)
def test_no_token_and_no_sequence(make, shape):
    output = made(make)(tokens(*shape))
    assert output.shape == shape and output.dtype == torch.float32
    assert made(make).flops(0) == 0


@pytest.mark.parametrize("kernel", [1, 2, 4])
@pytest.mark.parametrize("dilations", [[1], (1, 1, 1), (1, 2, 4, 8), (3, 1), (5,)])
def test_the_receptive_field_is_what_reaches_the_last_output(kernel, dilations):
    layer = made(ConvolutionLayer, kernel=kernel, dilations=dilations)
    reached = mha.influence(layer, tokens(1, 60, WIDTH))[-1].nonzero().flatten()
    assert layer.receptive_field == 60 - reached.min()


def test_the_convolution_by_hand():
    layer, x = made(ConvolutionLayer, dilations=(1, 3)), tokens(7, WIDTH)
    expected = x
    for convolution, dilation in zip(layer.convolutions, (1, 3), strict=True):
        rows = []
        for place in range(7):
            row = convolution.bias.clone()
            for tap in range(3):  # the last tap meets the token itself
                earlier = place - (2 - tap) * dilation
                if earlier >= 0:
                    row = row + convolution.weight[:, :, tap] @ expected[earlier]
            rows.append(expected[place] + row.relu())
        expected = torch.stack(rows)
    assert_close(layer(x), expected)


def test_the_recurrence_is_pytorch_s_gru_token_by_token():
    layer, x = made(RecurrentLayer), tokens()
    cell = nn.GRUCell(WIDTH, WIDTH)
    with torch.no_grad():
        for name, numbers in cell.named_parameters():
            numbers.copy_(layer.gru.get_parameter(f"{name}_l0"))
    state, states = torch.zeros(2, WIDTH), []
    for place in range(SEQ):
        state = cell(x[:, place], state)
        states.append(state)
    assert_close(layer(x), torch.stack(states, dim=1))


def test_attention_is_the_book_s_block_on_tokens_and_positions():
    layer, x = made(AttentionLayer), tokens()
    expected = layer.block(x + sinusoids(SEQ, WIDTH), torch.ones(SEQ, SEQ).tril() > 0)
    assert_close(layer(x), expected)
    assert isinstance(layer.block, mha.TransformerBlock)
    assert layer.block.attention.num_heads == 4


def test_sinusoids_by_hand():
    found = sinusoids(5, 6)
    for place in range(5):
        for pair in range(3):
            angle = place / 10_000 ** (2 * pair / 6)
            assert found[place, pair] == pytest.approx(math.sin(angle), abs=1e-6)
            assert found[place, 3 + pair] == pytest.approx(math.cos(angle), abs=1e-6)
    assert sinusoids(0, 4).shape == (0, 4) and sinusoids(3, 0).shape == (3, 0)


def test_sinusoids_are_right_far_out_too():
    found = sinusoids(100_001, 64)
    assert found.dtype == torch.get_default_dtype()
    for pair in range(32):
        angle = 100_000 / 10_000 ** (2 * pair / 64)
        assert found[-1, pair] == pytest.approx(math.sin(angle), abs=1e-6)
        assert found[-1, 32 + pair] == pytest.approx(math.cos(angle), abs=1e-6)


# --- what they cost ---


def test_three_costs_share_a_part_and_attention_adds_its_square():
    cost = {make: made(make).flops(SEQ) for make in LAYERS}
    linear = 12 * SEQ * WIDTH**2
    assert cost[ConvolutionLayer] == cost[RecurrentLayer] == linear
    assert cost[AttentionLayer] == linear + 4 * SEQ**2 * WIDTH
    wide = made(ConvolutionLayer, kernel=5, dilations=(1, 2, 4))
    assert wide.flops(SEQ) == 3 * 2 * 5 * SEQ * WIDTH**2


# --- errors ---


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ConvolutionLayer(0), "d_model: expected at least 1, got 0"),
        (lambda: ConvolutionLayer(4, 0), "kernel: expected at least 1, got 0"),
        (lambda: ConvolutionLayer(4, 3, ()), "dilations: expected at least 1, got 0"),
        (
            lambda: ConvolutionLayer(4, 3, (1, 0)),
            r"dilations\[1\]: expected at least 1",
        ),
        (lambda: RecurrentLayer(0), "d_model: expected at least 1, got 0"),
        (lambda: AttentionLayer(7, 7), "d_model: expected an even number, got 7"),
        (lambda: AttentionLayer(0), "d_model: expected at least 1, got 0"),
        (lambda: AttentionLayer(6), "d_model=6 and num_heads=4"),
        (lambda: sinusoids(-1, 4), "seq: expected at least 0, got -1"),
        (lambda: sinusoids(3, 5), "d_model: expected an even number, got 5"),
        (lambda: ConvolutionLayer(4).flops(-3), "seq: expected at least 0, got -3"),
        (lambda: RecurrentLayer(4).flops(-3), "seq: expected at least 0, got -3"),
        (lambda: AttentionLayer(4).flops(-3), "seq: expected at least 0, got -3"),
    ],
)
def test_numbers_that_make_no_sense(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("make", LAYERS)
def test_tokens_of_another_width(make):
    with pytest.raises(ValueError, match=r"x: expected .*12.*got \(2, 5, 8\)"):
        made(make)(tokens(2, 5, 8))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ConvolutionLayer(4, 3, 2), "dilations: expected a list of ints, got 2"),
        (lambda: ConvolutionLayer(4, 3, (1, 1.5)), r"dilations\[1\]: expected an int, got 1.5"),
        (lambda: ConvolutionLayer(4).flops(2.5), "seq: expected an int, got 2.5"),
        (lambda: RecurrentLayer(4).flops(2.5), "seq: expected an int, got 2.5"),
        (lambda: AttentionLayer(4).flops(2.5), "seq: expected an int, got 2.5"),
        (lambda: sinusoids(2.5, 4), "seq: expected an int, got 2.5"),
    ],
)  # fmt: skip
def test_what_is_of_another_type(call, message):
    with pytest.raises(TypeError, match=message):
        call()
