"""Where PyTorch's own module keeps what ours calls W_q, W_k, W_v and W_o."""

import torch
from torch import Tensor, nn


def torch_projections(module: nn.MultiheadAttention) -> list[list[Tensor]]:
    """Return views of weight and bias of the query, key, value and output projections of PyTorch's module.

    Where keys and values are as wide as queries, PyTorch packs the first three into one matrix, in this order.
    """
    if module.in_proj_weight is None:  # kdim or vdim differ, so that nothing is packed
        weights = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    else:
        weights = [*module.in_proj_weight.chunk(3)]
    parts = [[weight] for weight in (*weights, module.out_proj.weight)]
    if module.in_proj_bias is not None:
        biases = (*module.in_proj_bias.chunk(3), module.out_proj.bias)
        for part, bias in zip(parts, biases, strict=True):
            part.append(bias)
    return parts


def copy_numbers(source: list[list[Tensor]], target: list[list[Tensor]]) -> None:
    """Copy weights and biases, projection by projection; both sides must have the same shapes."""
    with torch.no_grad():
        for numbers, places in zip(source, target, strict=True):
            for number, place in zip(numbers, places, strict=True):
                place.copy_(number)
