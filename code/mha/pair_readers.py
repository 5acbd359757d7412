"""Train many readers of the pair task at once, and measure what their heads do.

The readers' parameters are stacked, with ``seeds`` as the first axis. Nothing ties one seed to another.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from .checks import check_at_least, check_index, check_int, listed
from .head_splitting import combine_heads, split_heads
from .pair_task import PairReader, Pairs
from .schedule import one_cycle
from .single_head import scaled_dot_product_attention


class PairReaders(nn.Module):
    """Several readers that differ in their first random numbers, computed at once.

    Parameters
    ----------
    seeds : sequence of int
        One reader for each: what ``torch.manual_seed(seed)`` and ``PairReader(**options)`` give.
    **options
        Those of :class:`PairReader`.

    Raises
    ------
    TypeError
        If ``seeds`` is no list of ints.
    ValueError
        If there is no seed, or :class:`PairReader` does not take the options.
    """

    def __init__(self, seeds: Sequence[int] = range(8), **options) -> None:
        super().__init__()
        seeds, readers = listed("seeds", seeds, "ints"), []
        check_at_least("number of seeds", len(seeds))
        for seed in seeds:
            check_int("seed in seeds", seed)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                readers.append(PairReader(**options))
        self.num_seeds, self.options = len(readers), options
        self.num_heads, self.num_symbols = readers[0].num_heads, readers[0].num_symbols
        self.blind_keys = readers[0].blind_keys
        self.check = readers[0].check
        for name, _ in readers[0].named_parameters():
            numbers = torch.stack([reader.get_parameter(name) for reader in readers])
            self.register_parameter(name.replace(".", "_"), nn.Parameter(numbers))

    def alone(self, index: int) -> PairReader:
        """Return a copy of one reader, as the module that holds a :class:`MultiHeadAttention`.

        Raises
        ------
        TypeError
            If ``index`` is not an int.
        ValueError
            If there is no such reader.
        """
        check_index("index", index, self.num_seeds)
        reader = PairReader(**self.options)
        with torch.no_grad():
            for name, numbers in reader.named_parameters():
                numbers.copy_(self.get_parameter(name.replace(".", "_"))[index])
        return reader

    def forward(
        self, pairs: Pairs
    ) -> tuple[
        Float[Tensor, "seeds batch 2 symbols"], Float[Tensor, "seeds batch heads seq"]
    ]:
        """Return what each reader alone returns, along a first axis ``seeds``; errors are those of ``check``."""
        self.check(pairs)
        # There are few different tokens and questions: each is projected once, and then looked up.
        labels = self.labels_weight[:, :, None]  # (seeds, labels, 1, d_model)
        symbols = self.symbols_weight.unflatten(1, (-1, self.num_symbols))
        tokens = labels + symbols  # (seeds, labels, symbols, d_model)
        questions = self.first_weight[:, :, None] + self.second_weight[:, None]
        token = pairs.labels * self.num_symbols + pairs.symbols
        question = pairs.asked[:, :1] * questions.shape[2] + pairs.asked[:, 1:]
        query = self._look_up("attention_W_q", questions, question)
        if self.blind_keys:
            key = self._look_up("attention_W_k", labels, pairs.labels)
        else:
            key = self._look_up("attention_W_k", tokens, token)
        value = self._look_up("attention_W_v", tokens, token)
        heads = [split_heads(x, self.num_heads) for x in (query, key, value)]
        # (seeds, batch, heads, length, d_k) each
        output, weights = scaled_dot_product_attention(*heads)
        output = self._project("attention_W_o", combine_heads(output)[:, :, 0])
        scores = self._project("scores", output).unflatten(-1, (2, self.num_symbols))
        return scores, weights[..., 0, :]

    def _look_up(self, name: str, table: Tensor, rows: Tensor) -> Tensor:
        """Project ``(seeds, any, any, d_model)``, and return its ``rows``: ``(seeds, *rows, width)``."""
        projected = self._project(name, table.flatten(1, 2))
        return projected[:, rows.flatten()].unflatten(1, rows.shape)

    def _project(self, name: str, x: Tensor) -> Tensor:
        """Apply each seed's own linear layer: ``(seeds, any, width)``."""
        weight, bias = (getattr(self, f"{name}_{part}") for part in ("weight", "bias"))
        return torch.baddbmm(bias[:, None], x, weight.mT)


def train(
    readers: PairReaders,
    draw: Callable[..., Pairs],
    *,
    seq: int = 6,
    steps: int = 600,
    batch: int = 64,
    learning_rate: float = 0.02,
    seed: int = 0,
) -> Float[Tensor, "steps seeds"]:
    """Train all readers on the same sequences, and return each one's loss at every step.

    Parameters
    ----------
    readers : PairReaders
        Changed in place.
    draw : callable
        :func:`marked_pairs` or :func:`named_pairs`.
    seq, steps, batch, seed : int
        Length and number of the sequences of a step, number of steps, and the seed of the sequences.
    learning_rate : float
        Of Adam at its highest; it rises for a tenth of the steps and falls from then on.

    Returns
    -------
    Tensor
        ``(steps, seeds)``, the mean cross-entropy of a symbol, in nats.
    """
    optimizer = torch.optim.Adam(readers.parameters(), fused=True)
    schedule = one_cycle(optimizer, learning_rate, steps)
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        pairs = draw(batch, readers.num_symbols, seq, generator)
        scores, _ = readers(pairs)  # (seeds, batch, 2, symbols)
        wanted = pairs.answer.expand(scores.shape[:-1])
        loss = F.cross_entropy(
            scores.flatten(0, -2), wanted.flatten(), reduction="none"
        )
        loss = loss.view(readers.num_seeds, -1).mean(dim=1)
        optimizer.zero_grad()
        loss.sum().backward()  # each seed's gradient is that of its own loss
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    return torch.stack(losses)


@torch.no_grad()
def right(readers: PairReaders, pairs: Pairs) -> Bool[Tensor, "seeds batch 2"]:
    """Return whether the best score is the symbol's that stands there, for each place."""
    return readers(pairs)[0].argmax(dim=-1) == pairs.answer


def accuracy(readers: PairReaders, pairs: Pairs) -> Float[Tensor, "seeds"]:
    """Return the share of sequences whose two symbols are both right, for each seed."""
    return right(readers, pairs).all(dim=-1).float().mean(dim=1)


@torch.no_grad()
def place_shares(readers: PairReaders, pairs: Pairs) -> Float[Tensor, "seeds heads"]:
    """Return which of the two places a head looks at: 1 the first alone, 0 the second alone.

    It is the weight on the first place, divided by that on both, in the mean over the sequences.
    """
    _, weights = readers(pairs)  # (seeds, batch, heads, seq)
    places = pairs.places[:, None].expand(*weights.shape[:-1], 2)
    on_places = weights.gather(-1, places)
    return (on_places[..., 0] / on_places.sum(dim=-1)).mean(dim=1)


def specialisation(shares: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """Return how one-sided shares are: 1 where a head looks at one place alone, 0 where at both alike."""
    return (2 * shares - 1).abs()


@torch.no_grad()
def right_without(
    readers: PairReaders, head: int, pairs: Pairs
) -> Bool[Tensor, "seeds batch 2"]:
    """Return what :func:`right` does when a head adds nothing: its columns of ``W_o`` are 0 for the moment.

    Raises
    ------
    TypeError
        If ``head`` is not an int.
    ValueError
        If there is no such head.
    """
    check_index("head", head, readers.num_heads)
    weight = readers.attention_W_o_weight  # (seeds, d_model, heads * d_k)
    before = weight.clone()
    columns = weight.unflatten(-1, (readers.num_heads, -1))
    columns[:, :, head] = 0.0
    try:
        return right(readers, pairs)
    finally:
        weight.copy_(before)


def squares(
    readers: PairReaders, every: Pairs
) -> Bool[Tensor, "seeds symbols symbols"]:
    """Return for which two symbols p and q all of (p, p), (p, q), (q, p) and (q, q) are right.

    Parameters
    ----------
    every : Pairs
        What :func:`every_pair` returns.
    """
    good = right(readers, every).all(dim=-1)
    good = good.unflatten(1, (readers.num_symbols, -1))  # (seeds, p, q)
    twice = good.diagonal(dim1=1, dim2=2)
    return good & good.mT & twice[:, :, None] & twice[:, None]


@torch.no_grad()
def symbol_scores(readers: PairReaders) -> Float[Tensor, "seeds heads symbols"]:
    """Return what a symbol adds to a token's score, with marked places: ``query · W_k symbol / √d_k``.

    Raises
    ------
    ValueError
        If symbols have several vectors each, or keys do not see them.
    """
    if readers.options.get("table_per_label") or readers.blind_keys:
        raise ValueError(
            "readers: expected keys that see one vector for each symbol, "
            f"got options {readers.options}"
        )
    asked = readers.first_weight[:, 1:2] + readers.second_weight[:, 2:3]
    query = readers._project("attention_W_q", asked)
    key = readers.symbols_weight @ readers.attention_W_k_weight.mT
    query, key = (split_heads(x, readers.num_heads) for x in (query, key))
    return (key @ query.mT)[..., 0] / key.shape[-1] ** 0.5
