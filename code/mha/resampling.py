"""Two small statistics that do not trust a single number: how sure a mean is, and whether two orders agree."""

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from .checks import check_at_least


def interval(
    values: Shaped[Tensor, "cases"],
    blocks: Int[Tensor, "cases"],
    *,
    draws: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the bounds between which the mean lies in 95 of 100 draws of the blocks, with replacement.

    Whole blocks are drawn, because the cases of one sentence, or of a minimal pair, are not independent.

    Parameters
    ----------
    values : Tensor
        ``(cases,)``, numbers or truth values.
    blocks : Tensor
        ``(cases,)``, which block each case belongs to.
    draws, seed : int
        How often, and from where the random numbers start.

    Raises
    ------
    ValueError
        If there is no case, or not one block a case.

    Source
    ------
    Efron and Tibshirani 1993, "An Introduction to the Bootstrap" (percentile intervals).
    """
    check_at_least("draws", draws)
    if values.dim() != 1 or values.shape != blocks.shape or not len(values):
        raise ValueError(
            f"blocks: expected one for each of at least one value, got {tuple(blocks.shape)} "
            f"for values {tuple(values.shape)}"
        )
    _, place = blocks.unique(return_inverse=True)
    sizes = place.bincount()
    sums = torch.zeros(len(sizes)).index_add_(0, place, values.float())
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(sizes), (draws, len(sizes)), generator=generator)
    means = sums[drawn].sum(dim=1) / sizes[drawn].sum(dim=1)
    low, high = means.quantile(torch.tensor([0.025, 0.975])).tolist()
    return low, high


def rank_correlation(x: Float[Tensor, "*shape"], y: Float[Tensor, "*shape"]) -> float:
    """Return Spearman's correlation: 1 where both put everything into the same order, -1 into the opposite one.

    Equal values share the mean of their ranks.

    Raises
    ------
    ValueError
        If the shapes differ, or one has fewer than two different values.
    """
    if x.shape != y.shape:
        raise ValueError(
            f"y: expected x's shape {tuple(x.shape)}, got {tuple(y.shape)}"
        )
    for name, values in (("x", x), ("y", y)):
        check_at_least(f"different values of {name}", len(values.unique()), 2)
    return torch.corrcoef(torch.stack([_ranks(x), _ranks(y)]))[0, 1].item()


def _ranks(values: Tensor) -> Tensor:
    _, place, counts = values.flatten().unique(return_inverse=True, return_counts=True)
    ends = counts.cumsum(dim=0)
    return (ends - (counts - 1) / 2)[place]
