"""Measurements on which claims of the chapters and their pictures rest, each written once."""

import functools
import math

import torch
from torch import Tensor

from .sentence import KITTEN_TOKENS
from .single_head import scaled_dot_product_attention

KEY_LENGTH = 3.0  # length of a key that a relation points to
QUERY_LENGTH = 2.4  # an aligned key scores 2.4 · 3 / √2 = 5.09, the small ones about 0


def plane_keys(angles: dict[str, float]) -> Tensor:
    """Return a key in the plane for each token of the sentence: ``(13, 2)``.

    Tokens in ``angles`` (in degrees) get a long key in that direction; all others lie near the middle.
    """
    keys = torch.zeros(len(KITTEN_TOKENS), 2, dtype=torch.float64)
    for position, token in enumerate(KITTEN_TOKENS):
        length = KEY_LENGTH if token in angles else 0.35
        angle = math.radians(angles.get(token, 47.0 * position))
        keys[position] = length * torch.tensor(
            [math.cos(angle), math.sin(angle)], dtype=torch.float64
        )
    return keys


def weights_of_it(query: Tensor, keys: Tensor) -> Tensor:
    """Return the 13 weights that one query in the plane gives to the keys."""
    return scaled_dot_product_attention(query[None], keys, keys)[1][0]


UP = torch.tensor([0.0, QUERY_LENGTH], dtype=torch.float64)
APART = {"kitten": 90.0, "was": 210.0, "tired": 330.0}
TOGETHER = {"kitten": 90.0, "was": 90.0, "tired": 90.0}

WIDTHS = (2, 4, 8, 16, 32, 64, 128, 256)
KEYS = 12
QUERIES = 400  # what the means of the pictures are taken over


def random_weights(d_k: int, scaled: bool, queries: int = QUERIES) -> Tensor:
    """Return the weights of random queries over 12 keys each: ``(queries, 12)``.

    The numbers of all widths come from one draw, cut to width, so that turning ``d_k`` changes nothing else.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (queries, KEYS + 1, max(WIDTHS))
    vectors = torch.randn(shape, generator=generator, dtype=torch.float64)
    query, key = vectors[:, :1, :d_k], vectors[:, 1:, :d_k]
    scale = None if scaled else 1.0
    return scaled_dot_product_attention(query, key, key, scale=scale)[1][:, 0]


def relative_entropy(weights: Tensor) -> Tensor:
    """Return each row's entropy, divided by that of the uniform row."""
    return torch.special.entr(weights).sum(dim=-1) / math.log(weights.shape[-1])


def mean_sorted_weights(d_k: int, scaled: bool) -> Tensor:
    """Return the mean over 400 queries of the largest weight, the second largest, and so on: ``(12,)``."""
    return random_weights(d_k, scaled).sort(dim=-1, descending=True).values.mean(dim=0)


@functools.cache  # a curve asks for all widths again each time a control moves
def mean_entropy(d_k: int, scaled: bool) -> float:
    """Return the mean relative entropy of 400 queries."""
    return relative_entropy(random_weights(d_k, scaled)).mean().item()


def nearest_neighbours(points: Tensor) -> list[int]:
    """Return the index of each point's nearest neighbour: ``(tokens, width)``."""
    distances = torch.cdist(points, points)
    return distances.fill_diagonal_(torch.inf).argmin(dim=1).tolist()
