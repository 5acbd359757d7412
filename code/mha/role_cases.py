"""The questions that a role asks of a head: which word asks, and which words would be right."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from .role_sentences import RELATIONS, AnnotatedSentence

SYNTAX = ("subject", "object", "adjective", "determiner")
ROLES = ("coreference", *SYNTAX, "previous", "next", "delimiter")


@dataclass(frozen=True)
class Cases:
    """The places in a set of sentences where a role asks something of a head.

    Words are counted as in :func:`word_weights`: 0 is ``[CLS]``.

    Parameters
    ----------
    sentence, block, query : Tensor
        ``(cases,)``: the sentence's number, its block in the file, and the word that asks.
    right : Tensor
        ``(cases, words)``: the words that are to be found.
    allowed : Tensor
        ``(cases, words)``: the words among which the largest weight is looked for.
    """

    sentence: Int[Tensor, "cases"]
    block: Int[Tensor, "cases"]
    query: Int[Tensor, "cases"]
    right: Bool[Tensor, "cases words"]
    allowed: Bool[Tensor, "cases words"]


def find_cases(sentences: Sequence[AnnotatedSentence], role: str) -> Cases:
    """Return where a role asks something.

    In coreference and syntax the links of the file ask; in the other roles every word does. The largest weight is
    looked for among words alone, because many heads rest on a delimiter and still tell words apart with what is
    left. For the role "delimiter" (``[CLS]``, ``[SEP]`` or the full stop) it is looked for everywhere.

    Raises
    ------
    ValueError
        If ``role`` is none of ``ROLES``, or nothing in the sentences asks for it.

    Source
    ------
    Voita et al. 2019, "Analyzing Multi-Head Self-Attention" (largest weight, the sentence's end left out, against
    the best fixed offset); Clark et al. 2019, "What Does BERT Look At?" (delimiters, coreference).
    """
    if role not in ROLES:
        raise ValueError(f"role: expected one of {ROLES}, got {role!r}")
    longest = max((len(sentence.words) for sentence in sentences), default=0) + 2
    places = torch.arange(longest)
    cases = []
    for number, sentence in enumerate(sentences):
        stop = len(sentence.words)  # the place of the full stop; [SEP] is behind it
        between = (places > 0) & (places < stop)
        allowed = places <= stop + 1 if role == "delimiter" else between
        for query, keys in _questions(sentence, role):
            right = torch.isin(places, torch.tensor(keys))
            cases.append((number, sentence.block, query, right, allowed))
    if not cases:
        raise ValueError(f"sentences: expected some that ask for {role!r}, got none")
    sentence, block, query, right, allowed = zip(*cases, strict=True)
    numbers = (torch.tensor(column) for column in (sentence, block, query))
    return Cases(*numbers, torch.stack(right), torch.stack(allowed))


def among_nouns(sentences: Sequence[AnnotatedSentence]) -> Cases:
    """Return the cases of coreference, with the largest weight looked for among the nouns of each link alone.

    An easier question: not whether the pronoun looks at its noun first of all, but whether it prefers it to others.
    """
    cases = find_cases(sentences, "coreference")
    allowed = torch.zeros_like(cases.allowed)
    links = [link for sentence in sentences for link in sentence.links["coreference"]]
    for row, link in zip(allowed, links, strict=True):
        row[[place + 1 for place in (link.key, *link.others)]] = True
    return replace(cases, allowed=allowed)


def _questions(sentence: AnnotatedSentence, role: str) -> list[tuple[int, list[int]]]:
    """Return which word asks, and the places that are right."""
    stop = len(sentence.words)
    if role in RELATIONS:
        return [(link.query + 1, [link.key + 1]) for link in sentence.links[role]]
    if role == "delimiter":
        return [(query, [0, stop, stop + 1]) for query in range(1, stop)]
    if role == "previous":
        return [(query, [query - 1]) for query in range(2, stop)]
    return [(query, [query + 1]) for query in range(1, stop - 1)]
