"""Timing on a GPU or a CPU without fooling oneself: what chapter 6 builds."""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from .checks import check_at_least
from .profiling import device_of


@dataclass(frozen=True)
class Timing:
    """How long one call takes: every sample, in seconds.

    Parameters
    ----------
    samples : tuple of float
        Seconds, one a call, warm-up left out.
    warm_up : int
        How many calls came before, and are not among the samples.
    """

    samples: tuple[float, ...]
    warm_up: int

    @property
    def median(self) -> float:
        """Half of the calls were quicker, half slower: a single slow one does not count."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """Distance between the quarters: the middle half of the samples lies within it."""
        if len(self.samples) < 2:
            return 0.0
        first, _, third = statistics.quantiles(self.samples, n=4, method="inclusive")
        return third - first


@runtime_checkable
class Clock(Protocol):
    """What measures one call, in seconds."""

    def start(self) -> None:
        """Wait until the device has nothing else to do, and begin."""

    def stop(self) -> float:
        """Return the seconds since ``start``, when all that was asked for since is done."""


class CpuClock:
    """A CPU has done its work when the call returns."""

    def start(self) -> None:
        """Begin."""
        self.begin = time.perf_counter()

    def stop(self) -> float:
        """Return the seconds since ``start``."""
        return time.perf_counter() - self.begin


class CudaClock:
    """Events in the GPU's queue: it notes the time when it gets to them."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.current_stream(device)
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def start(self) -> None:
        """Let the GPU finish what was asked for before, and begin."""
        self.stream.synchronize()
        self.events[0].record(self.stream)

    def stop(self) -> float:
        """Wait for the second event, and return the seconds between the two."""
        self.events[1].record(self.stream)
        self.events[1].synchronize()
        return self.events[0].elapsed_time(self.events[1]) / 1000  # from ms


class MpsClock(CpuClock):
    """Wait for the GPU on both sides, or only the asking is timed."""

    def start(self) -> None:
        """Let the GPU finish what was asked for before, and begin."""
        torch.mps.synchronize()
        super().start()

    def stop(self) -> float:
        """Let the GPU finish, and return the seconds since ``start``."""
        torch.mps.synchronize()
        return super().stop()


def clock_for(device: torch.device | str) -> Clock:
    """Return the clock that suits a device.

    Parameters
    ----------
    device : torch.device or str
        ``"cpu"``, ``"cuda"`` (with or without a number) or ``"mps"``.

    Raises
    ------
    ValueError
        If this machine does not have the device, or no clock is known for it.
    """
    try:
        device = torch.device(device)
    except RuntimeError as error:
        raise ValueError(
            f"device: expected cpu, cuda or mps, got {device!r}"
        ) from error
    here = ["cpu:0", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    here += ["mps:0"] if torch.backends.mps.is_available() else []
    if f"{device.type}:{device.index or 0}" not in here:
        raise ValueError(
            f"device: expected one that is here ({', '.join(here)}), got {device}"
        )
    if device.type == "cuda":
        return CudaClock(device)
    return MpsClock() if device.type == "mps" else CpuClock()


def default_device() -> torch.device:
    """Return a GPU if this machine has one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def compare(
    functions: Mapping[str, Callable[..., object]],
    *inputs: Tensor,
    repeats: int = 15,
    warm_up: int = 2,
    gradients: bool = False,
    same_values: bool = True,
    threads: int | None = None,
    clock: Clock | None = None,
) -> dict[str, Timing]:
    """Time several functions on the same inputs, call by call in turn.

    Before anything is timed, their results are compared: a wrong answer is fast. Taking turns lets whatever slows
    the machine down slow down all of them; each order is followed by its reverse, and then another one begins.
    Threads, the grad mode and torch's random numbers are left as they were.

    Parameters
    ----------
    functions : mapping of str to callable
        What to time. Each is called with ``inputs`` and returns a tensor, or a tuple that begins with one.
    *inputs : Tensor
        On the device that is timed. At least one.
    repeats : int
        How many timed calls each gets.
    warm_up : int
        How many calls each makes before, for kernels that are chosen or compiled at first use. At least 1.
    gradients : bool
        Whether the calls record gradients.
    same_values : bool
        Whether all must return the same numbers, up to a thousandth of the largest one (a fiftieth in 16 bits).
        Functions that draw random numbers do not.
    threads : int, optional
        CPU threads while timing. Default: those that torch has now.
    clock : Clock, optional
        Default: the clock of the inputs' device.

    Returns
    -------
    dict of str to Timing
        In the order of ``functions``.

    Raises
    ------
    TypeError
        If an input is no tensor.
    ValueError
        If there is nothing to time, a number is too small, results differ, a function changes its inputs, or
        gradients are asked for in inference mode; the message names the function.
    """
    if not functions:
        raise ValueError("functions: expected at least one to time, got none")
    device = device_of(inputs)
    check_at_least("repeats", repeats)
    check_at_least("warm_up", warm_up)
    clock = clock_for(device) if clock is None else clock
    samples: dict[str, list[float]] = {name: [] for name in functions}
    with _settings(device, gradients, threads):
        expected = None
        for name, function in functions.items():
            with _unchanged(name, inputs):
                for _ in range(warm_up):
                    result = function(*inputs)
            if same_values:
                expected = _check_same(name, result, expected)
        turn = list(functions.items())
        for number in range(repeats):
            for name, function in turn:
                clock.start()
                function(*inputs)
                samples[name].append(clock.stop())
            turn.reverse()  # A B, then B A: who is late once is early once
            if number % 2:
                turn.append(turn.pop(0))  # somebody else begins
    return {name: Timing(tuple(taken), warm_up) for name, taken in samples.items()}


@contextlib.contextmanager
def _settings(
    device: torch.device, gradients: bool, threads: int | None
) -> Iterator[None]:
    """Set the grad mode and threads; put them, and the state of the random numbers, back afterwards."""
    if gradients and torch.is_inference_mode_enabled():
        raise ValueError("gradients: expected False in inference mode, got True")
    before = torch.get_num_threads()
    devices = [device] if device.type == "cuda" else []
    try:
        if threads is not None:
            check_at_least("threads", threads)
            torch.set_num_threads(threads)
        with torch.random.fork_rng(devices), torch.set_grad_enabled(gradients):
            yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _unchanged(name: str, inputs: Sequence[Tensor]) -> Iterator[None]:
    """Raise if inputs are written to: whoever comes next would compute something else."""
    # Tensors of inference mode do not count what is written.
    watched = [tensor for tensor in inputs if not tensor.is_inference()]
    before = [tensor._version for tensor in watched]
    yield
    if [tensor._version for tensor in watched] != before:
        raise ValueError(f"{name}: expected inputs to stay as they are, got a change")


def _check_same(name: str, result: object, expected: Tensor | None) -> Tensor:
    """Return what the first function gave, or raise if another one gives something else."""
    output = result[0] if isinstance(result, tuple) and result else result
    if not isinstance(output, Tensor):
        kind = type(output).__name__
        raise TypeError(f"{name}: expected a tensor as result, got {kind}")
    # A copy: the next function may write into the inputs.
    output = output.detach().clone()
    if expected is None:
        return output
    if output.shape != expected.shape:
        raise ValueError(
            f"{name}: expected the shape of the first function's result, "
            f"{tuple(expected.shape)}, got {tuple(output.shape)}"
        )
    if output.numel() == 0:
        return expected
    # Half types differ by their rounding; a wrong answer differs by far more.
    half = {torch.float16, torch.bfloat16} & {output.dtype, expected.dtype}
    wide = torch.complex128 if output.is_complex() else torch.float64
    # On the CPU: Apple's GPUs have no float64.
    found, wanted = (tensor.cpu().to(wide) for tensor in (output, expected))
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    if same.all():
        return expected
    error = (found - wanted).abs()[~same].max().item()
    size = torch.where(wanted.isfinite(), wanted.abs(), 0.0).max().item()
    if not error <= (0.02 if half else 1e-3) * max(size, 1e-6):
        raise ValueError(
            f"{name}: expected the first function's values, got some that differ by {error:.3g} "
            f"(the largest value is {size:.3g})"
        )
    return expected


if __name__ == "__main__":
    from mha.recordings import main

    main()
