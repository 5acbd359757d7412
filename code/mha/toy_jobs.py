"""Three jobs for a layer that reads a sequence: to recall, to look at neighbours, and to keep a state."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from .checks import check_at_least

NOTHING = -100  # what cross_entropy leaves out
KEYS = VALUES = 8


class Questions(NamedTuple):
    """Sequences, each token made of one number or more, and what is to be said at each."""

    tokens: Int[Tensor, "batch seq fields"]
    answers: Int[Tensor, "batch seq"]  # NOTHING where nothing is asked


class Job(NamedTuple):
    """What to draw, and how many numbers there are in each field and among the answers."""

    draw: Callable[[int, int, torch.Generator], Questions]
    fields: tuple[int, ...]
    num_answers: int


def draw_recall(count: int, length: int, generator: torch.Generator) -> Questions:
    """Eight tokens with a key and a value each; later each key comes alone, once, and its value is to be said.

    The keys come in random order, at random places; in between are empty tokens. ``length`` is 16 or more.
    """
    check_at_least("length", length, 2 * KEYS)
    told = _orders(count, KEYS, generator)
    values = torch.randint(VALUES, (count, KEYS), generator=generator)
    places = _orders(count, length - KEYS, generator)[:, :KEYS] + KEYS
    asked = _orders(count, KEYS, generator)  # which of the told pairs
    keys = torch.full((count, length), KEYS)
    keys[:, :KEYS] = told
    keys.scatter_(1, places, told.gather(1, asked))
    shown = torch.full((count, length), VALUES)
    shown[:, :KEYS] = values
    answers = torch.full((count, length), NOTHING)
    answers.scatter_(1, places, values.gather(1, asked))
    return Questions(torch.stack([keys, shown], dim=-1), answers)


def _orders(count: int, length: int, generator: torch.Generator) -> Tensor:
    """Return ``count`` random orders of 0 … length - 1."""
    return torch.rand(count, length, generator=generator).argsort(dim=-1)


def draw_neighbours(count: int, length: int, generator: torch.Generator) -> Questions:
    """Say the sum of a token and the two before it, modulo 3, from the third token on."""
    check_at_least("length", length, 3)
    numbers = torch.randint(3, (count, length), generator=generator)
    sums = numbers.unfold(1, 3, 1).sum(dim=-1) % 3
    return Questions(numbers[..., None], F.pad(sums, (2, 0), value=NOTHING))


def draw_parity(count: int, length: int, generator: torch.Generator) -> Questions:
    """Say at every token whether the number of ones so far is odd."""
    check_at_least("length", length)
    bits = torch.randint(2, (count, length), generator=generator)
    return Questions(bits[..., None], bits.cumsum(dim=1) % 2)


JOBS = {
    "recall": Job(draw_recall, (KEYS + 1, VALUES + 1), VALUES),
    "neighbours": Job(draw_neighbours, (3,), 3),
    "parity": Job(draw_parity, (2,), 2),
}


class Reader(nn.Module):
    """A layer between tables for the tokens and a linear layer that scores the answers.

    Parameters
    ----------
    job : Job
        Says how large the tables are.
    layer : nn.Module
        From ``(batch, seq, d_model)`` to the same shape, with its width in ``d_model``.
    """

    def __init__(self, job: Job, layer: nn.Module) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.Embedding(numbers, layer.d_model) for numbers in job.fields
        )
        self.layer = layer
        self.scores = nn.Linear(layer.d_model, job.num_answers)

    def forward(
        self, tokens: Int[Tensor, "batch seq fields"]
    ) -> Float[Tensor, "batch seq answers"]:
        """Return the scores of all answers at every token."""
        fields = tokens.unbind(dim=-1)
        vectors = [
            table(field) for table, field in zip(self.tables, fields, strict=True)
        ]
        return self.scores(self.layer(torch.stack(vectors).sum(dim=0)))


def train(
    job: Job,
    make_layer: Callable[[], nn.Module],
    *,
    length: int = 20,
    steps: int = 120,
    batch: int = 24,
    learning_rate: float = 0.015,
    seed: int = 0,
) -> Reader:
    """Make a reader and train it on new sequences at every step.

    Parameters
    ----------
    job : Job
        One of ``JOBS``.
    make_layer : callable
        Returns the layer; its first numbers follow from ``seed``, and so do the sequences.
    length, steps, batch : int
        Of the sequences, how many steps, and how many sequences a step.
    learning_rate : float
        Of Adam at its highest; it rises for a tenth of the steps and falls from then on.

    Returns
    -------
    Reader
        The trained reader.
    """
    check_at_least("steps", steps)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        reader = Reader(job, make_layer())
    optimizer = torch.optim.Adam(reader.parameters(), fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, learning_rate, total_steps=steps, pct_start=0.1
    )
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        tokens, answers = job.draw(batch, length, generator)
        loss = F.cross_entropy(reader(tokens).flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return reader


@torch.no_grad()
def accuracy(
    reader: nn.Module, job: Job, length: int, *, count: int = 300, seed: int = 10_000
) -> float:
    """Return the share of right answers on ``count`` new sequences."""
    generator = torch.Generator().manual_seed(seed)
    tokens, answers = job.draw(count, length, generator)
    right = reader(tokens).argmax(dim=-1) == answers
    return right[answers != NOTHING].float().mean().item()
