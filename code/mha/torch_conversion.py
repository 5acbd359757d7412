"""Where PyTorch's own module keeps what ours calls W_q, W_k, W_v and W_o."""

import torch
from torch import Tensor, nn


def torch_projections(module: nn.MultiheadAttention) -> list[list[Tensor]]:
    """Return weight and bias of the query, key, value and output projections of PyTorch's module, as views.

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


def copy_projections(
    source: list[list[Tensor]], target: list[list[Tensor]], owner: nn.Module
) -> None:
    """Copy weights and biases, projection by projection, into ``target``, the fresh parameters of ``owner``.

    What is frozen in the source is frozen in ``owner``.

    Raises
    ------
    ValueError
        If the sources differ in dtype or device.
    """
    tensors = [tensor for projection in source for tensor in projection]
    kinds = sorted({f"{tensor.dtype} on {tensor.device}" for tensor in tensors})
    if len(kinds) > 1:
        raise ValueError(
            f"module: expected parameters of one dtype on one device, got {', '.join(kinds)}"
        )
    trainable: dict[int, bool] = {}
    places = [place for projection in target for place in projection]
    with torch.no_grad():
        for number, place in zip(tensors, places, strict=True):
            place.copy_(number)
            # Parts of a packed parameter share their storage.
            storage = place.untyped_storage().data_ptr()
            trainable[storage] = trainable.get(storage, False) or number.requires_grad
    for parameter in owner.parameters():
        parameter.requires_grad_(trainable[parameter.untyped_storage().data_ptr()])
