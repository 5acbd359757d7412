"""A cache of keys and values, so that a text is not read again for every token that continues it."""

import torch
from jaxtyping import Float
from torch import Tensor

from .checks import check_at_least, check_float_tensor, check_same_length


class KVCache:
    """Keys and values of the tokens so far, in memory that is set aside once.

    It is made for decoding, not for training: what is stored carries no gradient. A new prompt needs no new cache,
    only :meth:`reset`.

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

    Attributes
    ----------
    length : int
        How many tokens are stored. Not to be set.

    Raises
    ------
    TypeError
        If a number is not an int, or ``dtype`` not a floating-point type.
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
        if not dtype.is_floating_point:
            raise TypeError(f"dtype: expected a floating-point type, got {dtype}")
        # A tensor made in inference mode could not be written to outside of it.
        with torch.inference_mode(False):
            places, options = (batch, num_kv_heads, max_len), {"device": device}
            self._keys = torch.zeros(*places, d_k, dtype=dtype, **options)
            self._values = torch.zeros(*places, d_v, dtype=dtype, **options)
        self.max_len, self.length = max_len, 0

    @property
    def nbytes(self) -> int:
        """How many bytes are set aside, filled or not."""
        stored = (self._keys, self._values)
        return sum(tensor.untyped_storage().nbytes() for tensor in stored)

    def reset(self) -> None:
        """Forget all tokens; what lies beyond ``length`` is never read."""
        self.length = 0

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
            on its device. Copied, without their gradients.

        Returns
        -------
        keys, values : Tensor
            ``(batch, num_kv_heads, length, d_k)`` and ``(batch, num_kv_heads, length, d_v)``: views of the cache,
            not to be written to.

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
        self.length = end
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


def tokens_before(cache: KVCache | None) -> int:
    """Return how many tokens a cache holds: 0 if there is none.

    Raises
    ------
    TypeError
        If ``cache`` is something else.
    """
    if cache is None:
        return 0
    if not isinstance(cache, KVCache):
        raise TypeError(f"cache: expected a KVCache, got {type(cache).__name__}")
    return cache.length
