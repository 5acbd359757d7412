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
TESTS = repository.ROOT / "tests"


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
    "kv heads repeated in the wrong order": Bug(
        "grouped_query.py",
        "kv.repeat_interleave(group, dim=1)",
        "kv.repeat(1, group, 1, 1)",
        "test_grouped_query.py::test_four_heads_read_10_10_20_20",
    ),
    "groups in the wrong order": Bug(
        "fast_path.py",
        "query.reshape(batch * kv_heads, group, query_len, d_k)",
        "query.unflatten(1, (group, kv_heads)).transpose(1, 2).flatten(0, 1)",
        "test_grouped_query.py::test_the_scale_is_the_one_that_is_asked_for",
    ),
    "groups of one token in the wrong order": Bug(
        "fast_path.py",
        "query.reshape(batch, kv_heads, group, d_k)",
        "query.reshape(batch, group, kv_heads, d_k).transpose(1, 2)",
        "test_grouped_query.py::test_the_scale_is_the_one_that_is_asked_for",
    ),
    "kv heads stored for all heads": Bug(
        "grouped_query.py",
        "KVCache(batch, self.num_kv_heads,",
        "KVCache(batch, self.num_heads,",
        "test_grouped_query.py::test_decoding_with_all_numbers_of_kv_heads",
    ),
    "causal aligned to the start of the cache": Bug(
        "single_head.py",
        "everything.tril(diagonal=key_len - query_len)",
        "everything.tril()",
        "test_grouped_query.py::test_decoding_with_all_numbers_of_kv_heads",
    ),
    "sums of kv heads instead of means": Bug(
        "grouped_query.py",
        "groups.mean(dim=1)",
        "groups.sum(dim=1)",
        "test_grouped_query.py::test_from_multi_head_takes_means",
    ),
    "means of heads that are no neighbours": Bug(
        "grouped_query.py",
        ".unflatten(0, (self.num_kv_heads, -1, self.d_k))",
        ".unflatten(0, (-1, self.num_kv_heads, self.d_k)).transpose(0, 1)",
        "test_grouped_query.py::test_from_multi_head_takes_means",
    ),
    "length not advanced": Bug(
        "kv_cache.py",
        "self._length = end",
        "pass",
        "test_kv_cache.py::test_what_is_appended_comes_back_in_order",
    ),
    "values stored before keys are checked": Bug(
        "kv_cache.py",
        '        self._check("key", key, self._keys)\n',
        "        self._values[:, :, self.length : self.length + value.shape[-2]] = value\n"
        '        self._check("key", key, self._keys)\n',
        "test_kv_cache.py::test_what_does_not_fit_changes_nothing",
    ),
    "reset that forgets nothing": Bug(
        "kv_cache.py",
        "        self._length = 0\n\n",
        "        self._keys.zero_()\n",
        "test_grouped_query.py::test_after_a_reset_a_second_prompt_is_a_first_one",
    ),
    "a graph in the cache": Bug(
        "kv_cache.py",
        "    @torch.no_grad()\n",
        "",
        "test_kv_cache.py::test_it_keeps_no_graph",
    ),
    "a cache of inference mode only": Bug(
        "kv_cache.py",
        "torch.inference_mode(False)",
        "torch.no_grad()",
        "test_kv_cache.py::test_inference_mode_may_begin_and_end_anywhere",
    ),
    "positions that begin at 0 again": Bug(
        "latent_attention.py",
        "torch.arange(before, before + new,",
        "torch.arange(new,",
        "test_latent_attention.py::test_positions_go_on_from_those_in_the_cache",
    ),
    "scale without the rotary part": Bug(
        "latent_attention.py",
        "math.sqrt(self.d_nope + self.d_rope)",
        "math.sqrt(self.d_nope)",
        "test_latent_attention.py::test_it_is_plain_attention_where_nothing_is_compressed",
    ),
    "rotary key that is not turned": Bug(
        "latent_attention.py",
        "rotate(self.W_kr(x), positions)",
        "self.W_kr(x)",
        "test_latent_attention.py::test_positions_go_on_from_those_in_the_cache",
    ),
    "pairs of numbers from both halves": Bug(
        "rotary.py",
        ".unflatten(-1, (d // 2, 2)).unbind(-1)",
        ".unflatten(-1, (2, d // 2)).unbind(-2)",
        "test_rotary.py::test_it_is_a_product_of_complex_numbers",
    ),
    "turned the other way round": Bug(
        "rotary.py",
        "angles = positions[:, None]",
        "angles = -positions[:, None]",
        "test_rotary.py::test_one_pair_by_hand",
    ),
}

# Imports what is slow once, then forks: each child takes its own copy of the package and runs one test.
DRIVER = """
import json, os, sys
import hypothesis.strategies, IPython.display, jaxtyping, matplotlib.pyplot, pytest, torch
# The first comparison imports a good part of torch: once here, not in every child.
torch.testing.assert_close(torch.ones(1), torch.ones(1))
results = {}
for name, (folder, *tests) in json.loads(sys.argv[1]).items():
    child = os.fork()
    if not child:
        sys.path.insert(0, folder)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1), os.dup2(quiet, 2)
        # What takes longer than most of these tests is left out: plugins, rewritten asserts, a collection at the end.
        options = ["-x", "-q", "-o", "addopts=", "--assert=plain"]
        options += ["-p", "no:cacheprovider", "-p", "no:unraisableexception"]
        code = 99  # a crash must not look like a test that failed
        try:
            code = int(pytest.main([*options, *tests]))
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
    named = sorted({str(TESTS / bug.caught_by) for bug in BUGS.values()})
    jobs = {"no bug": (str(sound), *named)}
    for number, (name, bug) in enumerate(BUGS.items()):
        folder = tmp_path_factory.mktemp(f"bug-{number}")
        # With the compiled files: Python compiles anew what is younger than they are, the changed file alone.
        shutil.copytree(PACKAGE, folder / "mha")
        path = folder / "mha" / bug.file
        text = path.read_text(encoding="utf-8")
        assert text.count(bug.right) == 1, (
            f"{name}: {bug.file} has no single {bug.right!r}"
        )
        path.write_text(text.replace(bug.right, bug.wrong), encoding="utf-8")
        jobs[name] = str(folder), str(TESTS / bug.caught_by)
    result = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(jobs)],
        cwd=repository.ROOT,
        env=os.environ
        | {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(result.stdout.splitlines()[-1])


def test_without_a_bug_these_tests_pass(exit_codes):
    assert exit_codes["no bug"] == pytest.ExitCode.OK


@pytest.mark.parametrize("name", BUGS)
def test_bug_is_caught(exit_codes, name):
    # 1: a test ran and failed. Anything else would mean that the test passed, or that nothing ran.
    assert exit_codes[name] == pytest.ExitCode.TESTS_FAILED, (
        f"{name}: {BUGS[name].caught_by}"
    )
