"""A small model that continues a text character by character: chapter 5 trains it with and without the mask."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from .checks import check_at_least, check_divisible, check_positive, check_tensor
from .schedule import one_cycle
from .transformer_block import TransformerBlock


def python_help_text() -> str:
    """Return the pages that Python's ``help("topics")`` lists, as one text of about 370,000 characters.

    Every Python carries it. It differs a little between versions; paragraphs that occur again and letters outside
    ASCII are left out.
    """
    from pydoc_data.topics import topics

    pages = "\n\n".join(topics[name] for name in sorted(topics))
    text = "\n\n".join(dict.fromkeys(pages.split("\n\n")))
    return text.encode("ascii", "ignore").decode()


class CharacterModel(nn.Module):
    """Score every character as the next one, from blocks of attention.

    Parameters
    ----------
    num_characters : int
        Size of the vocabulary.
    context : int
        The most characters that it can read at once.
    d_model, num_heads, num_blocks : int
        Width, heads and number of blocks.
    is_causal : bool
        Whether positions are hidden from those before them. Can be changed later: it is no parameter.

    Raises
    ------
    ValueError
        If a number is less than 1 or ``num_heads`` does not divide ``d_model``.
    """

    def __init__(
        self,
        num_characters: int,
        context: int,
        *,
        d_model: int = 64,
        num_heads: int = 4,
        num_blocks: int = 2,
        is_causal: bool = True,
    ) -> None:
        super().__init__()
        check_at_least("d_model", d_model)
        check_divisible(d_model, num_heads)
        check_at_least("num_characters", num_characters)
        check_at_least("context", context)
        check_at_least("num_blocks", num_blocks)
        self.context, self.is_causal = context, is_causal
        sizes = (d_model, num_heads, 4 * d_model)
        blocks = [TransformerBlock(*sizes) for _ in range(num_blocks)]
        self.characters = nn.Embedding(num_characters, d_model)
        self.positions = nn.Embedding(context, d_model)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(d_model)
        self.scores = nn.Linear(d_model, num_characters)
        nn.init.normal_(self.characters.weight, std=0.3)
        nn.init.normal_(self.positions.weight, std=0.1)

    def forward(
        self, text: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch seq characters"]:
        """Return the scores of all characters as the next, at every position.

        Parameters
        ----------
        text : Tensor
            ``(batch, seq)``, numbers of characters; ``seq`` is at most ``context``.

        Returns
        -------
        Tensor
            ``(batch, seq, num_characters)``, logits.

        Raises
        ------
        ValueError
            If the text is longer than ``context``.
        """
        check_tensor("text", text, 2, "shape (batch, seq)")
        if text.dim() != 2:
            raise ValueError(
                f"text: expected shape (batch, seq), got {tuple(text.shape)}"
            )
        if text.shape[-1] > self.context:
            raise ValueError(
                f"text: expected at most {self.context} characters, "
                f"got {text.shape[-1]}"
            )
        x = self.characters(text) + self.positions.weight[: text.shape[-1]]
        for block in self.blocks:
            x = block(x, is_causal=self.is_causal)
        return self.scores(self.norm(x))


def random_windows(
    text: Int[Tensor, "characters"], count: int, length: int, generator: torch.Generator
) -> Int[Tensor, "count length"]:
    """Cut ``count`` pieces of ``length`` characters out of a text, at random places.

    Raises
    ------
    ValueError
        If the text is shorter than ``length``.
    """
    if text.dim() != 1:
        raise ValueError(f"text: expected one axis, got shape {tuple(text.shape)}")
    check_at_least("count", count)
    check_at_least("length", length)
    if len(text) < length:
        raise ValueError(
            f"text: expected at least {length} characters, got {len(text)}"
        )
    starts = torch.randint(len(text) - length + 1, (count, 1), generator=generator)
    return text[starts + torch.arange(length)]


def next_character_loss(
    model: CharacterModel, windows: Int[Tensor, "batch length"]
) -> Float[Tensor, ""]:
    """Return the mean cross-entropy of each next character, in nats.

    Parameters
    ----------
    windows : Tensor
        ``(batch, length)``: all but the last character are read, all but the first are to be predicted.
    """
    check_at_least("length of windows", windows.shape[-1], 2)
    read, wanted = windows[:, :-1], windows[:, 1:]
    return F.cross_entropy(model(read).flatten(0, 1), wanted.flatten())


def train(
    model: CharacterModel,
    text: Int[Tensor, "characters"],
    *,
    steps: int = 700,
    batch: int = 24,
    learning_rate: float = 8e-3,
    seed: int = 0,
) -> list[float]:
    """Train on random windows of a text, and return the loss of every step.

    The optimiser is AdamW; losses are in nats a character.
    """
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = one_cycle(optimizer, learning_rate, steps)
    generator = torch.Generator().manual_seed(seed)
    device = model.positions.weight.device
    losses = []
    for _ in range(steps):
        windows = random_windows(text, batch, model.context + 1, generator)
        loss = next_character_loss(model, windows.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def continue_text(
    model: CharacterModel,
    text: Int[Tensor, "seq"],
    length: int,
    *,
    temperature: float = 1.0,
    seed: int = 0,
) -> Int[Tensor, "longer"]:
    """Write ``length`` more characters after ``text``.

    The model reads the last ``context`` characters, and its scores at the last position, divided by the
    temperature, decide how likely each next character is: below 1 the likely ones become likelier.
    """
    check_positive("temperature", temperature)
    if text.dim() != 1 or len(text) < 1:
        raise ValueError(
            f"text: expected shape (seq,), not empty, got {tuple(text.shape)}"
        )
    generator = torch.Generator().manual_seed(seed)
    device = model.positions.weight.device
    for _ in range(length):
        scores = model(text[None, -model.context :].to(device))[0, -1]
        shares = (scores / temperature).softmax(dim=-1).cpu()
        text = torch.cat([text, torch.multinomial(shares, 1, generator=generator)])
    return text
