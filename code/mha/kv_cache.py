"""A cache of keys and values, so that a text is not read again for every token that continues it."""

import torch
from jaxtyping import Float
from torch import Tensor

from .checks import check_at_least, check_float_tensor, check_same_length


class KVCache:
    """Keys and values of the tokens so far, in memory that is set aside once.

    It is made for decoding, not for training: what is stored carries no gradient. A new prompt needs no new cache,
    only :meth:`reset`; :meth:`truncate` takes back the last tokens.

    Parameters
    ----------
    batch : int
        Number of sentences, 0 or more.
    num_kv_heads : int
        Number of heads of keys and values: never that of the queries, where heads share them.
    max_len : int
        For how many tokens there is room, 0 or more.
    d_k : int
        Width of one head's keys.
    d_v : int, optional
        Width of one head's values. Default: ``d_k``. 0 where the values are read out of the keys, as in
        multi-head latent attention.
    dtype : torch.dtype, optional
        A floating-point type. Default: torch's default.
    device : torch.device or str, optional
        Where the cache lies.

    Raises
    ------
    TypeError
        If a number is not an int, or ``dtype`` not a floating-point type of torch.
    ValueError
        If a number is too small.

    Source
    ------
    Shazeer 2019, "Fast Transformer Decoding: One Write-Head is All You Need", section 2.4.
    """

    def __init__(
        self,
        batch: int,
        num_kv_heads: int,
        max_len: int,
        d_k: int,
        d_v: int | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        d_v = d_k if d_v is None else d_v
        dtype = torch.get_default_dtype() if dtype is None else dtype
        for name, number, least in (
            ("batch", batch, 0),
            ("num_kv_heads", num_kv_heads, 1),
            ("max_len", max_len, 0),
            ("d_k", d_k, 1),
            ("d_v", d_v, 0),
        ):
            check_at_least(name, number, least)
        if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise TypeError(f"dtype: expected a floating-point type, got {dtype!r}")
        # A tensor made in inference mode could not be written to outside of it.
        with torch.inference_mode(False):
            places, options = (batch, num_kv_heads, max_len), {"device": device}
            self._keys = torch.zeros(*places, d_k, dtype=dtype, **options)
            self._values = torch.zeros(*places, d_v, dtype=dtype, **options)
        self._max_len, self._length = max_len, 0

    def __repr__(self) -> str:
        """Say what fits into it and how much is stored."""
        batch, heads, max_len, d_k = self._keys.shape
        d_v, dtype, device = self._values.shape[-1], self._keys.dtype, self._keys.device
        return (
            f"KVCache({batch}, {heads}, {max_len}, {d_k}, {d_v}, dtype={dtype}, "
            f"device={str(device)!r}) with length {self.length}"
        )

    @property
    def length(self) -> int:
        """How many tokens are stored."""
        return self._length

    @property
    def max_len(self) -> int:
        """For how many tokens there is room."""
        return self._max_len

    @property
    def nbytes(self) -> int:
        """How many bytes are set aside, filled or not."""
        stored = (self._keys, self._values)
        return sum(tensor.untyped_storage().nbytes() for tensor in stored)

    def reset(self) -> None:
        """Forget all tokens; what lies beyond ``length`` is never read."""
        self._length = 0

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first ``length``.

        Raises
        ------
        TypeError
            If ``length`` is not an int.
        ValueError
            If it is less than 0 or more than are stored.
        """
        check_at_least("length", length, 0)
        if length > self.length:
            raise ValueError(
                f"length: expected at most the {self.length} tokens stored, got {length}"
            )
        self._length = length

    @torch.no_grad()
    def append(
        self,
        key: Float[Tensor, "batch kv_heads new d_k"],
        value: Float[Tensor, "batch kv_heads new d_v"],
    ) -> tuple[
        Float[Tensor, "batch kv_heads key d_k"],
        Float[Tensor, "batch kv_heads key d_v"],
    ]:
        """Store keys and values of new tokens, and return those of all so far.

        Parameters
        ----------
        key, value : Tensor
            ``(batch, num_kv_heads, new, d_k)`` and ``(batch, num_kv_heads, new, d_v)``, of the cache's dtype and
            on its device; no views of the cache itself. Copied, without their gradients.

        Returns
        -------
        keys, values : Tensor
            ``(batch, num_kv_heads, length, d_k)`` and ``(batch, num_kv_heads, length, d_v)``: views of the cache,
            not to be written to. Where autograd has kept them for a backward pass, the next ``append`` makes that
            pass fail; the modules of this package keep copies instead.

        Raises
        ------
        TypeError
            If one is not a tensor, or of another dtype. As after every error, the cache is what it was.
        ValueError
            If shapes or the device do not fit, or there is no room for so many tokens.
        """
        self._check("key", key, self._keys)
        self._check("value", value, self._values)
        check_same_length(key, value)
        start, end = self.length, self.length + key.shape[-2]
        if end > self.max_len:
            raise ValueError(
                f"key: expected at most {self.max_len - start} new tokens "
                f"(max_len {self.max_len}, {start} stored), got {end - start}"
            )
        self._keys[:, :, start:end] = key
        self._values[:, :, start:end] = value
        self._length = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    @staticmethod
    def _check(name: str, new: Tensor, stored: Tensor) -> None:
        """Raise unless ``new`` fits into ``stored``, whatever its length."""
        batch, heads, _, width = stored.shape
        layout = f"shape ({batch}, {heads}, new, {width})"
        check_float_tensor(name, new, 4, layout)
        if new.shape != (batch, heads, new.shape[2], width):
            raise ValueError(f"{name}: expected {layout}, got {tuple(new.shape)}")
        if new.dtype != stored.dtype:
            raise TypeError(
                f"{name}: expected the cache's {stored.dtype}, got {new.dtype}"
            )
        if new.device != stored.device:
            raise ValueError(
                f"{name}: expected to be on the cache's device {stored.device}, "
                f"got {new.device}"
            )


def tokens_before(
    cache: KVCache | None, shape: tuple[int, int, int, int], like: Tensor
) -> int:
    """Return how many tokens a cache holds: 0 if there is none.

    Parameters
    ----------
    cache : KVCache or None
        What a module was called with.
    shape : tuple of int
        ``(batch, kv_heads, new, d_k)``, of the keys that are going to be appended.
    like : Tensor
        Of their dtype and on their device.

    Raises
    ------
    TypeError
        If ``cache`` is something else, or of another dtype.
    ValueError
        If it is of other sizes or on another device, or has no room for the new tokens. Each error speaks of the cache:
        the caller of a module never saw a key.
    """
    if cache is None:
        return 0
    batch, heads, length, d_k = shape
    check_room(cache, length)
    kept = cache._keys
    if (batch, heads, d_k) != (*kept.shape[:2], kept.shape[3]):
        raise ValueError(
            f"cache: expected one of this module's new_cache({batch}, …), batch {batch}, "
            f"{heads} kv heads of width {d_k}, got {cache}"
        )
    if like.dtype != kept.dtype:
        raise TypeError(f"cache: expected {like.dtype}, the keys' dtype, got {cache}")
    if like.device != kept.device:
        raise ValueError(f"cache: expected to be on {like.device}, got {cache}")
    return cache.length


def check_room(cache: KVCache, length: int) -> None:
    """Raise unless ``cache`` is one, and has room for ``length`` tokens more."""
    if not isinstance(cache, KVCache):
        raise TypeError(f"cache: expected a KVCache, got {type(cache).__name__}")
    if length > cache.max_len - cache.length:
        raise ValueError(f"cache: expected room for {length} tokens, got {cache}")


def append_and_read(
    cache: KVCache,
    key: Float[Tensor, "batch kv_heads new d_k"],
    value: Float[Tensor, "batch kv_heads new d_v"],
) -> tuple[
    Float[Tensor, "batch kv_heads key d_k"], Float[Tensor, "batch kv_heads key d_v"]
]:
    """Append, and return what is stored: as copies where autograd may keep it beyond the next ``append``."""
    stored = cache.append(key, value)
    if torch.is_grad_enabled():
        stored = stored[0].clone(), stored[1].clone()
    return stored


def new_cache_options(weight: Tensor) -> dict[str, torch.dtype | torch.device]:
    """Return dtype and device of keys that come from ``weight``, under autocast those of autocast."""
    kind, dtype = weight.device.type, weight.dtype
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
    return {"dtype": dtype, "device": weight.device}
