"""The benchmark: all contestants compute the same, and the README shows what was stored."""

import json
import subprocess
import sys

import pytest
import torch

import benchmark
import mha
from mha.timing import Timing, compare


@pytest.fixture
def module():
    torch.manual_seed(0)
    module = mha.MultiHeadAttention(12, 3)
    torch.nn.init.normal_(module.W_q.bias)
    return module


@pytest.mark.parametrize("is_causal", [False, True])
def test_all_contestants_give_the_same_values(module, is_causal):
    calls = benchmark.ours_and_torchs(module, 5, is_causal)
    assert len(calls) == 7 and next(iter(calls)) == benchmark.REFERENCE
    x = torch.randn(2, 5, 12)
    compare(calls, x, repeats=1, warm_up=1)  # raises where values differ
    expected = module(x, is_causal=is_causal)[0]
    for call in calls.values():
        torch.testing.assert_close(call(x), expected)


def test_long_texts_leave_out_what_makes_a_table(module):
    calls = benchmark.ours_and_torchs(module, benchmark.TABLE_LENGTH + 1, False)
    assert list(calls) == [
        "nn.MultiheadAttention",
        "mha, fast",
        "nn.MultiheadAttention, eval()",
    ]


def test_packages_that_are_not_installed_are_named(module, monkeypatch):
    def absent(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(benchmark.importlib, "import_module", absent)
    calls, missing = benchmark.other_packages(module, 5, True)
    assert not calls and set(missing) == set(benchmark.OTHERS)
    assert "llms_from_scratch" in missing["llms-from-scratch"]
    # The first of them is always causal, so that it is not asked for otherwise.
    assert "llms-from-scratch" not in benchmark.other_packages(module, 5, False)[1]


def test_backward_reaches_the_input_and_leaves_the_callers_alone(module):
    x = torch.randn(1, 5, 12)
    seen = []

    def call(x):
        x.register_hook(seen.append)
        return module(x)[0]

    output = benchmark.with_backward(call)(x)
    torch.testing.assert_close(output, module(x)[0])
    assert seen[0].shape == x.shape and not x.requires_grad and x.grad is None


def test_ratios_are_taken_round_by_round():
    slow, fast = Timing((2.0, 8.0, 3.0), 1), Timing((1.0, 2.0, 3.0), 1)
    assert benchmark.ratios(slow, fast) == [2.0, 4.0, 1.0]


def test_the_table_has_a_row_for_each_and_a_hole_where_nothing_was_timed():
    reference = {"nn.MultiheadAttention": {"ratio": 1.0}}
    cells = [
        {
            "kind": "forward",
            "size": [8, 64],
            "results": reference | {"a": {"ratio": 0.9}},
        },
        {"kind": "both", "size": [8, 64], "results": {"a": {"ratio": 2}}},
        {"kind": "forward", "size": [1, 99], "results": {"b": {"ratio": 1.234}}},
    ]
    assert benchmark.table({"cells": cells}).splitlines() == [
        "| forward | 8 × 64 | 1 × 99 |",
        "| --- | ---: | ---: |",
        "| a | 0.90 |  |",
        "| b |  | 1.23 |",
        "",
        "| forward and backward | 8 × 64 |",
        "| --- | ---: |",
        "| a | 2.00 |",
    ]


def test_the_readme_gets_the_table_between_its_marks(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{benchmark.BEGIN}\nold\n{benchmark.END}\nafter\n")
    benchmark.write_into_readme("new", readme)
    text = readme.read_text()
    assert text == f"before\n{benchmark.BEGIN}\n\nnew\n\n{benchmark.END}\nafter\n"
    readme.write_text("no marks")
    with pytest.raises(SystemExit, match="expected one"):
        benchmark.write_into_readme("new", readme)
    assert readme.read_text() == "no marks"


def test_the_readme_shows_what_is_stored(root):
    report = json.loads(benchmark.RESULTS.read_text(encoding="utf-8"))
    text = (root / "README.md").read_text(encoding="utf-8")
    shown = text.split(benchmark.BEGIN)[1].split(benchmark.END)[0].strip()
    assert shown == benchmark.table(report)
    assert {tuple(cell["size"]) for cell in report["cells"]} == set(benchmark.SIZES)


def test_a_quick_run_prints_ratios_and_stores_nothing(root):
    before = benchmark.RESULTS.read_bytes(), (root / "README.md").read_bytes()
    command = [sys.executable, "tools/benchmark.py", "--quick", "--threads", "1"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert "| mha, fast | " in done.stdout and not done.stderr
    assert (benchmark.RESULTS.read_bytes(), (root / "README.md").read_bytes()) == before


def test_a_table_without_some_packages_is_not_stored(monkeypatch, capsys):
    cell = {"kind": "forward", "size": [1, 2, 4, 2], "missing": {"d2l": "gone"}}
    result = {"ratio": 1.0, "ratio_quartiles": [1.0, 1.0]}
    cell["results"] = {"mha, fast": result}
    monkeypatch.setattr(benchmark, "time_cell", lambda *_: cell)
    monkeypatch.setattr(sys, "argv", ["benchmark.py", "--threads", "1"])

    def never(*_):
        raise AssertionError("something was stored")

    monkeypatch.setattr(benchmark, "write_into_readme", never)
    before = benchmark.RESULTS.read_bytes()
    benchmark.main()
    assert "Not stored, for d2l is not installed" in capsys.readouterr().out
    assert benchmark.RESULTS.read_bytes() == before
