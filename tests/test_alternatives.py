"""Convolution, recurrence and attention side by side: what they see, in how many steps, and at which cost."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import mha
from mha.alternatives import (
    AttentionLayer,
    ConvolutionLayer,
    RecurrentLayer,
    counted_flops,
    felt,
    sinusoids,
    waiting_products,
)

WIDTH, SEQ = 12, 20
LAYERS = [ConvolutionLayer, RecurrentLayer, AttentionLayer]


def made(make, width=WIDTH, **options):
    torch.manual_seed(0)
    return make(width, **options)


def tokens(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape or (2, SEQ, WIDTH), generator=generator)


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
    assert sinusoids(0, 4).shape == (0, 4)


# --- what is felt ---


def felt_by(layer, length, seed=1):
    return felt(layer.double(), tokens(4, length, WIDTH, seed=seed).double())


@pytest.mark.parametrize("kernel", [2, 3, 5])
@pytest.mark.parametrize("dilations", [(1,), (1, 1), (1, 2, 4)])
def test_a_convolution_feels_its_receptive_field_and_exactly_nothing_else(
    kernel, dilations
):
    layer = made(ConvolutionLayer, kernel=kernel, dilations=dilations)
    field = 1 + (kernel - 1) * sum(dilations)
    assert layer.receptive_field == field
    gradient = felt_by(layer, 40)
    assert (gradient[:-field] == 0).all() and (gradient[-field:] > 0).all()


def test_recurrence_and_attention_feel_the_first_token():
    for make in (RecurrentLayer, AttentionLayer):
        assert (felt_by(made(make), 60) > 0).all()


def test_through_a_recurrence_the_gradient_fades_and_through_attention_it_does_not():
    fading, lasting = (
        felt_by(made(make), 60) for make in (RecurrentLayer, AttentionLayer)
    )
    assert fading[0] < 1e-6 * fading[-1]
    assert lasting[0] > 1e-4 * lasting[-1]
    assert lasting[:-1].max() < 30 * lasting[:-1].min()  # far or near, about alike


def test_what_is_felt_by_hand():
    class Sum(nn.Module):
        def forward(self, x):
            return (x * torch.arange(1.0, 4.0)[:, None]).cumsum(dim=1)

    found = felt(Sum(), tokens(5, 3, 4))
    length = torch.linspace(1.0, 2.0, 4).norm()
    assert_close(found, torch.arange(1.0, 4.0) * length)


def test_what_is_felt_in_opposite_directions_does_not_cancel():
    class Opposite(nn.Module):
        def forward(self, x):
            return x * torch.tensor([1.0, -1.0])[:, None, None]

    found = felt(Opposite(), tokens(2, 3, 4))
    assert_close(found, torch.tensor([0.0, 0, 1]) * torch.linspace(1.0, 2.0, 4).norm())


def test_feeling_changes_nothing_and_works_without_gradients():
    layer, x = made(ConvolutionLayer), tokens()
    copy = x.clone()
    with torch.no_grad():
        first = felt(layer, x)
    assert torch.equal(first, felt(layer, x)) and torch.equal(x, copy)
    assert not x.requires_grad and x.grad is None
    assert all(parameter.grad is None for parameter in layer.parameters())


# --- steps and cost ---


@pytest.mark.parametrize("seq", [1, 2, 9, 33])
def test_only_the_recurrence_waits_longer_for_a_longer_sequence(seq):
    x = tokens(1, seq, WIDTH)
    assert waiting_products(made(RecurrentLayer), x) == seq
    assert waiting_products(made(AttentionLayer), x) == 6
    for layers in (1, 2, 5):
        layer = made(ConvolutionLayer, dilations=(1,) * layers)
        assert waiting_products(layer, x) == layers


def test_a_chain_longer_than_python_s_stack():
    assert waiting_products(made(RecurrentLayer, 2), tokens(1, 3000, 2)) == 3000


def test_products_side_by_side_do_not_wait():
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x):
            return self.c(self.a(x) + self.b(x)) + self.a(x)

    assert waiting_products(Wide(), tokens()) == 2


@pytest.mark.parametrize("seq", [1, 7, 20])
@pytest.mark.parametrize("make", LAYERS)
def test_the_formulas_count_what_pytorch_counts(make, seq):
    layer = made(make)
    assert counted_flops(layer, tokens(3, seq, WIDTH)) == 3 * layer.flops(seq)


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
        (lambda: ConvolutionLayer(4, 3, (1, 0)), "dilation: expected at least 1"),
        (lambda: RecurrentLayer(0), "d_model: expected at least 1, got 0"),
        (lambda: AttentionLayer(7, 7), "d_model: expected an even number, got 7"),
        (lambda: AttentionLayer(0), "d_model: expected at least 1, got 0"),
        (lambda: AttentionLayer(6), "d_model=6 and num_heads=4"),
        (lambda: sinusoids(-1, 4), "seq: expected at least 0, got -1"),
        (lambda: sinusoids(3, 5), "d_model: expected an even number, got 5"),
        (lambda: felt(nn.Identity(), tokens(3, 4)), r"x: expected shape .* \(3, 4\)"),
    ],
)
def test_numbers_that_make_no_sense(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("make", LAYERS)
def test_tokens_of_another_width(make):
    with pytest.raises(ValueError, match=r"x: expected .*12.*got \(2, 5, 8\)"):
        made(make)(tokens(2, 5, 8))
