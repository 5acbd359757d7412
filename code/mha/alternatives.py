"""Attention beside convolution and recurrence: three layers of one size, and what each needs to see far.

All take and return ``(batch, seq, d_model)`` or ``(seq, d_model)``, see nothing of later tokens, and have about
``6 d_model²`` parameters.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from .checks import check_at_least, check_float_tensor, check_tokens
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
    dilations : tuple of int
        One convolution for each: the distance between the inputs that it sees.

    Raises
    ------
    ValueError
        If a number is less than 1, or there is no convolution.
    """

    def __init__(
        self, d_model: int, kernel: int = 3, dilations: tuple[int, ...] = (1, 1)
    ) -> None:
        super().__init__()
        check_at_least("d_model", d_model)
        check_at_least("kernel", kernel)
        check_at_least("number of dilations", len(dilations))
        for dilation in dilations:
            check_at_least("dilation", dilation)
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
        for convolution in self.convolutions:
            before = (self.kernel - 1) * convolution.dilation[0]
            padded = F.pad(x.mT, (before, 0))  # zeros before the first token
            x = x + F.relu(convolution(padded)).mT
        return x

    def flops(self, seq: int) -> int:
        """Count the operations of the matrix products for one sequence, a multiply-add as 2."""
        each = 2 * self.kernel * seq * self.d_model**2
        return each * len(self.convolutions)


class RecurrentLayer(nn.Module):
    """PyTorch's GRU: a state of width ``d_model`` is carried from token to token.

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
        return self.gru(x)[0]

    def flops(self, seq: int) -> int:
        """Count the operations of the matrix products for one sequence, a multiply-add as 2."""
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
        attention = attention_cost(seq, self.d_model, self.num_heads).matmul_flops
        return attention + 4 * seq * self.d_model**2  # the feed-forward network


def sinusoids(seq: int, d_model: int) -> Float[Tensor, "seq d_model"]:
    """Return a vector for each position: sines and cosines of wavelengths from 2π to 10,000 · 2π.

    The sines stand first, the cosines behind them; ``d_model`` is even.

    Source
    ------
    Vaswani et al. 2017, "Attention Is All You Need", section 3.5 (which lays them in turns).
    """
    check_at_least("seq", seq, 0)
    check_at_least("d_model", d_model, 0)
    _check_even(d_model)
    powers = torch.arange(0, d_model, 2) / d_model
    angles = torch.arange(seq)[:, None] * torch.exp(-math.log(10_000.0) * powers)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def _check_even(d_model: int) -> None:
    if d_model % 2:
        raise ValueError(f"d_model: expected an even number, got {d_model}")


def felt(
    layer: nn.Module, x: Float[Tensor, "batch seq d_model"]
) -> Float[Tensor, "seq"]:
    """Return how strongly the last output depends on each input: the length of its gradient there.

    Parameters
    ----------
    layer : nn.Module
        From ``(batch, seq, d_model)`` to the same shape.
    x : Tensor
        ``(batch, seq, d_model)``; in float64 little is lost to rounding.

    Returns
    -------
    Tensor
        ``(seq,)``, the mean over the batch; exactly 0 where no path leads from the input to the output.
    """
    check_float_tensor("x", x, 3, "shape (batch, seq, d_model)")
    x = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        last = layer(x)[:, -1]  # (batch, d_model)
        # Another factor for each feature, so that no sum over them is 0 by chance.
        factors = torch.linspace(1.0, 2.0, last.shape[-1]).to(last)
        (gradient,) = torch.autograd.grad((last * factors).sum(), x)
    return gradient.norm(dim=-1).mean(dim=0)


PRODUCTS = ("Addmm", "Baddbmm", "Mm", "Bmm", "Convolution")


def waiting_products(layer: nn.Module, x: Float[Tensor, "batch seq d_model"]) -> int:
    """Return the length of the longest chain of matrix products of which each needs the one before.

    No machine can do the layer in fewer steps, however many products it computes at once. They are counted in the
    graph that autograd keeps, on a CPU: a GPU's kernel for a GRU does all its steps inside one node.
    """
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        end = layer(x.detach().clone().requires_grad_()).grad_fn
    longest: dict[object, int] = {}
    waiting = [end]
    while waiting:  # no recursion: a chain can be longer than Python's stack
        node = waiting[-1]
        before = [below for below, _ in node.next_functions if below is not None]
        missing = [below for below in before if below not in longest]
        if missing:
            waiting += missing
            continue
        name = node.name().removesuffix("Backward0")
        chains = [longest[below] for below in before]
        longest[node] = max(chains, default=0) + (name in PRODUCTS)
        waiting.pop()
    return longest[end]


def counted_flops(layer: nn.Module, x: Float[Tensor, "batch seq d_model"]) -> int:
    """Let PyTorch count the operations of the matrix products of one call.

    Its counter does not see into the CPU's fused attention kernel, so that this takes the plain one.
    """
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        layer(x)
    return counter.get_total_flops()
