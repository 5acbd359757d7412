"""Attention beside convolution and recurrence: three layers of one size.

All take and return ``(batch, seq, d_model)`` or ``(seq, d_model)``, see nothing of later tokens, and have about
``6 d_model²`` parameters.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from .checks import check_at_least, check_tokens, listed
from .head_splitting import attention_cost
from .transformer_block import TransformerBlock


class ConvolutionLayer(nn.Module):
    """Causal convolutions one after the other, each with a ReLU and a residual connection.

    Parameters
    ----------
    d_model : int
        Width of the tokens' vectors.
    kernel : int
        How many inputs each output of one convolution sees: the token itself and those before it.
    dilations : sequence of int
        One convolution for each: the distance between the inputs that it sees.

    Raises
    ------
    TypeError
        If ``dilations`` is no list, or a number is no int.
    ValueError
        If a number is less than 1, or there is no convolution.
    """

    def __init__(
        self, d_model: int, kernel: int = 3, dilations: Sequence[int] = (1, 1)
    ) -> None:
        super().__init__()
        check_at_least("d_model", d_model)
        check_at_least("kernel", kernel)
        dilations = listed("dilations", dilations, "ints")
        check_at_least("number of dilations", len(dilations))
        for number, dilation in enumerate(dilations):
            check_at_least(f"dilations[{number}]", dilation)
        self.d_model, self.kernel = d_model, kernel
        self.convolutions = nn.ModuleList(
            nn.Conv1d(d_model, d_model, kernel, dilation=dilation)
            for dilation in dilations
        )

    @property
    def receptive_field(self) -> int:
        """How many inputs an output can depend on, itself included."""
        steps = sum(layer.dilation[0] for layer in self.convolutions)
        return 1 + (self.kernel - 1) * steps

    def forward(
        self, x: Float[Tensor, "*batch seq d_model"]
    ) -> Float[Tensor, "*batch seq d_model"]:
        """Return the tokens after all convolutions."""
        check_tokens("x", x, self.d_model, self.convolutions[0].weight.dtype)
        if x.shape[-2] == 0:  # nn.Conv1d wants a token
            return x.clone()
        for convolution in self.convolutions:
            before = (self.kernel - 1) * convolution.dilation[0]
            padded = F.pad(x.mT, (before, 0))  # zeros before the first token
            x = x + F.relu(convolution(padded)).mT
        return x

    def flops(self, seq: int) -> int:
        """Count the operations of the matrix products for one sequence, a multiply-add as 2."""
        check_at_least("seq", seq, 0)
        each = 2 * self.kernel * seq * self.d_model**2
        return each * len(self.convolutions)


class RecurrentLayer(nn.Module):
    """PyTorch's GRU: a state of width ``d_model`` is carried from token to token.

    The gate ``r_t`` is applied after the state's matrix, ``r_t * (W_hc h)``; in the paper it is before it,
    ``W_hc (r_t * h)``.

    Parameters
    ----------
    d_model : int
        Width of the tokens' vectors and of the state.

    Raises
    ------
    ValueError
        If the width is less than 1.

    Source
    ------
    Cho et al. 2014, "Learning Phrase Representations using RNN Encoder–Decoder for Statistical Machine Translation".
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        check_at_least("d_model", d_model)
        self.d_model = d_model
        self.gru = nn.GRU(d_model, d_model, batch_first=True)

    def forward(
        self, x: Float[Tensor, "*batch seq d_model"]
    ) -> Float[Tensor, "*batch seq d_model"]:
        """Return the state after each token."""
        check_tokens("x", x, self.d_model, self.gru.weight_hh_l0.dtype)
        if x.shape[-2] == 0:  # nn.GRU wants a token
            return x.clone()
        return self.gru(x)[0]

    def flops(self, seq: int) -> int:
        """Count the operations of the matrix products for one sequence, a multiply-add as 2."""
        check_at_least("seq", seq, 0)
        return 12 * seq * self.d_model**2  # three gates, each of token and state


class AttentionLayer(nn.Module):
    """A block of causal self-attention and a feed-forward network as wide as the tokens, on tokens and positions.

    Parameters
    ----------
    d_model, num_heads : int
        As in :class:`MultiHeadAttention`; ``d_model`` must be even.

    Raises
    ------
    ValueError
        If ``d_model`` is odd, a number is less than 1 or ``num_heads`` does not divide ``d_model``.
    """

    def __init__(self, d_model: int, num_heads: int = 4) -> None:
        super().__init__()
        check_at_least("d_model", d_model)
        _check_even(d_model)
        self.d_model, self.num_heads = d_model, num_heads
        self.block = TransformerBlock(d_model, num_heads, d_ff=d_model)

    def forward(
        self, x: Float[Tensor, "*batch seq d_model"]
    ) -> Float[Tensor, "*batch seq d_model"]:
        """Return the tokens after the block."""
        check_tokens("x", x, self.d_model, self.block.norm_1.weight.dtype)
        positions = sinusoids(x.shape[-2], self.d_model).to(x)
        return self.block(x + positions, is_causal=True)

    def flops(self, seq: int) -> int:
        """Count the operations of the matrix products for one sequence, a multiply-add as 2."""
        check_at_least("seq", seq, 0)
        if seq == 0:
            return 0
        attention = attention_cost(seq, self.d_model, self.num_heads).matmul_flops
        return attention + 4 * seq * self.d_model**2  # the feed-forward network


def sinusoids(seq: int, d_model: int) -> Float[Tensor, "seq d_model"]:
    """Return a vector for each position: sines and cosines of wavelengths from 2π to 10,000 · 2π.

    The sines stand first, the cosines behind them; ``d_model`` is even. Angles are computed in float64: in float32
    the numbers of position 100,000 would be off by some thousandths.

    Returns
    -------
    Tensor
        ``(seq, d_model)``, in PyTorch's default dtype.

    Raises
    ------
    TypeError
        If a number is no int.
    ValueError
        If a number is negative, or ``d_model`` is odd.

    Source
    ------
    Vaswani et al. 2017, "Attention Is All You Need", section 3.5 (which lays them in turns).
    """
    check_at_least("seq", seq, 0)
    check_at_least("d_model", d_model, 0)
    _check_even(d_model)
    powers = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
    angles = torch.arange(seq)[:, None] * torch.exp(-math.log(10_000.0) * powers)
    waves = torch.cat([angles.sin(), angles.cos()], dim=-1)
    return waves.to(torch.get_default_dtype())


def _check_even(d_model: int) -> None:
    if d_model % 2:
        raise ValueError(f"d_model: expected an even number, got {d_model}")
