"""Time the book's module against what people use instead: ``make bench``.

All are timed in one process, call by call in turn, after their values were compared. What is reported are ratios
of calls of the same round to PyTorch's own module, ``nn.MultiheadAttention(need_weights=False)``.
"""

import argparse
import datetime
import importlib
import json
import platform
import statistics
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import mha
from mha.profiling import peak_memory
from mha.recordings import with_backward
from mha.timing import Timing, compare
from mha.variants import batched_heads, loop_over_heads

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "tools" / "benchmark.json"
BEGIN, END = "<!-- benchmark: begin -->", "<!-- benchmark: end -->"

# batch, length, d_model, heads
SIZES = [
    (32, 64, 512, 8),
    (8, 512, 512, 8),
    (2, 2048, 512, 8),
    (1, 4096, 512, 8),
    (1, 8192, 512, 8),
]
QUICK = [(2, 16, 32, 4)]
REFERENCE = "nn.MultiheadAttention"
TABLE_LENGTH = 2048  # beyond it, what makes a query × key table is left out


Call = Callable[[Tensor], Tensor]


def ours_and_torchs(
    module: mha.MultiHeadAttention, length: int, is_causal: bool
) -> dict[str, Call]:
    """Return what is there without other packages; the reference comes first."""
    theirs = module.to_torch()
    in_eval = module.to_torch().eval()
    mask = ~mha.causal_mask(length) if is_causal else None
    options = {"attn_mask": mask, "is_causal": is_causal}

    def torchs(of: nn.MultiheadAttention, **more: bool) -> Call:
        return lambda x: of(x, x, x, **options, **more)[0]

    calls = {
        REFERENCE: torchs(theirs, need_weights=False),
        "mha, fast": lambda x: module(x, is_causal=is_causal, need_weights=False)[0],
        f"{REFERENCE}, eval()": torchs(in_eval, need_weights=False),
    }
    if length <= TABLE_LENGTH:
        calls |= {
            f"{REFERENCE}, weights per head": torchs(
                theirs, average_attn_weights=False
            ),
            "mha, weights per head": lambda x: module(x, is_causal=is_causal)[0],
            "textbook": lambda x: batched_heads(module, x, is_causal=is_causal),
            "loop over heads": lambda x: loop_over_heads(
                module, x, is_causal=is_causal
            ),
        }
    return calls


def copy_into(linears: list[nn.Linear], module: mha.MultiHeadAttention) -> None:
    """Give another package's projections the weights of ours."""
    with torch.no_grad():
        for linear, W in zip(
            linears, (module.W_q, module.W_k, module.W_v, module.W_o), strict=True
        ):
            linear.weight.copy_(W.weight)
            linear.bias.copy_(W.bias)


def llms_from_scratch(
    module: mha.MultiHeadAttention, length: int, is_causal: bool
) -> Call | None:
    """S. Raschka, "Build a Large Language Model (From Scratch)": always causal."""
    if not is_causal:
        return None
    chapter = importlib.import_module("llms_from_scratch.ch03")
    width, heads = module.d_model, module.num_heads
    other = chapter.MultiHeadAttention(width, width, length, 0.0, heads, qkv_bias=True)
    copy_into([other.W_query, other.W_key, other.W_value, other.out_proj], module)
    return other


def labml(module: mha.MultiHeadAttention, length: int, is_causal: bool) -> Call | None:
    """labml.ai's annotated implementations: sequence first."""
    package = importlib.import_module("labml_nn.transformers.mha")
    if not hasattr(package.tracker, "debug"):  # its logging, gone in newer versions
        package.tracker.debug = lambda *_: None
    other = package.MultiHeadAttention(module.num_heads, module.d_model, 0.0)
    parts = [other.query, other.key, other.value]
    copy_into([*(part.linear for part in parts), other.output], module)
    mask = mha.causal_mask(length)[:, :, None] if is_causal else None

    def call(x: Tensor) -> Tensor:
        first = x.transpose(0, 1)
        return other(query=first, key=first, value=first, mask=mask).transpose(0, 1)

    return call


def d2l(module: mha.MultiHeadAttention, length: int, is_causal: bool) -> Call | None:
    """Zhang et al., "Dive into Deep Learning"."""
    # It imports torchvision for its data sets, which are not used here.
    for name in ("torchvision", "torchvision.transforms"):
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules["torchvision"].transforms = sys.modules["torchvision.transforms"]
    package = importlib.import_module("d2l.torch")
    other = package.MultiHeadAttention(module.d_model, module.num_heads, 0.0, bias=True)
    x = torch.zeros(1, 1, module.d_model)
    other(x, x, x, None)  # its layers learn their widths from the first call
    copy_into([other.W_q, other.W_k, other.W_v, other.W_o], module)

    def call(x: Tensor) -> Tensor:
        ends = torch.arange(1, length + 1).repeat(len(x), 1) if is_causal else None
        return other(x, x, x, ends)

    return call


def x_transformers(
    module: mha.MultiHeadAttention, length: int, is_causal: bool
) -> Call | None:
    """The x-transformers of P. Wang, with its flash option; its projections have no bias."""
    package = importlib.import_module("x_transformers.x_transformers")
    width, heads = module.d_model, module.num_heads
    other = package.Attention(
        width, dim_head=width // heads, heads=heads, causal=is_causal, flash=True
    )
    return lambda x: other(x)


# The last is compared in size only: without biases its values are others.
OTHERS = {
    "llms-from-scratch": llms_from_scratch,
    "labml-nn": labml,
    "d2l": d2l,
    "x-transformers (no bias)": x_transformers,
}
TEACHING = ("llms-from-scratch", "labml-nn", "d2l")


def other_packages(
    module: mha.MultiHeadAttention, length: int, is_causal: bool
) -> tuple[dict[str, Call], dict[str, str]]:
    """Return the calls of other packages that are installed, and why the rest is missing."""
    calls, missing = {}, {}
    for name, make in OTHERS.items():
        if length > TABLE_LENGTH and name in TEACHING:
            continue
        try:
            call = make(module, length, is_causal)
        except ImportError as error:
            missing[name] = f"{type(error).__name__}: {error}"
            continue
        if call is not None:
            calls[name] = call
    return calls, missing


def ratios(timing: Timing, reference: Timing) -> list[float]:
    """Return the ratio in each round."""
    pairs = zip(timing.samples, reference.samples, strict=True)
    return [a / b for a, b in pairs]


def time_cell(size: tuple[int, int, int, int], kind: str, rounds: int) -> dict:
    """Time everything at one size; ``kind`` is forward, causal or both."""
    batch, length, width, heads = size
    torch.manual_seed(0)
    module = mha.MultiHeadAttention(width, heads)
    nn.init.normal_(module.W_q.bias), nn.init.normal_(module.W_o.bias)
    x = torch.randn(batch, length, width)
    is_causal = kind == "causal"
    calls = ours_and_torchs(module, length, is_causal)
    others, missing = other_packages(module, length, is_causal)
    calls |= others
    if is_causal:
        calls["mha, fast, not causal"] = lambda x: module(x, need_weights=False)[0]
    unequal = {"x-transformers (no bias)", "mha, fast, not causal"}
    if kind == "both":
        calls = {name: with_backward(call) for name, call in calls.items()}
    equal = {name: call for name, call in calls.items() if name not in unequal}
    compare(equal, x, repeats=1, warm_up=1, gradients=kind == "both")
    square = torch.randn(2048, 2048)
    calls["matmul"] = lambda _: square @ square
    timings = compare(
        calls, x, repeats=rounds, same_values=False, gradients=kind == "both"
    )
    cell = {"size": list(size), "kind": kind, "missing": missing, "results": {}}
    matmul_speed = 2 * 2048**3 / timings.pop("matmul").median
    flops = mha.attention_cost(length, width, heads).matmul_flops * batch
    for name, timing in timings.items():
        each = ratios(timing, timings[REFERENCE])
        quarters = statistics.quantiles(each, n=4) if len(each) > 1 else [each[0]] * 3
        result = {
            "seconds": timing.median,
            "ratio": statistics.median(each),
            "ratio_quartiles": [quarters[0], quarters[2]],
        }
        if kind == "forward":
            result["of_matmul_speed"] = flops / timing.median / matmul_speed
            result["peak_bytes"] = peak_memory(calls[name], x)
        cell["results"][name] = result
    cell["matmul_flops_per_second"] = matmul_speed
    return cell


def table(report: dict) -> str:
    """Return the ratios as Markdown tables, one for each kind, with a row for each contestant."""
    titles = {
        "forward": "forward",
        "causal": "forward, causal",
        "both": "forward and backward",
    }
    tables = []
    for kind, title in titles.items():
        cells = [cell for cell in report["cells"] if cell["kind"] == kind]
        heads = [f"{cell['size'][0]} × {cell['size'][1]}" for cell in cells]
        lines = [f"| {title} | " + " | ".join(heads) + " |"]
        lines += ["| --- |" + " ---: |" * len(cells)]
        for name in dict.fromkeys(name for cell in cells for name in cell["results"]):
            if name != REFERENCE:
                row = [cell["results"].get(name) for cell in cells]
                shown = [f"{entry['ratio']:.2f}" if entry else "" for entry in row]
                lines.append(f"| {name} | " + " | ".join(shown) + " |")
        if cells:
            tables.append("\n".join(lines))
    return "\n\n".join(tables)


def write_into_readme(text: str, readme: Path) -> None:
    """Put a text between the benchmark's two marks."""
    content = readme.read_text(encoding="utf-8")
    if content.count(BEGIN) != 1 or content.count(END) != 1:
        sys.exit(f"{readme}: expected one {BEGIN} and one {END}")
    before, rest = content.split(BEGIN)
    after = rest.split(END)[1]
    readme.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Run the benchmark, print it, and store it unless it is the quick one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="one tiny size, not stored"
    )
    parser.add_argument("--rounds", type=int, default=15, help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    arguments = parser.parse_args()
    for name in ("rounds", "threads"):
        if getattr(arguments, name) < 1:
            parser.error(f"{name}: expected 1 or more, got {getattr(arguments, name)}")
    torch.set_num_threads(arguments.threads)
    cells = []
    plan = [
        (size, kind)
        for size in (QUICK if arguments.quick else SIZES)
        for kind in ("forward", "causal", "both")
        if kind != "both" or size[1] <= 4096
    ]
    begin = time.perf_counter()
    for number, (size, kind) in enumerate(plan, start=1):
        seconds = time.perf_counter() - begin
        print(f"{seconds:5.0f} s  {number}/{len(plan)}: {kind} {size} …", flush=True)
        rounds = (
            3 if arguments.quick else max(5, arguments.rounds // (1 + size[1] // 2048))
        )
        cells.append(time_cell(size, kind, rounds))
        for name, reason in cells[-1]["missing"].items():
            print(f"    {name:44} left out: {reason}")
        for name, result in cells[-1]["results"].items():
            low, high = result["ratio_quartiles"]
            print(f"    {name:44} {result['ratio']:6.2f}  ({low:.2f} to {high:.2f})")
    report = {
        "date": datetime.date.today().isoformat(),
        "machine": platform.machine(),
        "threads": arguments.threads,
        "torch": torch.__version__,
        "reference": REFERENCE,
        "cells": cells,
    }
    print(table(report))
    missing = {name for cell in cells for name in cell["missing"]}
    if missing:
        print(f"Not stored, for {', '.join(sorted(missing))} is not installed: "
              "pip install --no-deps -r requirements-bench.txt")  # fmt: skip
    elif not arguments.quick:
        RESULTS.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        write_into_readme(table(report), ROOT / "README.md")


if __name__ == "__main__":
    main()
