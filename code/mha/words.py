"""Words that are drawn into pictures, one table per language.

A picture asks for ``word("query")`` and never holds a word of its own, so that another edition of the book adds a
table here and changes no drawing code.
Token labels are data, not words: they are drawn as they are.
"""

WORDS: dict[str, dict[str, str]] = {
    "en": {
        "achieved": "achieved {unit}",
        "aligned_end": "aligned to the end",
        "aligned_start": "aligned to the start",
        "animal": "animal",
        "as_fast": "equally fast",
        "attention": "attention",
        "attention_weight": "attention weight",
        "best_rule": "best simple rule",
        "both": "both",
        "calls": "calls in their order",
        "causal": "causal",
        "choice_and_reference": "{choice}, 1 = {reference}",
        "choice_backend": "backend",
        "choice_compile": "compile",
        "choice_dtype": "dtype",
        "choice_mask": "mask",
        "choice_training": "training",
        "choice_weights": "weights",
        "chosen_head": "(layer, head), chosen",
        "concatenate": "concatenate",
        "concatenated": "concatenated",
        "cpu": "CPU",
        "cpu_waits": "synchronize: the CPU waits",
        "cross_attention": "cross-attention",
        "device_and_threads": "{device}, {threads} threads",
        "effect": "1 − cosine without the head",
        "entropy": "mean entropy (1 = uniform)",
        "entropy_axis": "entropy of the weights\n(1 = uniform)",
        "equal_terms": "$n = 2\\,d_\\mathrm{model}$",
        "event": "event",
        "exchange_changes_nothing": "dashed: the exchanged\nword changes nothing",
        "feed_forward": "feed-forward",
        "finds_adjective": "adjective’s noun",
        "finds_coreference": "pronoun’s noun",
        "finds_delimiter": "delimiter",
        "finds_determiner": "article’s noun",
        "finds_next": "word after",
        "finds_object": "object’s verb",
        "finds_previous": "word before",
        "finds_subject": "verb’s subject",
        "first_noun_both_times": "noun 1 both times: {number}",
        "first_share": "sentence 1: share of noun 1 (right)",
        "flops_a_byte": "FLOPs per byte",
        "from_cache": "from the cache",
        "gpu": "GPU",
        "gradient_norm_axis": "gradient norm\nof the last block",
        "head": "head {number}",
        "heads_gone": "heads removed",
        "hidden": "hidden",
        "hit_rate": "hit rate",
        "in_turn": "in turn",
        "input": "input",
        "input_token": "input token",
        "kernel_number": "kernel {number}",
        "key": "key",
        "key_number": "key {number}",
        "key_width_axis": "key width $d_k$",
        "keys_and_values": "{number} keys and values",
        "keys_axis": "keys",
        "launch": "launch",
        "layer": "layer",
        "layer_and_head": "layer {layer}, head {head}",
        "layer_and_mean": "layer, and its mean",
        "layer_norm": "LayerNorm",
        "length_added": "length of what the head adds",
        "mask_after": "mask after\nthe softmax",
        "mask_after_rescaled": "mask after,\nthen rescale",
        "mask_before": "mask before\nthe softmax",
        "masked": "masked",
        "masked_note": "zeros in $W_o$\n{number} numbers",
        "may_look": "the query (row) may look at the key (column)",
        "median_of": "median of {name}",
        "medians": "both medians",
        "memory_axis": "peak extra memory (MB)",
        "mixture_all": "one blend of everything",
        "mixture_separate": "three vectors, side by side",
        "mixture_three": "one blend of the three",
        "moving_saturation_alt": "Twelve bars, mean attention weights from the largest to the smallest",
        "new": "new",
        "norm_in_branch": "LayerNorm in the branch",
        "norm_on_stream": "LayerNorm on the stream",
        "not_scaled": "not scaled",
        "number_of_blocks": "number of blocks",
        "number_of_heads": "number of heads",
        "on_one_half": "on one half, judged",
        "on_the_other": "on the other",
        "one_after_the_other": "one after the other",
        "one_head_apart": "one head, keys apart",
        "one_head_together": "one head, keys together",
        "one_word_exchanged": "one word exchanged: {similarity}",
        "output": "output",
        "output_dropped": "the same, but the query is padding: its output is dropped",
        "output_token": "output token",
        "padding": "padding",
        "place": "place",
        "post_norm": "post-norm",
        "pre_norm": "pre-norm",
        "pruned": "pruned",
        "pruned_note": "cut out of all four\n{number} numbers\nsame output",
        "queries": "{number} queries",
        "queries_by_keys": "{queries} queries × {keys} keys",
        "query": "query",
        "query_by_key": "query × key",
        "query_number": "query {number}",
        "rank_correlation": "rank correlation {number}",
        "ratio_of_medians": "medians: B ÷ A = {ratio}",
        "relation_coreference": "coreference",
        "relation_meaning": "meaning",
        "relation_syntax": "syntax",
        "removal_cheapest": "cheapest first",
        "removal_dearest": "most expensive first",
        "removal_random": "random",
        "removal_spared": "random, last\nlayer spared",
        "results": "results",
        "right": "right",
        "right_both_times": "right both times: {number} of {all}",
        "ring": "○ the shortest, {number}",
        "role_adjective": "adjective",
        "role_coreference": "coreference",
        "role_delimiter": "delimiter",
        "role_determiner": "determiner",
        "role_next": "next word",
        "role_object": "object",
        "role_previous": "previous word",
        "role_subject": "subject",
        "roof_flat": "{speed}: a large product",
        "roof_points": "{name},\nup to {number} tokens",
        "roof_slanted": "{speed}: a large copy",
        "roof_steps": "{name}, one step,\nup to {number} keys",
        "rows": "{number} rows",
        "rule_first_noun": "first noun",
        "rule_nearest_noun": "nearest noun",
        "rule_offset": "word at {offset}",
        "same_for_k_and_v": "the same for k and v",
        "scaled": "scaled by $1/\\sqrt{d_k}$",
        "scaled_control": "scale by 1/√d_k",
        "scaled_control_html": "scale by 1/√<i>d</i><sub>k</sub>",
        "second_noun_both_times": "noun 2 both times: {number}",
        "second_share": "sentence 2: share of noun 1 (wrong)",
        "self_attention": "self-attention",
        "similarity": "cosine to the whole model’s vector",
        "skipped": "skipped: not on this device",
        "skipped_short": "skipped",
        "sorted_keys": "twelve keys, by their weight",
        "split": "split",
        "step": "step",
        "stopwatch_right": "stopped after synchronize",
        "stopwatch_wrong": "stopped after the last launch",
        "sum": "sum",
        "sums_to": "sum {total}",
        "target": "target",
        "the_answer": "the answer,\none place further on",
        "three_heads": "three heads",
        "time": "time",
        "time_axis": "time (ms)",
        "time_in_fused": "time ÷ time of\nfused, 1 head",
        "time_in_reference": "time ÷ time of the reference",
        "time_of_a_call": "time of a call\n(first call = 1)",
        "time_of_a_step": "time of one step (ms)",
        "times_four": "×4 for each\ndoubling",
        "token": "token {number}",
        "token_by_d_k": "token × $d_k$",
        "token_by_width": "token × width",
        "tokens": "{number} tokens",
        "tokens_axis": "tokens",
        "training_loss": "training loss\n(nats a character)",
        "value": "value",
        "variant_batched": "batched",
        "variant_cached": "cached",
        "variant_fused": "fused",
        "variant_fused_compiled": "fused, compiled",
        "variant_loop": "loop",
        "variant_mask": "mask",
        "variant_none": "none",
        "variant_projected_again": "projected again",
        "variant_readable": "readable",
        "variant_readable_compiled": "readable, compiled",
        "variant_with": "with",
        "variant_without": "without",
        "weight_on_words": "weight on words",
        "weights": "weights",
        "weights_times_values": "weights · V",
        "whole": "whole",
        "whole_note": "{number} numbers",
        "width_control": "d_k",
        "width_control_html": "<i>d</i><sub>k</sub>",
        "wrong": "wrong",
        "wrong_both_times": "wrong both times: {number}",
    },
}

_language = "en"


def set_language(language: str) -> None:
    """Choose the table that :func:`word` reads.

    Parameters
    ----------
    language : str
        A key of ``WORDS``, such as ``"en"``.

    Raises
    ------
    ValueError
        If there is no table for the language.
    """
    global _language
    if language not in WORDS:
        raise ValueError(f"language: expected one of {sorted(WORDS)}, got {language!r}")
    _language = language


def word(key: str, **values: object) -> str:
    """Return a word of the current language, with its placeholders filled in.

    Parameters
    ----------
    key : str
        The word's key in the table.
    **values
        What stands in the word's placeholders, such as ``number=3`` for ``"head {number}"``.

    Raises
    ------
    KeyError
        If the table has no such key.
    """
    text = WORDS[_language][key]
    return text.format(**values) if values else text
