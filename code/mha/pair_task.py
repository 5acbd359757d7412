"""A task for two heads: report, in order, the symbols that stand in two places."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from .checks import check_at_least, check_divisible
from .multi_head import MultiHeadAttention


class Pairs(NamedTuple):
    """Sequences of labelled symbols, the two labels asked for, and the symbols that bear them."""

    symbols: Int[Tensor, "batch seq"]
    labels: Int[Tensor, "batch seq"]
    asked: Int[Tensor, "batch 2"]  # label of the first and of the second place
    places: Int[Tensor, "batch 2"]  # where they stand
    answer: Int[Tensor, "batch 2"]  # the symbols that stand there


def marked_pairs(
    count: int, num_symbols: int, seq: int, generator: torch.Generator
) -> Pairs:
    """Draw sequences with two marked places: labels 1 and 2, which are always asked for; all others bear 0.

    Parameters
    ----------
    count, num_symbols, seq : int
        How many sequences, how many symbols there are, and the length of a sequence, 2 or more.
    generator : torch.Generator
        Where the random numbers come from.

    Raises
    ------
    ValueError
        If a number is too small.
    """
    symbols, places = _draw(count, num_symbols, seq, generator)
    asked = torch.tensor([1, 2]).expand(count, 2)
    labels = torch.zeros_like(symbols).scatter(1, places, asked)
    return Pairs(symbols, labels, asked, places, symbols.gather(1, places))


def named_pairs(
    count: int, num_symbols: int, seq: int, generator: torch.Generator
) -> Pairs:
    """Draw sequences whose labels are the positions 0 … seq - 1; the question names any two of them.

    Parameters and errors are those of :func:`marked_pairs`.
    """
    symbols, places = _draw(count, num_symbols, seq, generator)
    labels = torch.arange(seq).expand(count, seq)
    return Pairs(symbols, labels, places, places, symbols.gather(1, places))


def _draw(
    count: int, num_symbols: int, seq: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    check_at_least("count", count)
    check_at_least("num_symbols", num_symbols)
    check_at_least("seq", seq, 2)
    symbols = torch.randint(num_symbols, (count, seq), generator=generator)
    order = torch.rand(count, seq, generator=generator).argsort(dim=-1)
    return symbols, order[:, :2]  # two different places


def every_pair(pairs: Pairs, num_symbols: int) -> Pairs:
    """Put every ordered pair of symbols into the places of the first sequence, and leave all else as it is.

    Returns
    -------
    Pairs
        ``num_symbols²`` sequences: (0, 0), (0, 1), …

    Raises
    ------
    TypeError
        If ``num_symbols`` is not an int.
    ValueError
        If ``num_symbols`` is less than 1, or there is no sequence.
    """
    check_at_least("num_symbols", num_symbols)
    check_at_least("number of sequences", len(pairs.symbols))
    answer = torch.cartesian_prod(*[torch.arange(num_symbols)] * 2)
    symbols, labels, asked, places = (
        rows[:1].repeat(len(answer), 1) for rows in pairs[:4]
    )
    return Pairs(symbols.scatter(1, places, answer), labels, asked, places, answer)


class PairReader(nn.Module):
    """One question attends to the tokens once, and a linear layer reads both symbols from the result.

    A token is the sum of two vectors, one for its symbol and one for its label; the question is the sum of one for
    the first label asked for and one for the second.

    Parameters
    ----------
    num_symbols, num_labels : int
        How many there are.
    d_model, num_heads : int
        As in :class:`MultiHeadAttention`. The number of parameters does not depend on ``num_heads``.
    blind_keys : bool
        Keys are made from the labels alone, so that no weight can depend on a symbol.
    table_per_label : bool
        A symbol has another vector under each label, so that values know their place.

    Raises
    ------
    ValueError
        If a number is less than 1 or ``num_heads`` does not divide ``d_model``.
    """

    def __init__(
        self,
        num_symbols: int = 40,
        num_labels: int = 3,
        d_model: int = 16,
        num_heads: int = 1,
        *,
        blind_keys: bool = False,
        table_per_label: bool = False,
    ) -> None:
        super().__init__()
        check_at_least("num_symbols", num_symbols)
        check_at_least("num_labels", num_labels)
        check_at_least("d_model", d_model)
        check_divisible(d_model, num_heads)
        self.num_symbols, self.num_labels = num_symbols, num_labels
        self.num_heads = num_heads
        self.blind_keys, self.table_per_label = blind_keys, table_per_label
        rows = num_symbols * (num_labels if table_per_label else 1)
        self.symbols = nn.Embedding(rows, d_model)
        self.labels = nn.Embedding(num_labels, d_model)
        self.first = nn.Embedding(num_labels, d_model)
        self.second = nn.Embedding(num_labels, d_model)
        self.attention = MultiHeadAttention(d_model, num_heads)
        self.scores = nn.Linear(d_model, 2 * num_symbols)
        nn.init.normal_(self.labels.weight, std=0.5)
        for question in (self.first, self.second):
            nn.init.normal_(question.weight, std=0.1)  # at first, all weights are alike

    def forward(
        self, pairs: Pairs
    ) -> tuple[Float[Tensor, "batch 2 symbols"], Float[Tensor, "batch heads seq"]]:
        """Return the scores of all symbols for both places, and the question's weights.

        Errors are those of :meth:`check`.
        """
        self.check(pairs)
        labels = self.labels(pairs.labels)  # (batch, seq, d_model)
        tokens = labels + self.symbols(self.rows(pairs))
        asked = self.first(pairs.asked[:, :1]) + self.second(pairs.asked[:, 1:])
        keys = labels if self.blind_keys else tokens
        output, weights = self.attention(asked, keys, tokens)  # one query
        scores = self.scores(output[:, 0]).unflatten(-1, (2, self.num_symbols))
        return scores, weights[:, :, 0]

    def rows(self, pairs: Pairs) -> Int[Tensor, "batch seq"]:
        """Return which row of the table of symbols each token takes."""
        shift = self.num_symbols * pairs.labels if self.table_per_label else 0
        return pairs.symbols + shift

    def check(self, pairs: Pairs) -> None:
        """Raise a ``ValueError`` if a symbol or a label, in a token or in the question, is not in the tables."""
        for name, count in (
            ("symbols", self.num_symbols),
            ("labels", self.num_labels),
            ("asked", self.num_labels),
        ):
            numbers = getattr(pairs, name)
            low, high = numbers.aminmax() if numbers.numel() else (0, 0)
            if low < 0 or high >= count:
                raise ValueError(
                    f"pairs.{name}: expected numbers from 0 to {count - 1}, "
                    f"got numbers from {low} to {high}"
                )
