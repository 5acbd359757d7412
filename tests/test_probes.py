"""What a layer's last output feels, how many products wait for one another, and what PyTorch counts."""

import pytest
import torch
from small_layers import LAYERS, SEQ, WIDTH, made, tokens
from torch import nn
from torch.testing import assert_close

from mha.alternatives import AttentionLayer, ConvolutionLayer, RecurrentLayer
from mha.probes import counted_flops, felt, waiting_products

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


# --- what is no layer, or no tokens ---


def test_stacks_of_500_convolutions_are_felt_to_their_end():
    """Positive numbers, so that no ReLU is 0; the faintest gradient is 0.5 ** 500 or so, which float64 can hold."""
    x = torch.ones(1, 1100, 1, dtype=torch.float64)
    for layers in (499, 500):
        stack = ConvolutionLayer(1, 3, (1,) * layers).double()
        for numbers in stack.parameters():
            nn.init.constant_(numbers, 0.5)
        gradient = felt(stack, x)
        assert stack.receptive_field == 2 * layers + 1
        assert (gradient > 0).sum() == 2 * layers + 1
        assert (gradient[: -2 * layers - 1] == 0).all()


def no_path(x):
    return torch.ones_like(x)


def cut(x):
    return x.detach() @ torch.ones(WIDTH, WIDTH, requires_grad=True)


@pytest.mark.parametrize("layer", [no_path, cut])
def test_an_output_without_a_path_feels_nothing_and_has_no_chain(layer):
    assert torch.equal(felt(layer, tokens()), torch.zeros(SEQ))
    with pytest.raises(ValueError, match="layer: expected an output that depends on x"):
        waiting_products(layer, tokens())


def test_a_layer_that_does_nothing():
    assert waiting_products(nn.Identity(), tokens()) == 0
    assert (felt(nn.Identity(), tokens()) > 0).tolist() == [False] * 19 + [True]


@pytest.mark.parametrize("make", LAYERS)
def test_all_probes_work_in_inference_mode(make):
    layer, x = made(make), tokens()
    outside = felt(layer, x), waiting_products(layer, x), counted_flops(layer, x)
    with torch.inference_mode():
        x = x.clone()  # a tensor of inference mode
        assert torch.equal(felt(layer, x), outside[0])
        assert (waiting_products(layer, x), counted_flops(layer, x)) == outside[1:]


@pytest.mark.parametrize("shape", [(3, 4), (1, 2, 3, 4)], ids=str)
@pytest.mark.parametrize("probe", [felt, waiting_products])
def test_tokens_have_three_axes(probe, shape):
    with pytest.raises(ValueError, match=r"x: expected shape \(batch, seq, d_model\), got"):  # fmt: skip
        probe(nn.Identity(), tokens(*shape))


@pytest.mark.parametrize(
    ("shape", "missing"), [((0, 3, 4), "sequences"), ((2, 0, 4), "tokens")]
)
def test_without_a_last_token_nothing_can_be_felt(shape, missing):
    with pytest.raises(ValueError, match=f"number of {missing} in x: expected at least 1, got 0"):  # fmt: skip
        felt(nn.Identity(), tokens(*shape))


@pytest.mark.parametrize("probe", [felt, waiting_products, counted_flops])
def test_what_are_no_tokens(probe):
    with pytest.raises(TypeError, match=r"x: expected a torch\.Tensor, got list"):
        probe(made(ConvolutionLayer), [[[1.0] * WIDTH]])
    with pytest.raises(TypeError, match=r"x: expected a floating-point tensor, got torch\.int64"):  # fmt: skip
        probe(made(ConvolutionLayer), tokens().long())


@pytest.mark.parametrize("probe", [felt, waiting_products])
def test_what_is_no_layer(probe):
    gru = nn.GRU(WIDTH, WIDTH, batch_first=True)  # returns its last state as well
    with pytest.raises(TypeError, match=r"output of layer: expected a torch\.Tensor, got tuple"):  # fmt: skip
        probe(gru, tokens())
