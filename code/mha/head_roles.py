"""What heads learn: detectors for the roles of the literature, each against its best simple rule."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .checks import check_float_tensor, check_index
from .role_cases import Cases, find_cases
from .role_sentences import AnnotatedSentence, Link, minimal_pairs

OFFSETS = tuple(offset for offset in range(-12, 13) if offset)


def hits(
    weights: Float[Tensor, "sentence layers heads query key"], cases: Cases
) -> Bool[Tensor, "cases layers heads"]:
    """Return whether each head's largest weight is at a right word, case by case.

    Raises
    ------
    TypeError
        If ``weights`` is no floating-point tensor.
    ValueError
        If ``weights`` is not of the sentences, or of their words, that the cases ask about.
    """
    rows = _rows(weights, cases)
    found = rows.masked_fill(~cases.allowed[:, None, None], -1).argmax(dim=-1)
    return cases.right.gather(1, found.flatten(1)).view_as(found)


def weight_on_right(
    weights: Float[Tensor, "sentence layers heads query key"], cases: Cases
) -> Float[Tensor, "cases layers heads"]:
    """Return how much of its whole weight each head puts on the right words, case by case.

    Errors are those of :func:`hits`.
    """
    return (_rows(weights, cases) * cases.right[:, None, None]).sum(dim=-1)


def _rows(
    weights: Float[Tensor, "sentence layers heads query key"], cases: Cases
) -> Float[Tensor, "cases layers heads key"]:
    """Return the weights of the words that ask."""
    last = max(cases.sentence.tolist(), default=-1)
    _check_weights(weights, cases.right.shape[1], last + 1, or_more=True)
    return weights[cases.sentence, :, :, cases.query]


def _check_weights(
    weights: Tensor, words: int, count: int, or_more: bool = False
) -> None:
    """Raise unless they are weights between ``words`` words, of ``count`` sentences."""
    check_float_tensor("weights", weights, 0, "")
    fits = weights.dim() == 5 and weights.shape[3:] == (words, words)
    if not fits or len(weights) < count or (len(weights) > count and not or_more):
        raise ValueError(
            f"weights: expected shape (sentences, layers, heads, {words}, {words}) "
            f"with {count}{' or more' * or_more} sentences, got {tuple(weights.shape)}"
        )


def rule_hits(
    sentences: Sequence[AnnotatedSentence], role: str
) -> tuple[list[str], Bool[Tensor, "cases rules"]]:
    """Return simple rules that know no head, and where each of them is right.

    The rules are fixed offsets, such as "-1" for the word before; for the delimiter also "always [CLS]", and for
    coreference the nearest and the first of the nouns before the pronoun.
    """
    cases = find_cases(sentences, role)
    last = cases.right.shape[1] - 1
    places = cases.query[:, None] + torch.tensor(OFFSETS)  # (cases, offsets)
    inside = (places >= 0) & (places <= last)
    names = [f"{offset:+d}" for offset in OFFSETS]
    right = inside & cases.right.gather(1, places.clamp(0, last))
    more = {}
    if role == "delimiter":
        more["always [CLS]"] = cases.right[:, 0]
    if role == "coreference":
        links = [link for sentence in sentences for link in sentence.links[role]]
        for name, choose in (("nearest noun", max), ("first noun", min)):
            column = [choose((link.key, *link.others)) == link.key for link in links]
            more[name] = torch.tensor(column)
    return [*names, *more], torch.column_stack([right, *more.values()])


@dataclass(frozen=True)
class HeldOut:
    """A role's best head, chosen on one half of the sentences and judged on the other, beside the best rule.

    Parameters
    ----------
    heads : tuple
        ``(layer, head)`` as chosen on the even blocks, and on the odd ones.
    rule : str
        The rule that is right most often on all sentences, which then judge it: an advantage that heads do not get.
    head_hits, rule_hits : Tensor
        ``(cases,)``: 1 where the head chosen on the other half, or the rule, is right, else 0.
    """

    heads: tuple[tuple[int, int], tuple[int, int]]
    rule: str
    head_hits: Float[Tensor, "cases"]
    rule_hits: Float[Tensor, "cases"]


def held_out(
    weights: Float[Tensor, "sentence layers heads query key"],
    sentences: Sequence[AnnotatedSentence],
    role: str,
) -> HeldOut:
    """Choose a role's head on half of the sentences, and judge it on the others.

    The best of 72 heads is partly the luckiest of 72. On sentences that did not choose it, its luck is gone. Minimal
    pairs are not torn apart.

    Raises
    ------
    ValueError
        If a half has no case of the role.
    """
    cases = find_cases(sentences, role)
    odd = cases.block % 2 == 1
    if odd.all() or not odd.any():
        raise ValueError(f"sentences: expected {role!r} in even and in odd blocks")
    found = hits(weights, cases).float()
    best = {
        half: best_heads(found[odd == half].mean(dim=0), 1)[0] for half in (False, True)
    }
    chosen_by_odd, chosen_by_even = (found[:, *best[half]] for half in (True, False))
    names, right = rule_hits(sentences, role)
    rule = right.float().mean(dim=0).argmax()
    return HeldOut(
        heads=(best[False], best[True]),
        rule=names[rule],
        head_hits=torch.where(odd, chosen_by_even, chosen_by_odd),
        rule_hits=right[:, rule].float(),
    )


def best_heads(
    scores: Float[Tensor, "layers heads"], count: int
) -> list[tuple[int, int]]:
    """Return the ``(layer, head)`` of the largest scores, the largest first.

    Raises
    ------
    TypeError
        If ``count`` is not an int.
    ValueError
        If ``count`` is below 0 or larger than the number of heads.
    """
    check_index("count", count, scores.numel() + 1)
    places = scores.flatten().argsort(descending=True, stable=True)[:count]
    return [divmod(place, scores.shape[1]) for place in places.tolist()]


def pair_preferences(
    weights: Float[Tensor, "sentence layers heads query key"],
    sentences: Sequence[AnnotatedSentence],
) -> Float[Tensor, "pairs 2 layers heads"]:
    """Return how heads divide a pronoun's weight between the two nouns of each minimal pair.

    Returns
    -------
    Tensor
        ``(pairs, 2, layers, heads)``: of the weight on both nouns, the share of the one that is right in the pair's
        first sentence, in the first sentence and in the second. A head that understood the exchanged word would be
        above ½ in the first and below ½ in the second; one that ignores it has twice the same.

    Raises
    ------
    TypeError
        If ``weights`` is no floating-point tensor.
    ValueError
        If there is no pair, a sentence of a pair has not one pronoun that is linked, or ``weights`` is not of these
        sentences and their words.
    """
    pairs, found = minimal_pairs(sentences), []
    if not pairs:
        raise ValueError("sentences: expected a minimal pair, got none")
    longest = max(len(sentence.words) for sentence in sentences) + 2
    _check_weights(weights, longest, len(sentences))
    for pair in pairs:
        first, second = (_only_pronoun(sentence) for sentence in pair)
        rows = torch.stack(
            [weights[sentences.index(s), :, :, first.query + 1] for s in pair]
        )  # (2, layers, heads, key)
        on_first, on_second = rows[..., first.key + 1], rows[..., second.key + 1]
        found.append(on_first / (on_first + on_second))
    return torch.stack(found)


def _only_pronoun(sentence: AnnotatedSentence) -> Link:
    """Return the link of the one pronoun."""
    links = sentence.links["coreference"]
    if len(links) != 1:
        raise ValueError(
            "sentences: expected one link of coreference in "
            f"{sentence.text!r}, got {len(links)}"
        )
    return links[0]
