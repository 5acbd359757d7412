"""Seeded bugs: each is put into a copy of the package, and the test named beside it must fail on it.

A test that passes on broken code proves nothing. The bugs are those of public reports on attention: wrong
reshapes, wrong axes, masks that leak, gradients that turn into NaN.
"""

import json
import os
import shutil
import subprocess
import sys
from typing import NamedTuple

import pytest

import repository

PACKAGE = repository.ROOT / "code" / "mha"


class Bug(NamedTuple):
    """A change of one line, and the test that notices."""

    file: str
    right: str
    wrong: str
    caught_by: str


BUGS = {
    "split without transpose": Bug(
        "head_splitting.py",
        "return pieces.transpose(-3, -2)",
        "return pieces.reshape(*x.shape[:-2], num_heads, x.shape[-2], d_k)",
        "test_multi_head.py::test_conversion_both_ways",
    ),
    "combine without transpose": Bug(
        "head_splitting.py",
        "tokens_first = x.transpose(-3, -2)",
        "tokens_first = x.reshape(*x.shape[:-3], x.shape[-2], x.shape[-3], x.shape[-1])",
        "test_multi_head.py::test_conversion_both_ways",
    ),
    "softmax over the queries": Bug(
        "single_head.py",
        "torch.softmax(scores, dim=-1,",
        "torch.softmax(scores, dim=-2,",
        "test_single_head.py::test_softmax_runs_over_the_keys",
    ),
    "scale by the length": Bug(
        "single_head.py",
        "1.0 / math.sqrt(d_k)",
        "1.0 / math.sqrt(key_len)",
        "test_multi_head.py::test_conversion_both_ways",
    ),
    "boolean mask flipped": Bug(
        "single_head.py",
        "scores.masked_fill(~mask, -torch.inf)",
        "scores.masked_fill(mask, -torch.inf)",
        "test_multi_head.py::test_every_path_gives_what_a_loop_gives",
    ),
    "a large number for minus infinity": Bug(
        "single_head.py",
        "scores.masked_fill(~mask, -torch.inf)",
        "scores.masked_fill(~mask, -1e4)",
        "test_multi_head.py::test_a_query_without_keys_gets_the_output_bias",
    ),
    "NaN repaired after the softmax only": Bug(
        "single_head.py",
        "_softmax(scores.masked_fill(sees_nothing, 0.0))",
        "_softmax(scores)",
        "test_multi_head.py::test_both_paths_have_the_same_finite_gradients",
    ),
    "causal aligned to the start": Bug(
        "single_head.py",
        "everything.tril(diagonal=key_len - query_len)",
        "everything.tril()",
        "test_multi_head.py::test_every_path_gives_what_a_loop_gives",
    ),
    "causal dropped beside a mask": Bug(
        "single_head.py",
        "    if is_causal:\n        future",
        "    if is_causal and mask is None:\n        future",
        "test_multi_head.py::test_every_path_gives_what_a_loop_gives",
    ),
    "causal queries before the first key forgotten": Bug(
        "single_head.py",
        "(not is_causal or query_len <= key_len)",
        "True",
        "test_multi_head.py::test_causal_is_aligned_to_the_end_on_both_paths",
    ),
    "weights returned after dropout": Bug(
        "single_head.py",
        "kept = nn.functional.dropout(weights, dropout_p)",
        "kept = weights = nn.functional.dropout(weights, dropout_p)",
        "test_multi_head.py::test_returned_weights_are_before_dropout",
    ),
    "dropout in eval": Bug(
        "multi_head.py",
        "self.dropout * self.training",
        "self.dropout",
        "test_multi_head.py::test_dropout_only_while_training",
    ),
    "keys through the queries' projection": Bug(
        "multi_head.py",
        "split_heads(self.W_k(key)",
        "split_heads(self.W_q(key)",
        "test_multi_head.py::test_every_path_gives_what_a_loop_gives",
    ),
    "no output projection": Bug(
        "multi_head.py",
        "output = self.W_o(combine_heads(heads))",
        "output = combine_heads(heads)",
        "test_multi_head.py::test_every_path_gives_what_a_loop_gives",
    ),
    "three axes taken as heads": Bug(
        "checks.py",
        "mask = mask[:, None]",
        "mask = mask[None]",
        "test_multi_head.py::test_three_axes_are_batch_also_where_batch_equals_heads",
    ),
    "queries put behind the padding": Bug(
        "fast_path.py",
        "torch.cat([front, query], dim=-2)",
        "torch.cat([query, front], dim=-2)",
        "test_multi_head.py::test_causal_is_aligned_to_the_end_on_both_paths",
    ),
    "the wrong queries left out": Bug(
        "fast_path.py",
        "query = query[..., surplus:, :]",
        "query = query[..., :-surplus, :]",
        "test_multi_head.py::test_causal_is_aligned_to_the_end_on_both_paths",
    ),
    "mask forgotten beside causal": Bug(
        "fast_path.py",
        "mask & keep if is_bool",
        "keep if is_bool",
        "test_multi_head.py::test_every_path_gives_what_a_loop_gives",
    ),
    "causal although not asked": Bug(
        "fast_path.py",
        "if not is_causal or query_len == 1:",
        "if not is_causal and query_len == 1:",
        "test_multi_head.py::test_every_path_gives_what_a_loop_gives",
    ),
    "projections unpacked in the wrong order": Bug(
        "torch_conversion.py",
        "[*module.in_proj_weight.chunk(3)]",
        "[*module.in_proj_weight.chunk(3)][::-1]",
        "test_multi_head.py::test_conversion_both_ways",
    ),
    "biases not converted": Bug(
        "torch_conversion.py",
        "part.append(bias)",
        "part.append(bias.clone())",
        "test_multi_head.py::test_conversion_both_ways",
    ),
    "padding on query rows": Bug(
        "masking.py",
        "keep[:, None, None, :]",
        "keep[:, None, :, None]",
        "test_masking.py::test_pad_tokens_do_not_reach_real_ones",
    ),
    "masks joined by or": Bug(
        "masking.py",
        "reduce(torch.logical_and, keeps)",
        "reduce(torch.logical_or, keeps)",
        "test_masking.py::test_booleans_are_joined_by_and",
    ),
    "no residual": Bug(
        "transformer_block.py",
        "x = x + self.dropout(attend(self.norm_1(x)))",
        "x = self.dropout(attend(self.norm_1(x)))",
        "test_transformer_block.py::test_it_is_pytorchs_encoder_layer",
    ),
    "norms before and after swapped": Bug(
        "transformer_block.py",
        "if self.norm_first:",
        "if not self.norm_first:",
        "test_transformer_block.py::test_it_is_pytorchs_encoder_layer",
    ),
}

# Imports what is slow once, then forks: each child takes its own copy of the package and runs one test.
DRIVER = """
import json, os, sys
import hypothesis.strategies, IPython.display, jaxtyping, matplotlib.pyplot, nbval, pytest, torch
results = {}
for name, (folder, test) in json.loads(sys.argv[1]).items():
    child = os.fork()
    if not child:
        sys.path.insert(0, folder)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1), os.dup2(quiet, 2)
        options = ["-x", "-q", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:xdist"]
        # Hypothesis and others are imported already, on purpose.
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        code = 99  # a crash must not look like a test that failed
        try:
            code = int(pytest.main([*options, test]))
        finally:
            os._exit(code)
    results[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def exit_codes(tmp_path_factory) -> dict[str, int]:
    """Return, for each bug, how pytest ended on the copy that has it."""
    sound = tmp_path_factory.mktemp("sound")
    shutil.copytree(PACKAGE, sound / "mha")
    jobs = {
        test: (str(sound), str(repository.ROOT / "tests" / test))
        for test in sorted({bug.caught_by for bug in BUGS.values()})
    }
    for number, (name, bug) in enumerate(BUGS.items()):
        folder = tmp_path_factory.mktemp(f"bug-{number}")
        shutil.copytree(
            PACKAGE, folder / "mha", ignore=shutil.ignore_patterns("__pycache__")
        )
        path = folder / "mha" / bug.file
        text = path.read_text(encoding="utf-8")
        assert text.count(bug.right) == 1, (
            f"{name}: {bug.file} has no single {bug.right!r}"
        )
        path.write_text(text.replace(bug.right, bug.wrong), encoding="utf-8")
        jobs[name] = str(folder), str(repository.ROOT / "tests" / bug.caught_by)
    result = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(jobs)],
        cwd=repository.ROOT,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(result.stdout.splitlines()[-1])


def test_without_a_bug_these_tests_pass(exit_codes):
    for test in {bug.caught_by for bug in BUGS.values()}:
        assert exit_codes[test] == pytest.ExitCode.OK, test


@pytest.mark.parametrize("name", BUGS)
def test_bug_is_caught(exit_codes, name):
    # 1: a test ran and failed. Anything else would mean that the test passed, or that nothing ran.
    assert exit_codes[name] == pytest.ExitCode.TESTS_FAILED, (
        f"{name}: {BUGS[name].caught_by}"
    )
