"""Multi-head attention, as the book builds it: one module a chapter, and the helpers its pages share."""

from .claims import claim
from .display import show_source
from .grouped_query import GroupedQueryAttention
from .head_splitting import (
    attention_cost,
    combine_heads,
    count_parameters,
    influence,
    per_head_matrices,
    split_heads,
)
from .kv_cache import KVCache
from .latent_attention import MultiHeadLatentAttention
from .masking import combine_masks, padding_mask
from .multi_head import MultiHeadAttention
from .plotting import plot_attention
from .single_head import SingleHeadAttention, causal_mask, scaled_dot_product_attention
from .style import use_book_style
from .transformer_block import TransformerBlock
from .two_heads import attend_head_by_head, concat_heads

__all__ = [
    "GroupedQueryAttention",
    "KVCache",
    "MultiHeadAttention",
    "MultiHeadLatentAttention",
    "SingleHeadAttention",
    "TransformerBlock",
    "attend_head_by_head",
    "attention_cost",
    "causal_mask",
    "claim",
    "combine_heads",
    "combine_masks",
    "concat_heads",
    "count_parameters",
    "influence",
    "padding_mask",
    "per_head_matrices",
    "plot_attention",
    "scaled_dot_product_attention",
    "show_source",
    "split_heads",
    "use_book_style",
]
