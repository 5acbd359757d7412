"""Multi-head latent attention: keys and values of all heads are computed from one short vector, which is cached."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from .checks import check_at_least, check_tokens, with_head_axis
from .fast_path import attend_in_groups
from .head_splitting import combine_heads, per_head_matrices, split_heads
from .kv_cache import KVCache, append_and_read, new_cache_options, tokens_before
from .rotary import rotate
from .single_head import scaled_dot_product_attention


class MultiHeadLatentAttention(nn.Module):
    """Self-attention that stores a latent vector and one rotary key a token.

    Keys and values of every head are linear in the latent, so that their matrices can be multiplied into the query's
    and the output's. A rotation by the position in between would not allow that. So each head has ``d_rope`` numbers
    more for positions, and their key, which all heads share, is stored beside the latent. No weights are dropped in
    training.

    Parameters
    ----------
    d_model : int
        Width of the tokens and of the output.
    num_heads : int
        Number of heads.
    kv_rank : int
        Width of the latent.
    d_nope : int
        Width of each head's queries and keys that know no position.
    d_rope : int
        Width of each head's rotary queries, and of the rotary key; even.
    d_v : int
        Width of each head's values.
    bias : bool
        Whether ``W_q``, ``W_dkv``, ``W_kr`` and ``W_o`` add a bias. ``W_uk`` and ``W_uv`` never do: one on the keys
        adds the same to all scores of a query, which softmax forgets, and one on the values is ``W_o``'s to add.

    Raises
    ------
    TypeError
        If a number is not an int.
    ValueError
        If a number is less than 1, or ``d_rope`` is odd.

    Source
    ------
    DeepSeek-AI 2024, "DeepSeek-V2" (arXiv:2405.04434), section 2.1, equations 9–11 and 14–19, without the
    compression of queries and the norm of the latent.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        kv_rank: int,
        d_nope: int,
        d_rope: int,
        d_v: int,
        bias: bool = False,
    ) -> None:
        super().__init__()
        sizes = {"d_model": d_model, "num_heads": num_heads, "kv_rank": kv_rank}
        sizes |= {"d_nope": d_nope, "d_rope": d_rope, "d_v": d_v}
        for name, number in sizes.items():
            check_at_least(name, number)
        if d_rope % 2:
            raise ValueError(f"d_rope: expected an even number, got {d_rope}")
        self.d_model, self.num_heads, self.kv_rank = d_model, num_heads, kv_rank
        self.d_nope, self.d_rope, self.d_v = d_nope, d_rope, d_v
        self.W_q = nn.Linear(d_model, num_heads * (d_nope + d_rope), bias=bias)
        self.W_dkv = nn.Linear(d_model, kv_rank, bias=bias)  # down
        self.W_kr = nn.Linear(d_model, d_rope, bias=bias)
        self.W_uk = nn.Linear(kv_rank, num_heads * d_nope, bias=False)  # up again
        self.W_uv = nn.Linear(kv_rank, num_heads * d_v, bias=False)
        self.W_o = nn.Linear(num_heads * d_v, d_model, bias=bias)

    def forward(
        self,
        x: Float[Tensor, "*batch query d_model"],
        mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
        *,
        is_causal: bool = True,
        cache: KVCache | None = None,
        need_weights: bool = False,
        absorbed: bool = False,
    ) -> tuple[
        Float[Tensor, "*batch query d_model"],
        Float[Tensor, "*batch heads query key"] | None,
    ]:
        """Let every token attend to the tokens so far, in all heads.

        Parameters
        ----------
        x : Tensor
            ``(batch, query, d_model)``, or ``(query, d_model)`` for one sentence. With a cache these are the new
            tokens only, and their positions continue those in it.
        mask, is_causal, need_weights
            As in :class:`GroupedQueryAttention`.
        cache : KVCache, optional
            From :meth:`new_cache`. No gradient reaches ``W_dkv`` and ``W_kr`` then.
        absorbed : bool
            Whether to attend to the latents themselves, which is the same and quicker for few new tokens, instead
            of to keys and values that are computed from them.

        Returns
        -------
        output : Tensor
            ``(batch, query, d_model)``.
        weights : Tensor or None
            ``(batch, heads, query, key)``.

        Raises
        ------
        TypeError, ValueError
            As in :class:`GroupedQueryAttention`.
        """
        check_tokens("x", x, self.d_model, self.W_q.weight.dtype)
        unbatched = x.dim() == 2
        if unbatched:
            x = x[None]

        latent, new = self.W_dkv(x), x.shape[-2]
        shape = (len(x), 1, new, self.kv_rank + self.d_rope)  # one head for all
        before = tokens_before(cache, shape, latent)
        positions = torch.arange(before, before + new, device=x.device)
        q = split_heads(self.W_q(x), self.num_heads)
        q_nope, q_rope = q.split([self.d_nope, self.d_rope], dim=-1)
        q_rope = rotate(q_rope, positions)  # (batch, heads, query, d_rope)
        k_rope = rotate(self.W_kr(x), positions)
        entries = torch.cat([latent, k_rope], dim=-1)[:, None]
        mask = with_head_axis(mask, (*q.shape[:-1], before + new), x.device)
        if cache is not None:
            entries, _ = append_and_read(cache, entries, entries[..., :0])
        attend = self._attend_absorbed if absorbed else self._attend_expanded
        options = {"is_causal": is_causal, "need_weights": need_weights}
        options["scale"] = 1.0 / math.sqrt(self.d_nope + self.d_rope)
        heads, weights = attend(q_nope, q_rope, entries, mask, **options)
        output = self.W_o(combine_heads(heads))  # (batch, query, d_model)

        if unbatched:
            output, weights = output[0], None if weights is None else weights[0]
        return output, weights

    def _attend_expanded(
        self,
        q_nope: Tensor,
        q_rope: Tensor,
        entries: Tensor,
        mask: Tensor | None,
        **options: bool | float,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute keys and values of all heads from the latents, and attend."""
        latent, k_rope = entries.split([self.kv_rank, self.d_rope], dim=-1)
        latent = latent[:, 0]  # (batch, key, kv_rank)
        k_nope = split_heads(self.W_uk(latent), self.num_heads)
        value = split_heads(self.W_uv(latent), self.num_heads)
        k_rope = k_rope.expand(-1, self.num_heads, -1, -1)  # the same for all heads
        query = torch.cat([q_nope, q_rope], dim=-1)
        key = torch.cat([k_nope, k_rope], dim=-1)
        return _attend(query, key, value, mask, **options)

    def _attend_absorbed(
        self,
        q_nope: Tensor,
        q_rope: Tensor,
        entries: Tensor,
        mask: Tensor | None,
        **options: bool | float,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend to the latents: q · (c W) = (q Wᵀ) · c, Σ w (c W) = (Σ w c) W."""
        # (heads, kv_rank, d_nope) and (heads, kv_rank, d_v)
        up_k = per_head_matrices(self.W_uk, self.num_heads)
        up_v = per_head_matrices(self.W_uv, self.num_heads)
        q_latent = torch.einsum("bhqd,hrd->bhqr", q_nope, up_k)
        query = torch.cat([q_latent, q_rope], dim=-1)
        # An entry is its own value; the rotary part of the result is not used.
        mixed, weights = _attend(query, entries, entries, mask, **options)
        mixed = mixed[..., : self.kv_rank]  # (batch, heads, query, kv_rank)
        return torch.einsum("bhqr,hrd->bhqd", mixed, up_v), weights

    def new_cache(self, batch: int, max_len: int) -> KVCache:
        """Return an empty cache for this module, of its dtype (or autocast's) and on its device.

        A token's latent and rotary key lie side by side, as one key without a value: ``kv_rank + d_rope`` numbers.

        Parameters
        ----------
        batch : int
            Number of sentences; 1 for ``(query, d_model)``.
        max_len : int
            For how many tokens there is room.
        """
        options = new_cache_options(self.W_dkv.weight)
        return KVCache(batch, 1, max_len, self.kv_rank + self.d_rope, 0, **options)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    need_weights: bool,
    **options: bool | float,
) -> tuple[Tensor, Tensor | None]:
    """Attend; ``key`` and ``value`` have the heads of ``query``, or one for all."""
    if not need_weights:
        return attend_in_groups(query, key, value, mask, **options), None
    key, value = (x.expand(-1, query.shape[1], -1, -1) for x in (key, value))
    return scaled_dot_product_attention(query, key, value, mask, **options)
