"""The learning rate of the book's small trainings: it rises for a tenth of the steps and falls from then on."""

from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from .checks import check_at_least, check_positive


def one_cycle(optimizer: Optimizer, learning_rate: float, steps: int) -> OneCycleLR:
    """Return the schedule; its ``step()`` is to be called after each of the optimiser's.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Whose learning rates are set.
    learning_rate : float
        The highest.
    steps : int
        How many there will be.

    Raises
    ------
    TypeError
        If a number is of another type.
    ValueError
        If ``steps`` is less than 1, or the learning rate is not above 0 and finite.

    Source
    ------
    Smith and Topin 2018, "Super-Convergence: Very Fast Training of Neural Networks Using Large Learning Rates".
    """
    check_positive("learning_rate", learning_rate)
    check_at_least("steps", steps)
    # PyTorch divides by the steps of the rise less one, which for ten steps would be 0.
    rise = 0.2 if steps == 10 else 0.1
    return OneCycleLR(optimizer, learning_rate, total_steps=steps, pct_start=rise)
