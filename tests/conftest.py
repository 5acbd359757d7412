"""What every test runs under: one thread, no window, the same examples on every run."""

import os
from pathlib import Path

# Before torch is imported: two workers with a thread pool each would take each other's cores, and sums of
# many threads come out in another order on another machine. Kernels of notebooks inherit it.
os.environ["OMP_NUM_THREADS"] = "1"

import matplotlib
import pytest
from hypothesis import settings

# In this process only. MPLBACKEND would reach the kernels of the notebooks, which then showed no pictures.
matplotlib.use("Agg")

# The same examples on every run; no deadline, because the first call of a function in torch is a slow one.
settings.register_profile("book", derandomize=True, deadline=None)
settings.load_profile("book")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the top folder of the repository."""
    return ROOT


def notebooks() -> list[Path]:
    """Return the notebooks of the book, in order."""
    return sorted((ROOT / "chapters").glob("*.ipynb"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with a `notebook` argument once for each notebook, under its name."""
    if "notebook" in metafunc.fixturenames:
        metafunc.parametrize(
            "notebook", notebooks(), ids=[path.stem for path in notebooks()]
        )


@pytest.fixture(scope="session")
def trained():
    """Return the trained model, from the package of ``requirements-model.txt``; nothing may change it."""
    from mha import minilm

    return minilm.load("package")


@pytest.fixture
def same_random_numbers():
    """Fail where a test's function draws from, or seeds, the generator that the reader shares."""
    import torch

    torch.manual_seed(11)
    yield
    drawn = torch.rand(3)
    torch.manual_seed(11)
    assert torch.equal(drawn, torch.rand(3))
