"""Recorded timings, one file per device: ``python -m mha.timing --record`` writes one, chapter 6 draws them all.

A record is plain values, stored as JSON; ``tests/recording_schema.json`` says it exactly:

``device``, ``kind`` (cpu, cuda or mps), ``driver``, ``torch``, ``date``, ``threads``;
``peak``: what the device reached in the same run, ``flops_per_second`` of a large product for each dtype, and
``bytes_per_second`` of a large copy;
``runs``: dicts with ``series``, ``variant``, the sizes ``batch, length, d_model, heads``, ``dtype``, the seconds
``median`` and ``spread`` over ``samples`` calls, ``flops`` of the matrix products, ``bytes`` that operators read and
wrote, ``peak_bytes`` of extra memory, and the attention ``backend`` (null where it cannot be seen);
``skipped``: dicts with ``series``, ``variant`` and ``reason``.
"""

import argparse
import datetime
import functools
import itertools
import json
import os
import platform
import re
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from .fast_path import attend_without_weights
from .head_splitting import attention_cost, combine_heads, split_heads
from .multi_head import MultiHeadAttention
from .profiling import attention_backend, bytes_moved, peak_memory
from .single_head import causal_mask
from .timing import clock_for, compare, default_device
from .variants import batched_heads, loop_over_heads

FOLDER = Path(__file__).with_name("recorded")
D_MODEL, HEADS = 512, 8
SECONDS = 2.5  # about so long for each set of calls that is compared, ...
FEWEST, MOST = 7, 50  # ... but at least and at most so many samples

Call = Callable[[Tensor], Tensor]
Record = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """What fits a kind of device: a CPU gets less to do."""

    batch: int
    length: int
    head_lengths: tuple[int, ...]  # at which the number of heads is varied
    lengths: tuple[int, ...]
    square: int  # side of the product that measures the peak
    copied: int  # bytes of the copy
    table: float  # bytes of the largest query × key table that is tried


SIZES = {
    "cpu": Sizes(
        1, 2048, (128, 1024), (128, 256, 512, 1024, 2048, 4096, 8192), 2048, 2**28, 2e9
    ),
    "gpu": Sizes(
        8,
        2048,
        (128, 1024),
        (128, 256, 512, 1024, 2048, 4096, 8192, 16384),
        8192,
        2**31,
        5e9,
    ),
    # For tests: everything runs, nothing is worth reading.
    "tiny": Sizes(1, 16, (8,), (8, 16), 16, 2**10, 6e3),
}


@dataclass(frozen=True)
class Comparison:
    """Calls that are timed in turn on one input.

    ``length`` is the number of keys; ``flops`` are those of the matrix products, of each call where they differ;
    variants in ``unequal`` compute other values than the first.
    """

    series: str
    calls: dict[str, Call]
    x: Tensor
    length: int
    heads: int
    flops: int | dict[str, int] | None
    unequal: tuple[str, ...] = ()


def load_records(folder: Path | str = FOLDER) -> list[Record]:
    """Return all records of a folder: GPUs first, then in the order of their names.

    Raises
    ------
    ValueError
        If there is no such folder, or a file in it is no record; the message names it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"folder: expected one with records, got {str(folder)!r}")
    records = []
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            record["kind"], record["runs"]
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}: expected a record, got {error!r}") from error
        records.append(record)
    return sorted(records, key=lambda record: record["kind"] == "cpu")


def record_device(
    device: torch.device | str,
    *,
    sizes: Sizes | None = None,
    say: Callable[[str], None] = print,
) -> Record:
    """Time every series of chapter 6 on a device.

    Parameters
    ----------
    device : torch.device or str
        ``"cpu"``, ``"cuda"`` or ``"mps"``.
    sizes : Sizes, optional
        Default: those for a CPU or a GPU.
    say : callable
        Called with a line of text before each comparison, to show progress.

    Returns
    -------
    dict
        The record, as the module's docstring describes it.

    Raises
    ------
    ValueError
        If this machine does not have the device.
    """
    clock_for(device)  # raises if it is not here
    device = torch.device(device)
    if sizes is None:
        sizes = SIZES["cpu" if device.type == "cpu" else "gpu"]
    name, driver = _name_and_driver(device)
    record: Record = {
        "device": name,
        "kind": device.type,
        "driver": driver,
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
        "threads": torch.get_num_threads(),
        "peak": {},
        "runs": [],
        "skipped": [],
    }
    begin = time.perf_counter()

    def progress(what: str) -> None:
        say(f"{time.perf_counter() - begin:5.0f} s  {what}")

    progress(f"{name}: what it reaches at best")
    peaks = [_peak(device, sizes)]

    def skip(series: str, variant: str, reason: object) -> None:
        text = str(reason).strip() or type(reason).__name__
        first_line = text.splitlines()[0][:160]
        record["skipped"].append(
            {"series": series, "variant": variant, "reason": first_line}
        )

    for comparison in _comparisons(device, sizes, skip):
        heads = f", {comparison.heads} heads" if comparison.series == "heads" else ""
        progress(f"{comparison.series}, {comparison.length} tokens{heads}")
        try:
            record["runs"] += list(_time(comparison, skip))  # all of them, or none
        except Exception as error:  # the other comparisons are still worth having
            for variant in comparison.calls:
                skip(comparison.series, variant, error)
    # A machine is not equally fast all the time; a limit is what it reached at its best.
    progress("what it reaches at best, again")
    peaks.append(_peak(device, sizes))
    record["peak"] = {
        "flops_per_second": {
            dtype: max(peak["flops_per_second"][dtype] for peak in peaks)
            for dtype in peaks[0]["flops_per_second"]
        },
        "bytes_per_second": max(peak["bytes_per_second"] for peak in peaks),
    }
    progress("done")
    return record


def write_record(record: Record, folder: Path | str) -> Path:
    """Store a record under the name of its device, in place of an older one of the same, and return the path."""
    folder = Path(folder)
    threads = f" {record['threads']} threads" if record["kind"] == "cpu" else ""
    stem = re.sub(r"[^a-z0-9]+", "_", f"{record['device']}{threads}".lower())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem.strip('_') or 'device'}.json"
    # One run a line, so that two records can be compared with diff.
    text = json.dumps(record)
    for place in ('{"series"', '"runs"', '"skipped"', '"peak"'):
        text = text.replace(place, f"\n{place}")
    # A disk that is full must not cost the older record.
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text + "\n", encoding="utf-8")
    return unfinished.replace(path)


def _name_and_driver(device: torch.device) -> tuple[str, str]:
    if device.type == "cuda":
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            answer = subprocess.run(query, capture_output=True, text=True, timeout=20)
            driver = answer.stdout.split("\n")[0].strip()
        except (OSError, subprocess.TimeoutExpired):
            driver = ""
        cuda = f"CUDA {torch.version.cuda or torch.version.hip}"
        return torch.cuda.get_device_name(device), f"{driver or 'unknown'}, {cuda}"
    name = platform.processor() or platform.machine()
    if platform.system() == "Darwin":
        query = ["sysctl", "-n", "machdep.cpu.brand_string"]
        name = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    about = Path("/proc/cpuinfo")
    if about.is_file():
        found = re.search(r"model name\s*:\s*(.+)", about.read_text(encoding="utf-8"))
        name = found[1].strip() if found else name
    if device.type == "mps":
        name = f"{name} GPU"
    instructions = torch.backends.cpu.get_cpu_capability()
    return name, f"{platform.system()}, {instructions}"


def _peak(device: torch.device, sizes: Sizes) -> Record:
    """Return what the device reaches at best: FLOP/s of a product, and bytes/s of a copy."""
    speeds = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        a = torch.randn(sizes.square, sizes.square, device=device).to(dtype)
        # As nn.Linear asks for it: on a CPU, float16 has a quick way only there.
        timing = compare({"product": lambda a: F.linear(a, a)}, a)["product"]
        speeds[_short(dtype)] = 2 * sizes.square**3 / min(timing.samples)
    source = torch.zeros(sizes.copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    timing = compare({"copy": lambda s: target.copy_(s)}, source)["copy"]
    return {
        "flops_per_second": {name: _rounded(speed) for name, speed in speeds.items()},
        "bytes_per_second": _rounded(2 * sizes.copied / min(timing.samples)),
    }


def _time(comparison: Comparison, skip: Callable[..., None]) -> Iterator[Record]:
    """Yield a run for each of the calls; those that the device cannot do are skipped."""
    calls = {}
    for name, call in comparison.calls.items():
        try:
            with warnings.catch_warnings():  # PyTorch says why a kernel was not taken
                warnings.simplefilter("ignore")
                compare({name: call}, comparison.x, repeats=1, warm_up=1)
        except Exception as error:  # whatever it is, it belongs into the record
            skip(comparison.series, name, error)
        else:
            calls[name] = call
    equal = {name: c for name, c in calls.items() if name not in comparison.unequal}
    if not equal:
        return
    x, flops = comparison.x, comparison.flops
    first = compare(equal, x, repeats=1, warm_up=1)
    a_round = sum(timing.median for timing in first.values())
    repeats = min(max(int(SECONDS / a_round), FEWEST), MOST)
    # Their values have just been compared.
    timings = compare(calls, x, repeats=repeats, same_values=False)
    for name, timing in timings.items():
        # Inside a compiled function nobody sees single operators.
        seen = "compiled" not in name
        yield {
            "series": comparison.series,
            "variant": name,
            "batch": x.shape[0],
            "length": comparison.length,
            "d_model": D_MODEL,
            "heads": comparison.heads,
            "dtype": name if comparison.series == "dtype" else _short(x.dtype),
            "median": _rounded(timing.median),
            "spread": _rounded(timing.spread),
            "samples": len(timing.samples),
            "flops": flops[name] if isinstance(flops, dict) else flops,
            "bytes": bytes_moved(calls[name], x) if seen else None,
            "peak_bytes": peak_memory(calls[name], x) if seen else None,
            "backend": attention_backend(calls[name], x) if seen else None,
        }


def _comparisons(
    device: torch.device, sizes: Sizes, skip: Callable[..., None]
) -> Iterator[Comparison]:
    """Yield the series in the order of the chapter."""
    torch.manual_seed(0)
    batch, length = sizes.batch, sizes.length

    def input_of(length: int) -> Tensor:
        return torch.randn(batch, length, D_MODEL, device=device)

    def module_of(heads: int = HEADS) -> MultiHeadAttention:
        return MultiHeadAttention(D_MODEL, heads).to(device)

    def cost(length: int, heads: int = HEADS) -> int:
        return batch * attention_cost(length, D_MODEL, heads).matmul_flops

    for tokens, heads in itertools.product(sizes.head_lengths, (1, 2, 4, 8, 16, 32)):
        module = module_of(heads)
        calls = {
            "loop": functools.partial(loop_over_heads, module),
            "batched": functools.partial(batched_heads, module),
            "fused": _fused(module),
        }
        flops = cost(tokens, heads)
        yield Comparison("heads", calls, input_of(tokens), tokens, heads, flops)

    module = module_of()
    for tokens in sizes.lengths:
        calls = {"readable": _readable(module), "fused": _fused(module)}
        table = 4 * batch * HEADS * tokens**2
        if table > sizes.table:
            reason = f"weights of {table / 1e9:.3g} GB at {tokens} tokens"
            skip("length", "readable", reason)
            del calls["readable"]
        yield Comparison("length", calls, input_of(tokens), tokens, HEADS, cost(tokens))

    x = input_of(length)
    every = {"x": x, "length": length, "heads": HEADS, "flops": cost(length)}
    yield _dtypes(device, module, every)
    yield _backends(device, batch, length)
    yield Comparison("compile", _compiled(module), **every)
    weights = {"without": _fused(module), "with": _readable(module)}
    yield Comparison("weights", weights, **every)
    training = {name: with_backward(call) for name, call in weights.items()}
    # Going backward takes two products for each; a kernel that kept no weights computes some once more.
    yield Comparison("training", training, **every | {"flops": 3 * cost(length)})
    yield _masks(device, module, every)
    for tokens in sizes.lengths:
        yield _decode(module, input_of(tokens))


def _fused(module: MultiHeadAttention) -> Call:
    return lambda x: module(x, need_weights=False)[0]


def _readable(module: MultiHeadAttention) -> Call:
    return lambda x: module(x)[0]


def with_backward(call: Call) -> Call:
    """Return the call with a backward pass after it; gradients of parameters add up."""

    def both(x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            output = call(x)
            output.sum().backward()
        return output

    return both


def _dtypes(
    device: torch.device, module: MultiHeadAttention, every: Record
) -> Comparison:
    def in_type(dtype: torch.dtype) -> Call:
        other = MultiHeadAttention(D_MODEL, HEADS).to(device, dtype)
        other.load_state_dict(module.state_dict())
        x = every["x"].to(dtype)
        return lambda _: other(x, need_weights=False)[0]

    types = (torch.float32, torch.bfloat16, torch.float16)
    calls = {_short(dtype): in_type(dtype) for dtype in types}
    return Comparison("dtype", calls, **every)


def _backends(device: torch.device, batch: int, length: int) -> Comparison:
    """Force one kernel after the other, on queries, keys and values of the type that GPU kernels are made for."""
    dtype = torch.float32 if device.type == "cpu" else torch.float16
    shape = batch, HEADS, length, D_MODEL // HEADS
    k, v = (torch.randn(shape, device=device, dtype=dtype) for _ in range(2))

    def only(backend: SDPBackend) -> Call:
        def call(q: Tensor) -> Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v)

        return call

    calls = {
        name: only(getattr(SDPBackend, member))
        for name, member in {
            "math": "MATH",
            "flash": "FLASH_ATTENTION",
            "efficient": "EFFICIENT_ATTENTION",
            "cudnn": "CUDNN_ATTENTION",
        }.items()
    }
    q = torch.randn(shape, device=device, dtype=dtype)
    return Comparison(
        "backend", calls, q, length, HEADS, 4 * batch * length**2 * D_MODEL
    )


def _compiled(module: MultiHeadAttention) -> dict[str, Call]:
    readable, fused = _readable(module), _fused(module)
    return {
        "readable": readable,
        "readable, compiled": torch.compile(readable, dynamic=False),
        "fused": fused,
        "fused, compiled": torch.compile(fused, dynamic=False),
    }


def _masks(
    device: torch.device, module: MultiHeadAttention, every: Record
) -> Comparison:
    mask = causal_mask(every["length"], device=device)
    calls = {
        "is_causal": lambda x: module(x, is_causal=True, need_weights=False)[0],
        "mask": lambda x: module(x, mask=mask, need_weights=False)[0],
        "none": _fused(module),
    }
    # A causal kernel leaves out about half of the products.
    return Comparison("mask", calls, unequal=("none",), **every | {"flops": None})


def _decode(module: MultiHeadAttention, text: Tensor) -> Comparison:
    """Ask for the last token alone: with keys and values that are there, and with all projected again."""
    batch, length = text.shape[:2]
    with torch.no_grad():
        k = split_heads(module.W_k(text), HEADS).contiguous()
        v = split_heads(module.W_v(text), HEADS).contiguous()

    def cached(last: Tensor) -> Tensor:
        q = split_heads(module.W_q(last), HEADS)
        return module.W_o(combine_heads(attend_without_weights(q, k, v)))

    calls = {
        "cached": cached,
        "projected again": lambda last: module(last, text, need_weights=False)[0],
    }
    for_one = 4 * D_MODEL**2 + 4 * length * D_MODEL  # W_q and W_o, scores and mixing
    flops = {
        "cached": batch * for_one,
        "projected again": batch * (for_one + 4 * length * D_MODEL**2),
    }
    last = text[:, -1:].contiguous()
    return Comparison("decode", calls, last, length, HEADS, flops)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _rounded(value: float) -> float:
    """Return a number with four digits: more would be noise."""
    return float(f"{value:.4g}")


def main() -> None:
    """Record this machine's device: ``python -m mha.timing --record``."""
    parser = argparse.ArgumentParser(
        prog="python -m mha.timing",
        description="Time every series of chapter 6 on one device, in under four minutes, and store the record.",
    )
    parser.add_argument(
        "--record", action="store_true", required=True, help="begin to time"
    )
    parser.add_argument(
        "--device", help="cpu, cuda or mps; default: a GPU if there is one"
    )
    parser.add_argument("--threads", type=int, help="CPU threads; default: torch's own")
    parser.add_argument(
        "--folder", type=Path, default=Path("recorded"), help="default: %(default)s"
    )
    arguments = parser.parse_args()
    device, threads = arguments.device, arguments.threads
    try:
        clock_for(default_device() if device is None else device)
        if threads is not None:
            most = os.cpu_count() or 1
            if not 1 <= threads <= most:
                raise ValueError(f"threads: expected 1 to {most}, got {threads}")
            torch.set_num_threads(threads)
        _check_writable(arguments.folder)
    except ValueError as error:
        parser.error(str(error))
    try:
        record = record_device(
            default_device() if device is None else device,
            say=lambda line: print(line, flush=True),
        )
    except KeyboardInterrupt:
        parser.exit(130, "\nstopped: nothing was stored\n")
    wide = [run for run in record["runs"] if run["spread"] > run["median"] / 3]
    if len(wide) > len(record["runs"]) / 10:
        print(f"{len(wide)} of {len(record['runs'])} calls took very unequal times: "
              "is this machine busy?")  # fmt: skip
    print(write_record(record, arguments.folder))


def _check_writable(folder: Path) -> None:
    """Raise before the timing if its result could not be stored."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"folder: expected one that can be written, got {str(folder)!r} ({error})"
        ) from error
