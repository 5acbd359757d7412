"""Three jobs for a layer that reads a sequence: to recall, to look at neighbours, and to keep a state."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from .checks import (
    check_at_least,
    check_instance,
    check_tensor,
    check_whole_numbers,
)
from .schedule import one_cycle

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
    _check_drawing(count, length, 2 * KEYS, generator)
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


def _check_drawing(
    count: int, length: int, least: int, generator: torch.Generator
) -> None:
    check_at_least("count", count, 0)
    check_at_least("length", length, least)
    check_instance("generator", generator, torch.Generator)


def _orders(count: int, length: int, generator: torch.Generator) -> Tensor:
    """Return ``count`` random orders of 0 … length - 1."""
    return torch.rand(count, length, generator=generator).argsort(dim=-1)


def draw_neighbours(count: int, length: int, generator: torch.Generator) -> Questions:
    """Say the sum of a token and the two before it, modulo 3, from the third token on."""
    _check_drawing(count, length, 3, generator)
    numbers = torch.randint(3, (count, length), generator=generator)
    sums = numbers.unfold(1, 3, 1).sum(dim=-1) % 3
    return Questions(numbers[..., None], F.pad(sums, (2, 0), value=NOTHING))


def draw_parity(count: int, length: int, generator: torch.Generator) -> Questions:
    """Say at every token whether the number of ones so far is odd."""
    _check_drawing(count, length, 1, generator)
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

    Raises
    ------
    TypeError
        If ``job`` is no job, or ``layer`` no module with an int ``d_model``.
    ValueError
        If ``d_model`` is less than 1.
    """

    def __init__(self, job: Job, layer: nn.Module) -> None:
        super().__init__()
        check_instance("job", job, Job)
        check_instance("layer", layer, nn.Module)
        check_at_least("layer.d_model", getattr(layer, "d_model", None))
        self.tables = nn.ModuleList(
            nn.Embedding(numbers, layer.d_model) for numbers in job.fields
        )
        self.layer = layer
        self.scores = nn.Linear(layer.d_model, job.num_answers)

    @property
    def sizes(self) -> tuple[tuple[int, ...], int]:
        """How many numbers there are in each field of its job, and among the answers."""
        fields = tuple(table.num_embeddings for table in self.tables)
        return fields, self.scores.out_features

    def forward(
        self, tokens: Int[Tensor, "batch seq fields"]
    ) -> Float[Tensor, "batch seq answers"]:
        """Return the scores of all answers at every token.

        Raises
        ------
        TypeError
            If the tokens are not whole numbers.
        ValueError
            If they have another shape, or a number that is not in the job.
        """
        layout = f"(batch, seq, {len(self.tables)})"
        check_whole_numbers("tokens", tokens, layout, axes=3)
        if tokens.shape[-1] != len(self.tables):
            raise ValueError(
                f"tokens: expected shape {layout}, got {tuple(tokens.shape)}"
            )
        vectors = []
        for number, table in enumerate(self.tables):
            field, many = tokens[..., number], table.num_embeddings
            outside = field[(field < 0) | (field >= many)]
            if len(outside):
                raise ValueError(
                    f"tokens[..., {number}]: expected numbers from 0 to {many - 1}, got {outside[0]}"
                )
            vectors.append(table(field))
        return self.scores(self.layer(torch.stack(vectors).sum(dim=0)))


@torch.inference_mode(False)
@torch.enable_grad()
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

    It works where gradients are off too, and leaves PyTorch's generator of random numbers as it was.

    Parameters
    ----------
    job : Job
        One of ``JOBS``.
    make_layer : callable
        Returns the layer; its first numbers, its dropout and the sequences follow from ``seed``, whatever was drawn
        before.
    length, steps, batch : int
        Of the sequences, how many steps, and how many sequences a step.
    learning_rate : float
        Of Adam at its highest; it rises for a tenth of the steps and falls from then on.

    Returns
    -------
    Reader
        The trained reader, in eval mode.

    Raises
    ------
    TypeError
        If ``job`` is no job, the layer is no module with an int ``d_model``, or a number is of another type.
    ValueError
        If a number is too small, or the learning rate is not finite.
    """
    check_instance("job", job, Job)
    check_at_least("batch", batch)
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed seeds GPUs too
        reader = Reader(job, make_layer()).train()
        optimizer = torch.optim.Adam(reader.parameters(), fused=True)
        schedule = one_cycle(optimizer, learning_rate, steps)
        for _ in range(steps):
            tokens, answers = job.draw(batch, length, generator)
            loss = F.cross_entropy(reader(tokens).flatten(0, 1), answers.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return reader.eval()


@torch.no_grad()
def accuracy(
    reader: nn.Module, job: Job, length: int, *, count: int = 300, seed: int = 10_000
) -> float:
    """Return the share of right answers on ``count`` new sequences, which follow from ``seed``.

    Parameters
    ----------
    reader : nn.Module
        From tokens to scores, as a :class:`Reader`. It reads in eval mode, and then is in the mode that it was in.
    job : Job
        One with the reader's numbers of fields and answers.
    length, count : int
        Of the sequences, and how many.

    Raises
    ------
    TypeError
        If ``job`` is no job, or ``reader`` no module.
    ValueError
        If there are no sequences, or the job does not fit the reader.
    """
    check_instance("reader", reader, nn.Module)
    check_instance("job", job, Job)
    check_at_least("count", count)
    if isinstance(reader, Reader) and reader.sizes != (job.fields, job.num_answers):
        raise ValueError(
            f"job: expected one with the reader's fields and answers {reader.sizes}, "
            f"got {(job.fields, job.num_answers)}"
        )
    generator = torch.Generator().manual_seed(seed)
    tokens, answers = job.draw(count, length, generator)
    modes = [(part, part.training) for part in reader.modules()]
    try:
        scores = reader.eval()(tokens)
    finally:
        for part, mode in modes:
            part.training = mode
    check_tensor("output of reader", scores, 3, "shape (batch, seq, answers)")
    right = scores.argmax(dim=-1) == answers
    return right[answers != NOTHING].float().mean().item()
