"""Questions to a layer from outside: what its last output feels, how long it waits, what it computes."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from .checks import check_at_least, check_float_tensor


@torch.inference_mode(False)
@torch.enable_grad()
def felt(
    layer: Callable[[Tensor], Tensor], x: Float[Tensor, "batch seq d_model"]
) -> Float[Tensor, "seq"]:
    """Return how strongly the last output depends on each input: the length of its gradient there.

    Parameters
    ----------
    layer : callable
        From ``(batch, seq, d_model)`` to the same shape.
    x : Tensor
        ``(batch, seq, d_model)``, at least one sequence of at least one token; in float64 little is lost to rounding.

    Returns
    -------
    Tensor
        ``(seq,)``, the mean over the batch; exactly 0 where no path leads from the input to the output.

    Raises
    ------
    TypeError
        If ``x``, or what the layer returns, is no floating-point tensor.
    ValueError
        If ``x`` has not three axes, or no sequence or no token.
    """
    x = _leaf(x)
    for axis, name in enumerate(("sequences in x", "tokens in x")):
        check_at_least(f"number of {name}", x.shape[axis])
    last = _output(layer, x)[:, -1]  # (batch, d_model)
    if not last.requires_grad:
        return x.new_zeros(x.shape[1])
    # Another factor for each feature, so that no sum over them is 0 by chance.
    factors = torch.linspace(1.0, 2.0, last.shape[-1]).to(last)
    (gradient,) = torch.autograd.grad((last * factors).sum(), x, materialize_grads=True)
    return gradient.norm(dim=-1).mean(dim=0)


def _leaf(x: Tensor) -> Tensor:
    """Return a copy of ``x`` that autograd follows."""
    layout = "shape (batch, seq, d_model)"
    check_float_tensor("x", x, 3, layout)
    if x.dim() != 3:
        raise ValueError(f"x: expected {layout}, got {tuple(x.shape)}")
    return x.detach().clone().requires_grad_()


def _output(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    output = layer(x)
    check_float_tensor("output of layer", output, 3, "shape (batch, seq, d_model)")
    return output


PRODUCTS = ("Addmm", "Baddbmm", "Mm", "Bmm", "Convolution")


@torch.inference_mode(False)
@torch.enable_grad()
def waiting_products(
    layer: Callable[[Tensor], Tensor], x: Float[Tensor, "batch seq d_model"]
) -> int:
    """Return the length of the longest chain of matrix products of which each needs the one before.

    As the layer is written, that many steps remain, however many products a machine computes at once; another way to
    write it may need fewer. They are counted in the graph that autograd keeps, on a CPU: a GPU's kernel for a GRU
    does all its steps inside one node.

    Raises
    ------
    TypeError
        If ``x``, or what the layer returns, is no floating-point tensor.
    ValueError
        If ``x`` has not three axes, or autograd cannot follow ``x`` to the output.
    """
    x = _leaf(x)
    with sdpa_kernel(SDPBackend.MATH):
        output = _output(layer, x)
    start = get_gradient_edge(x).node
    end = get_gradient_edge(output).node if output.requires_grad else None
    longest: dict[object, int] = {}
    waiting = [] if end is None else [end]
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
    if start not in longest:
        raise ValueError(
            "layer: expected an output that depends on x, got one that autograd cannot trace back to x"
        )
    return longest[end]


def counted_flops(
    layer: Callable[[Tensor], Tensor], x: Float[Tensor, "batch seq d_model"]
) -> int:
    """Let PyTorch count the operations of the matrix products of one call.

    Its counter does not see into the CPU's fused attention kernel, so that this takes the plain one.

    Raises
    ------
    TypeError
        If ``x`` is no floating-point tensor.
    """
    check_float_tensor("x", x, 2, "shape (batch, seq, d_model)")
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        layer(x)
    return counter.get_total_flops()
