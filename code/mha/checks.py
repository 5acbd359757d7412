"""Checks of arguments: each error names the argument and prints what was expected and what came."""

from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor


def check_instance(name: str, value: object, kind: type) -> None:
    """Raise unless ``value`` is a ``kind``."""
    if not isinstance(value, kind):
        raise TypeError(
            f"{name}: expected a {kind.__name__}, got {value!r:.60} of type {type(value).__name__}"
        )


def check_int(name: str, value: int) -> None:
    """Raise unless ``value`` is an int."""
    # A length inside torch.compile or torch.export is a SymInt.
    if isinstance(value, bool) or not isinstance(value, int | Integral | torch.SymInt):
        raise TypeError(
            f"{name}: expected an int, got {value!r} of type {type(value).__name__}"
        )


def check_at_least(name: str, value: int, least: int = 1) -> None:
    """Raise unless ``value`` is an int that is at least ``least``."""
    check_int(name, value)
    if value < least:
        raise ValueError(f"{name}: expected at least {least}, got {value}")


def check_index(name: str, value: int, count: int) -> None:
    """Raise unless ``value`` is an int from 0 to ``count - 1``."""
    check_int(name, value)
    if not 0 <= value < count:
        raise ValueError(
            f"{name}: expected a number from 0 to {count - 1}, got {value}"
        )


def listed(name: str, items: Iterable[Any], what: str) -> list[Any]:
    """Return the items as a list, or raise: a single thing, or a string, is no list of ``what``."""
    single = isinstance(items, str) or getattr(items, "ndim", 1) == 0
    if single or not isinstance(items, Iterable):
        raise TypeError(f"{name}: expected a list of {what}, got {items!r}")
    return list(items)


def check_string(name: str, value: str) -> None:
    """Raise unless ``value`` is a string."""
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected a string, got {value!r}")


def check_number(name: str, value: float) -> None:
    """Raise unless ``value`` is a real number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(
            f"{name}: expected a number, got {value!r} of type {type(value).__name__}"
        )


def check_positive(name: str, value: float) -> None:
    """Raise unless ``value`` is a finite number above 0."""
    check_number(name, value)
    if not 0.0 < value < float("inf"):
        raise ValueError(f"{name}: expected a number > 0, got {value}")


def check_probability(name: str, value: float) -> None:
    """Raise unless ``value`` lies in [0, 1)."""
    check_number(name, value)
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{name}: expected a probability in [0, 1), got {value}")


def check_divisible(
    whole: int, parts: int, whole_name: str = "d_model", parts_name: str = "num_heads"
) -> None:
    """Raise unless ``whole`` can be cut into so many equal ``parts``, at least one."""
    check_at_least(parts_name, parts)
    if whole % parts:
        raise ValueError(
            f"{whole_name}: expected a multiple of {parts_name}, got {whole_name}={whole} and "
            f"{parts_name}={parts} (remainder {whole % parts})"
        )


def check_tensor(name: str, tensor: Tensor, least: int, layout: str) -> None:
    """Raise unless ``tensor`` is one, with at least ``least`` axes; ``layout`` says which."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.dim() < least:
        raise ValueError(f"{name}: expected {layout}, got shape {tuple(tensor.shape)}")


def check_float_tensor(name: str, tensor: Tensor, least: int, layout: str) -> None:
    """Raise unless ``tensor`` is a floating-point tensor with at least ``least`` axes."""
    check_tensor(name, tensor, least, layout)
    if not tensor.is_floating_point():
        raise TypeError(f"{name}: expected a floating-point tensor, got {tensor.dtype}")


def check_whole_numbers(name: str, tensor: Tensor, layout: str, axes: int = 1) -> None:
    """Raise unless ``tensor`` has so many axes (``layout`` names them) and holds whole numbers."""
    check_tensor(name, tensor, axes, f"shape {layout}")
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"{name}: expected whole numbers, got {tensor.dtype}")
    if tensor.dim() != axes:
        raise ValueError(f"{name}: expected shape {layout}, got {tuple(tensor.shape)}")


def check_same_batch(name: str, tensor: Tensor, query: Tensor) -> None:
    """Raise unless all axes before (length, width) are the query's."""
    if tensor.shape[:-2] != query.shape[:-2]:
        raise ValueError(
            f"{name}: expected the query's batch axes {tuple(query.shape[:-2])}, got "
            f"{tuple(tensor.shape[:-2])} (query {tuple(query.shape)}, {name} {tuple(tensor.shape)})"
        )


def check_same_length(key: Tensor, value: Tensor) -> None:
    """Raise unless there are as many values as keys."""
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(
            f"value: expected length {key.shape[-2]}, the key's, got {value.shape[-2]} "
            f"(key {tuple(key.shape)}, value {tuple(value.shape)})"
        )


def check_query_key_value(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise unless they fit: ``(*batch, query, d_k)``, ``(*batch, key, d_k)`` and ``(*batch, key, d_v)``."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_float_tensor(name, tensor, 2, "at least two axes (length, width)")
        if tensor.dtype != query.dtype:
            raise TypeError(
                f"{name}: expected the query's dtype {query.dtype}, got {tensor.dtype}"
            )
        check_same_batch(name, tensor, query)
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            f"key: expected width {query.shape[-1]}, the query's, got {key.shape[-1]} "
            f"(query {tuple(query.shape)}, key {tuple(key.shape)})"
        )
    if query.shape[-1] == 0:
        raise ValueError(
            f"query: expected a width of at least 1, got shape {tuple(query.shape)}"
        )
    check_same_length(key, value)


def check_tokens(name: str, tensor: Tensor, width: int, dtype: torch.dtype) -> None:
    """Raise unless ``tensor`` is ``(batch, length, width)`` or ``(length, width)``, of the module's dtype."""
    layout = f"shape (batch, length, {width}) or (length, {width})"
    check_float_tensor(name, tensor, 2, layout)
    if tensor.dim() > 3 or tensor.shape[-1] != width:
        raise ValueError(f"{name}: expected {layout}, got {tuple(tensor.shape)}")
    # Autocast brings inputs and parameters together by itself.
    if tensor.dtype != dtype and not torch.is_autocast_enabled(tensor.device.type):
        raise TypeError(
            f"{name}: expected the module's dtype {dtype}, got {tensor.dtype}"
        )


def check_module_inputs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    widths: tuple[int, int, int],
    dtype: torch.dtype,
) -> None:
    """Raise unless all are tokens of these widths and of the module's dtype, and fit each other."""
    for name, tensor, width in zip(
        ("query", "key", "value"), (query, key, value), widths, strict=True
    ):
        check_tokens(name, tensor, width, dtype)
        check_same_batch(name, tensor, query)
    check_same_length(key, value)


def check_mask_type(name: str, mask: Tensor) -> None:
    """Raise unless ``mask`` is a tensor of booleans or of floating-point numbers."""
    check_tensor(name, mask, 0, "")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(
            f"{name}: expected a boolean mask (True = may attend) or a floating-point bias, got {mask.dtype}; "
            "for a 0/1 mask pass mask.bool()"
        )


def check_mask(
    mask: Tensor, scores_shape: Sequence[int], device: torch.device | None = None
) -> None:
    """Raise unless ``mask`` is boolean or floating and is ``(query, key)`` or broadcasts axis by axis to the scores."""
    check_mask_type("mask", mask)
    if device is not None and mask.device != device:
        raise ValueError(
            f"mask: expected to be on the query's device {device}, got {mask.device}"
        )
    expected = tuple(scores_shape)
    fits = tuple(mask.shape) == expected[-2:] or (
        mask.dim() == len(expected)
        and all(m in (1, s) for m, s in zip(mask.shape, expected, strict=True))
    )
    if not fits:
        raise ValueError(
            f"mask: expected shape {expected[-2:]} (query, key) or one that broadcasts axis by axis to the "
            f"scores' {expected}, got {tuple(mask.shape)}; a mask (batch, key) needs two axes more: "
            "mask[:, None, None, :]"
        )


def with_head_axis(
    mask: Tensor | None, scores_shape: Sequence[int], device: torch.device
) -> Tensor | None:
    """Return a module's mask as ``(query, key)`` or with four axes, or raise; three are ``(batch, query, key)``."""
    if mask is None:
        return None
    if isinstance(mask, Tensor) and mask.dim() == 3:
        batch, _, query_len, key_len = scores_shape
        if tuple(mask.shape) != (batch, query_len, key_len):
            raise ValueError(
                f"mask: expected (batch, query, key) = {(batch, query_len, key_len)} "
                f"for three axes, got {tuple(mask.shape)}; the scores are {tuple(scores_shape)}"
            )
        mask = mask[:, None]
    check_mask(mask, scores_shape, device)
    return mask
