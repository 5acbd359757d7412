"""Sharing keys and values, so that the cache of a long text stays small: what chapter 8 builds."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .checks import check_at_least, check_tensor
from .grouped_query import GroupedQueryAttention
from .kv_cache import KVCache, check_room
from .latent_attention import MultiHeadLatentAttention

__all__ = [
    "MODELS",
    "CachedModel",
    "GroupedQueryAttention",
    "KVCache",
    "MultiHeadLatentAttention",
    "cache_bytes",
    "decode_in_chunks",
    "kv_numbers_per_token",
    "latent_numbers_per_token",
]


def kv_numbers_per_token(
    num_kv_heads: int,
    d_k: int,
    d_v: int | None = None,
) -> int:
    """Return how many numbers one layer stores for a token: its keys and values.

    Parameters
    ----------
    num_kv_heads : int
        All heads in multi-head attention, 1 in multi-query attention, a number between in grouped-query attention.
    d_k : int
        Width of one head's keys.
    d_v : int, optional
        Width of one head's values. Default: ``d_k``.
    """
    d_v = d_k if d_v is None else d_v
    sizes = {"num_kv_heads": num_kv_heads, "d_k": d_k, "d_v": d_v}
    for name, number in sizes.items():
        check_at_least(name, number)
    return num_kv_heads * (d_k + d_v)


def latent_numbers_per_token(kv_rank: int, d_rope: int) -> int:
    """Return how many numbers one layer of multi-head latent attention stores.

    For a token, that is, and however many heads there are.

    Parameters
    ----------
    kv_rank : int
        Width of the latent.
    d_rope : int
        Width of the rotary key.
    """
    check_at_least("kv_rank", kv_rank)
    check_at_least("d_rope", d_rope)
    return kv_rank + d_rope


def cache_bytes(
    num_layers: int,
    numbers_per_token: int,
    length: int,
    batch: int = 1,
    bytes_per_number: int = 2,
) -> int:
    """Return how many bytes a model's cache takes.

    Parameters
    ----------
    num_layers : int
        Each has a cache of its own.
    numbers_per_token : int
        What one layer stores for one token.
    length : int
        Number of tokens.
    batch : int
        Number of texts that are decoded at once.
    bytes_per_number : int
        2 for half types, which models are usually run in; 4 for float32.
    """
    sizes = {"num_layers": num_layers, "numbers_per_token": numbers_per_token}
    sizes |= {"length": length, "batch": batch}
    sizes |= {"bytes_per_number": bytes_per_number}
    total = 1
    for name, number in sizes.items():
        check_at_least(name, number, 0)
        total *= number
    return total


class CachedModel(NamedTuple):
    """What decides how much a published model stores for a token."""

    num_layers: int
    num_heads: int  # of queries
    d_k: int  # of one head, rotary numbers that come on top left out
    numbers_per_token: int  # in one layer


MODELS = {
    # Touvron et al. 2023, "Llama 2", https://arxiv.org/abs/2307.09288: table 1 says which sizes group their queries
    # (34B and 70B). Layers and heads: https://huggingface.co/meta-llama/Llama-2-7b-hf/blob/main/config.json
    "Llama 2 7B": CachedModel(32, 32, 128, kv_numbers_per_token(32, 128)),
    # https://huggingface.co/meta-llama/Llama-2-70b-hf/blob/main/config.json
    "Llama 2 70B": CachedModel(80, 64, 128, kv_numbers_per_token(8, 128)),
    # Grattafiori et al. 2024, "The Llama 3 Herd of Models", https://arxiv.org/abs/2407.21783, table 3
    "Llama 3 8B": CachedModel(32, 32, 128, kv_numbers_per_token(8, 128)),
    # Almazrouei et al. 2023, "The Falcon Series of Open Language Models", https://arxiv.org/abs/2311.16867;
    # https://huggingface.co/tiiuae/falcon-7b/blob/main/config.json
    "Falcon 7B": CachedModel(32, 71, 64, kv_numbers_per_token(1, 64)),
    # DeepSeek-AI 2024, "DeepSeek-V2", https://arxiv.org/abs/2405.04434, section 3.1.2
    "DeepSeek-V2": CachedModel(60, 128, 128, latent_numbers_per_token(512, 64)),
}


def decode_in_chunks(
    module: nn.Module,
    x: Float[Tensor, "*batch seq d_model"],
    chunks: Sequence[int],
    cache: KVCache,
    **options: bool,
) -> Float[Tensor, "*batch seq d_model"]:
    """Give a module the tokens a few at a time, and join the outputs.

    Parameters
    ----------
    module : GroupedQueryAttention or MultiHeadLatentAttention
        Called as ``module(part, cache=cache, **options)[0]``.
    x : Tensor
        ``(batch, seq, d_model)`` or ``(seq, d_model)``.
    chunks : sequence of int
        How many tokens each call gets; together ``seq``. At least one chunk.
    cache : KVCache
        Empty, or with the tokens before ``x``. It needs room for all of ``x``.
    **options
        Passed on, ``absorbed=True`` for one.

    Raises
    ------
    TypeError
        If the chunks are not a sequence of ints, or ``cache`` is no cache.
    ValueError
        If the chunks are not ``seq`` tokens together, or do not fit into the cache, which is left as it was.
    """
    check_tensor("x", x, 2, "shape (*batch, seq, d_model)")
    if not isinstance(chunks, Sequence):
        raise TypeError(
            f"chunks: expected a sequence of ints, got {type(chunks).__name__}"
        )
    check_at_least("number of chunks", len(chunks))
    for number, chunk in enumerate(chunks):
        check_at_least(f"chunks[{number}]", chunk, 0)
    if sum(chunks) != x.shape[-2]:
        raise ValueError(
            f"chunks: expected {x.shape[-2]} tokens together, those of x, "
            f"got {list(chunks)}, which is {sum(chunks)}"
        )
    check_room(cache, sum(chunks))
    parts = x.split(list(chunks), dim=-2)
    outputs = [module(part, cache=cache, **options)[0] for part in parts]
    return torch.cat(outputs, dim=-2)
