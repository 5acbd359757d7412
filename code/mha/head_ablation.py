"""Taking heads away: what a trained model does without them, and a module that is really smaller."""

from collections.abc import Iterable, Sequence
from copy import deepcopy

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .head_splitting import split_heads
from .masking import padding_mask
from .minilm import MiniLM, mean_of_tokens
from .multi_head import MultiHeadAttention

Head = tuple[int, int]  # layer and head, both counted from 0


def without_heads(model: MiniLM, heads: Iterable[Head]) -> MiniLM:
    """Return a copy in which these heads add nothing; its other parameters are the model's own, not copies.

    A head adds its result times its columns of ``W_o``. With zeros there it is gone, and everything else stays.

    Raises
    ------
    ValueError
        If a head is not there.
    """
    own = {id(kept): kept for kept in (model.tokenizer, *model.parameters())}
    copy = deepcopy(model, own)
    for layer, gone in _by_layer(model, heads).items():
        W_o = copy.blocks[layer].attention.W_o
        weight = W_o.weight.detach().clone()
        weight[:, _numbers_of(copy.blocks[layer].attention, gone)] = 0
        W_o.weight = nn.Parameter(weight)
    return copy


def prune_heads(
    attention: MultiHeadAttention, heads: Iterable[int]
) -> MultiHeadAttention:
    """Return a smaller module: the same outputs as with zeros in ``W_o``, without computing what they wipe out.

    A head's rows of ``W_q``, ``W_k`` and ``W_v`` and its columns of ``W_o`` are cut out. The other heads keep their
    width ``d_k``, so that ``d_k`` is no longer ``d_model / num_heads``.

    Raises
    ------
    ValueError
        If a head is not there, or none would stay.

    Source
    ------
    Michel et al. 2019, "Are Sixteen Heads Really Better than One?"; Voita et al. 2019, "Analyzing Multi-Head
    Self-Attention".
    """
    gone = set(heads)
    cut = _numbers_of(attention, gone)
    if len(gone) == attention.num_heads:
        raise ValueError(
            f"heads: expected at least one of {attention.num_heads} to stay, got all"
        )
    stay = [n for n in range(attention.W_q.out_features) if n not in set(cut)]
    pruned = deepcopy(attention)
    pruned.num_heads -= len(gone)
    for W in (pruned.W_q, pruned.W_k, pruned.W_v):
        W.weight, W.out_features = nn.Parameter(W.weight[stay].detach()), len(stay)
        if W.bias is not None:
            W.bias = nn.Parameter(W.bias[stay].detach())
    W = pruned.W_o
    W.weight, W.in_features = nn.Parameter(W.weight[:, stay].detach()), len(stay)
    return pruned


def prune_model(model: MiniLM, heads: Iterable[Head]) -> MiniLM:
    """Return a copy of the model whose blocks are pruned; every block keeps at least one head."""
    copy = deepcopy(model, {id(model.tokenizer): model.tokenizer})
    for layer, gone in _by_layer(model, heads).items():
        copy.blocks[layer].attention = prune_heads(copy.blocks[layer].attention, gone)
    return copy


def _by_layer(model: MiniLM, heads: Iterable[Head]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for layer, head in heads:
        if not 0 <= layer < len(model.blocks):
            raise ValueError(
                f"heads: expected layers from 0 to {len(model.blocks) - 1}, got {layer}"
            )
        found.setdefault(layer, set()).add(head)
    return found


def _numbers_of(attention: MultiHeadAttention, heads: Iterable[int]) -> list[int]:
    """Return which of the projections' numbers belong to these heads."""
    d_k = attention.W_q.out_features // attention.num_heads
    for head in heads:
        if not 0 <= head < attention.num_heads:
            raise ValueError(
                f"heads: expected numbers from 0 to {attention.num_heads - 1}, got {head}"
            )
    return [head * d_k + number for head in sorted(heads) for number in range(d_k)]


def similarity(
    model: MiniLM, heads: Iterable[Head], sentences: Sequence[str]
) -> Float[Tensor, "batch"]:
    """Return the cosine of each sentence's vectors with and without these heads: 1 where nothing changed."""
    without = without_heads(model, heads)
    return (model.encode(sentences) * without.encode(sentences)).sum(dim=-1)


def removal_curve(
    model: MiniLM,
    order: Sequence[Head],
    counts: Sequence[int],
    sentences: Sequence[str],
) -> list[float]:
    """Return the mean similarity when the first heads of an order are gone, for each of these counts."""
    whole, curve = model.encode(sentences), []
    for count in counts:
        vectors = without_heads(model, order[:count]).encode(sentences)
        curve.append((whole * vectors).sum(dim=-1).mean().item())
    return curve


@torch.no_grad()
def ablation_effects(
    model: MiniLM, sentences: Sequence[str]
) -> Float[Tensor, "layers heads"]:
    """Return how far the removal of each head alone moves the sentences: 1 - cosine, mean over the sentences.

    It is ``1 - similarity(model, [head], sentences).mean()`` for every head. What lies below a head is computed only
    once.
    """
    ids, lengths = model.tokenize(sentences)
    mask, x = padding_mask(lengths, ids.shape[1]), model.embed(ids)
    whole = mean_of_tokens(model(ids, lengths), lengths)
    num_heads = model.blocks[0].attention.num_heads
    effects = torch.empty(len(model.blocks), num_heads)
    for layer, block in enumerate(model.blocks):
        for head in range(num_heads):
            changed = x
            for above in without_heads(model, [(layer, head)]).blocks[layer:]:
                changed = above(changed, mask)
            cosine = (whole * mean_of_tokens(changed, lengths)).sum(dim=-1)
            effects[layer, head] = 1 - cosine.mean()
        x = block(x, mask)
    return effects


@torch.no_grad()
def lengths_added(
    model: MiniLM, sentences: Sequence[str]
) -> Float[Tensor, "layers heads"]:
    """Return the length of what each head adds to a token, mean over all tokens.

    Weights alone cannot say this: a large weight on a small value adds little.

    Source
    ------
    Kobayashi et al. 2020, "Attention is Not Only a Weight: Analyzing Transformers with Vector Norms".
    """
    ids, lengths = model.tokenize(sentences)
    mask, x = padding_mask(lengths, ids.shape[1]), model.embed(ids)
    own, weights = mask[:, 0, 0], model.weights(ids, lengths)
    added = []
    for layer, block in enumerate(model.blocks):
        attention = block.attention
        v = split_heads(attention.W_v(x), attention.num_heads)
        results = weights[:, layer] @ v  # (batch, heads, seq, d_k)
        columns = split_heads(attention.W_o.weight, attention.num_heads)
        parts = results @ columns.transpose(-2, -1)  # (batch, heads, seq, d_model)
        added.append(parts.norm(dim=-1).transpose(0, 1)[:, own].mean(dim=-1))
        x = block(x, mask)
    return torch.stack(added)
