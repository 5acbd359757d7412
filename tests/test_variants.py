"""The slower ways compute what the module computes, gradients included."""

import pytest
import torch

import mha
from mha.variants import batched_heads, loop_over_heads


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("variant", [loop_over_heads, batched_heads])
def test_values_and_gradients_are_the_modules(variant, bias, is_causal):
    torch.manual_seed(0)
    module = mha.MultiHeadAttention(12, 3, bias=bias).double()
    x = torch.randn(2, 5, 12, dtype=torch.float64, requires_grad=True)
    direction = torch.randn(2, 5, 12, dtype=torch.float64)
    answers = []
    for output in (
        module(x, is_causal=is_causal)[0],
        variant(module, x, is_causal=is_causal),
    ):
        wanted = [x, *module.parameters()]
        answers.append(
            [output, *torch.autograd.grad((output * direction).sum(), wanted)]
        )
    torch.testing.assert_close(answers[1], answers[0])
