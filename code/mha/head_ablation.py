"""Taking heads away: what a trained model does without them, and a module that is really smaller."""

from collections.abc import Iterable, Sequence
from copy import deepcopy

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .checks import check_index, listed
from .head_splitting import split_heads
from .masking import padding_mask
from .minilm import MiniLM, mean_of_tokens
from .multi_head import MultiHeadAttention

Head = tuple[int, int]  # layer and head, both counted from 0


def without_heads(model: MiniLM, heads: Iterable[Head]) -> MiniLM:
    """Return a copy in which these heads add nothing; its other parameters are the model's own, not copies.

    A head adds its result times its columns of ``W_o``. With zeros there it is gone, and everything else stays.

    Parameters
    ----------
    model : MiniLM
        Its blocks may be pruned; then the heads that are left count from 0.
    heads : iterable
        ``(layer, head)`` of each.

    Raises
    ------
    TypeError
        If ``heads`` is no list of pairs of ints.
    ValueError
        If a head is not there.
    """
    own = {id(kept): kept for kept in (model.tokenizer, *model.parameters())}
    copy = deepcopy(model, own)
    for layer, gone in _by_layer(model, heads).items():
        W_o = copy.blocks[layer].attention.W_o
        weight = W_o.weight.detach().clone()
        weight[:, _columns(copy.blocks[layer].attention, gone)] = 0
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
    TypeError
        If ``heads`` is no list of ints.
    ValueError
        If a head is not there, or none would stay.

    Source
    ------
    Michel et al. 2019, "Are Sixteen Heads Really Better than One?"; Voita et al. 2019, "Analyzing Multi-Head
    Self-Attention".
    """
    gone = set()
    for head in listed("heads", heads, "head numbers"):
        check_index("head in heads", head, attention.num_heads)
        gone.add(head)
    cut = set(_columns(attention, gone))
    if len(gone) == attention.num_heads:
        raise ValueError(
            f"heads: expected at least one of {attention.num_heads} to stay, got all"
        )
    stay = [n for n in range(attention.W_q.out_features) if n not in cut]
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
    """Return a copy of the model whose blocks are pruned; every block keeps at least one head.

    Parameters and errors are those of :func:`without_heads`; that a block keeps no head is an error too.
    """
    copy = deepcopy(model, {id(model.tokenizer): model.tokenizer})
    for layer, gone in _by_layer(model, heads).items():
        copy.blocks[layer].attention = prune_heads(copy.blocks[layer].attention, gone)
    return copy


def _by_layer(
    model: MiniLM, heads: Iterable[Head], name: str = "heads"
) -> dict[int, set[int]]:
    """Return the heads' numbers by layer, or raise; ``name`` is what the caller calls them."""
    found: dict[int, set[int]] = {}
    for pair in listed(name, heads, "(layer, head)"):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(
                f"{name}: expected a list of (layer, head), got {pair!r} in it"
            )
        layer, head = pair
        check_index(f"layer in {name}", layer, len(model.blocks))
        num_heads = model.blocks[layer].attention.num_heads
        check_index(f"head in {name}", head, num_heads)
        found.setdefault(layer, set()).add(head)
    return found


def _columns(attention: MultiHeadAttention, heads: set[int]) -> list[int]:
    """Return which columns of ``W_o``, and rows of the other projections, belong to these heads."""
    d_k = attention.W_q.out_features // attention.num_heads
    return [head * d_k + number for head in sorted(heads) for number in range(d_k)]


def similarity(
    model: MiniLM, heads: Iterable[Head], sentences: Sequence[str]
) -> Float[Tensor, "batch"]:
    """Return the cosine of each sentence's vectors with and without these heads: 1 where nothing changed.

    Errors are those of :func:`without_heads` and :meth:`MiniLM.encode`.
    """
    without = without_heads(model, heads)
    return (model.encode(sentences) * without.encode(sentences)).sum(dim=-1)


def removal_curve(
    model: MiniLM,
    order: Sequence[Head],
    counts: Sequence[int],
    sentences: Sequence[str],
) -> list[float]:
    """Return the mean similarity when the first heads of an order are gone, for each of these counts.

    Raises
    ------
    TypeError
        If ``order`` is no list of pairs of ints, or ``counts`` no list of ints.
    ValueError
        If a head of the order is not there, or a count is below 0 or larger than the order.
    """
    order = listed("order", order, "(layer, head)")
    _by_layer(model, order, "order")
    counts = listed("counts", counts, "ints")
    for count in counts:
        check_index("count in counts", count, len(order) + 1)
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

    Raises
    ------
    ValueError
        If the blocks were pruned to different numbers of heads: the table would have holes.
    """
    num_heads = model.heads_of_each_block()
    ids, lengths = model.tokenize(sentences)
    mask, x = padding_mask(lengths, ids.shape[1]), model.embed(ids)
    whole = mean_of_tokens(model(ids, lengths), lengths)
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

    Raises
    ------
    ValueError
        If the blocks were pruned to different numbers of heads.

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
