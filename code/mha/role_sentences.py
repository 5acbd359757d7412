"""Annotated sentences: which word should find which, for testing what heads do."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import torch
from jaxtyping import Float
from torch import Tensor

from .checks import check_string
from .minilm import MiniLM

RELATIONS = ("coreference", "subject", "object", "adjective", "determiner")
WORD = re.compile(r"\w+|[^\w\s]")  # a word, or a single mark
CHOICE = re.compile(r"\{([^{}|]+)\|([^{}|]+)\}")


@dataclass(frozen=True)
class Link:
    """A word that should find another: ``query`` and ``key`` are their places in the sentence's words.

    ``others`` are the places of further nouns, which the query should not find (coreference only).
    """

    query: int
    key: int
    others: tuple[int, ...] = ()


@dataclass(frozen=True)
class AnnotatedSentence:
    """A sentence and its links.

    Parameters
    ----------
    text : str
        As it stands in the file.
    words : tuple of str
        The words and marks of the text.
    links : dict
        Links by relation; every name in ``RELATIONS`` is there.
    block : int
        Number of the place in the file. The two sentences of a minimal pair share it.
    variant : int or None
        0 or 1 in a minimal pair, else ``None``.
    """

    text: str
    words: tuple[str, ...]
    links: dict[str, tuple[Link, ...]]
    block: int
    variant: int | None


def role_sentences() -> list[AnnotatedSentence]:
    """Return the sentences on which chapter 7 chooses its heads; those of a pair follow each other."""
    return _read("role_sentences.txt")


def held_sentences() -> list[AnnotatedSentence]:
    """Return further sentences, written after the heads had been chosen: they only judge."""
    return _read("held_sentences.txt")


def _read(file: str) -> list[AnnotatedSentence]:
    path = resources.files(__package__) / file
    return parse(path.read_text(encoding="utf-8"))


def minimal_pairs(
    sentences: Sequence[AnnotatedSentence],
) -> list[tuple[AnnotatedSentence, AnnotatedSentence]]:
    """Return the sentences that differ in one word only, two by two; a half pair is left out."""
    first = {other.block: other for other in sentences if other.variant == 0}
    return [
        (first[other.block], other)
        for other in sentences
        if other.variant == 1 and other.block in first
    ]


def parse(text: str) -> list[AnnotatedSentence]:
    """Read annotated sentences; the head of ``role_sentences.txt`` describes the form.

    Raises
    ------
    TypeError
        If ``text`` is no string.
    ValueError
        If a sentence does not end with its only full stop, a choice is not between two, a line has another form or
        names no relation, or a link stands twice, is of a word to itself, or of a word that the sentence does not
        have once. The message names the sentence.
    """
    check_string("text", text)
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if not line[0].isspace():
            blocks.append([line])
        elif blocks:
            blocks[-1].append(line.strip())
        else:
            raise ValueError(f"text: expected a sentence before {line.strip()!r}")
    found = []
    for number, lines in enumerate(blocks):
        _check_choices(lines)
        if CHOICE.search(lines[0]):
            for variant in (0, 1):
                chosen = [CHOICE.sub(rf"\{variant + 1}", line) for line in lines]
                found.append(_sentence(chosen, number, variant))
        else:
            found.append(_sentence(lines, number, None))
    return found


def _check_choices(lines: Sequence[str]) -> None:
    """Raise unless every brace and bar belongs to a choice, and the sentence has one where a link has."""
    chooses = CHOICE.search(lines[0])
    for line in lines:
        if re.search(r"[{|}]", CHOICE.sub("", line) if chooses else line):
            raise ValueError(
                f"{lines[0]!r}: expected choices of the form {{one|other}}, and one in "
                f"the sentence where its links have one, got {line!r}"
            )


def _sentence(
    lines: Sequence[str], block: int, variant: int | None
) -> AnnotatedSentence:
    """Return a sentence from its line and those of its links."""
    text, *annotations = lines
    words = tuple(WORD.findall(text))
    if words[-1:] != (".",) or words.count(".") > 1:
        raise ValueError(f"{text!r}: expected one full stop, at the end")
    links: dict[str, tuple[Link, ...]] = {relation: () for relation in RELATIONS}
    for line in annotations:
        match = re.fullmatch(r"(\w+): (.+)", line)
        if not match or match[1] not in RELATIONS:
            raise ValueError(
                f"{text!r}: expected 'relation: query > key', with one of {RELATIONS}, "
                f"got {line!r}"
            )
        for part in match[2].split(", "):
            link = _link(part, words, text)
            if link.others and match[1] != "coreference":
                raise ValueError(
                    f"{text!r}: expected 'not' in coreference alone, got {part!r}"
                )
            known = {(other.query, other.key) for other in links[match[1]]}
            if (link.query, link.key) in known:
                raise ValueError(f"{text!r}: expected {part!r} once, got it twice")
            links[match[1]] += (link,)
    return AnnotatedSentence(text, words, links, block, variant)


def _link(part: str, words: Sequence[str], text: str) -> Link:
    """Return the places of ``query > key not other not other``."""
    query, arrow, rest = part.partition(" > ")
    if not arrow:
        raise ValueError(f"{text!r}: expected 'query > key', got {part!r}")
    key, *others = [_place(name, words, text) for name in rest.split(" not ")]
    link = Link(_place(query, words, text), key, tuple(others))
    if len({link.query, key, *others}) < 2 + len(others):
        raise ValueError(f"{text!r}: expected different words, got {part!r}")
    return link


def _place(name: str, words: Sequence[str], text: str) -> int:
    """Return the place of a word, or with ``word:2`` of its second occurrence."""
    word, colon, which = name.partition(":")
    if colon and not which.isdecimal():
        raise ValueError(f"{text!r}: expected a number behind '{word}:', got {which!r}")
    places = [place for place, other in enumerate(words) if other == word]
    if not which and len(places) != 1:
        raise ValueError(
            f"{text!r}: expected {word!r} once, found it {len(places)} times; "
            f"say which, as in '{word}:2'"
        )
    number = int(which) if which else 1
    if not 1 <= number <= len(places):
        raise ValueError(
            f"{text!r}: expected {word!r} at least {number} times, "
            f"found it {len(places)} times"
        )
    return places[number - 1]


def word_weights(
    model: MiniLM, sentences: Sequence[AnnotatedSentence]
) -> Float[Tensor, "sentence layers heads query key"]:
    """Return the attention weights of all heads between words instead of pieces of words.

    The tokenizer cuts a rare word into several tokens. As a key, a word gets the sum of its tokens' weights; as a
    query, it has the mean of their rows. So each row still sums to 1.

    Returns
    -------
    Tensor
        Place 0 is ``[CLS]``, place i + 1 the sentence's word i, then comes ``[SEP]``; behind it are zeros.

    Raises
    ------
    ValueError
        If the tokenizer takes other things for words than :data:`WORD` does.

    Source
    ------
    Clark et al. 2019, "What Does BERT Look At?", section 4.1.
    """
    texts = [sentence.text for sentence in sentences]
    with torch.no_grad():
        weights = model.weights(*model.tokenize(texts))
    longest = max(len(sentence.words) for sentence in sentences) + 2
    belongs = torch.zeros(len(texts), longest, weights.shape[-1], device=weights.device)
    for number, sentence in enumerate(sentences):
        inner = model.tokenizer.encode(sentence.text).word_ids[1:-1]
        stop = len(sentence.words)
        if inner[-1] != stop - 1:
            raise ValueError(
                f"{sentence.text!r}: expected the tokenizer to find {stop} words, "
                f"got {inner[-1] + 1}"
            )
        words = [0, *(word + 1 for word in inner), stop + 1]
        belongs[number, words, range(len(words))] = 1
    belongs = belongs[:, None, None]  # (sentence, 1, 1, word, token)
    share = belongs / belongs.sum(dim=-1, keepdim=True).clamp(min=1)
    return share @ weights @ belongs.transpose(-2, -1)
