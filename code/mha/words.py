"""Words that are drawn into pictures, one table per language.

A picture asks for ``word("query")`` and never holds a word of its own, so that another edition of the book adds a
table here and changes no drawing code.
Token labels are data, not words: they are drawn as they are.
"""

WORDS: dict[str, dict[str, str]] = {
    "en": {
        "animal": "animal",
        "attention_weight": "attention weight",
        "concatenate": "concatenate",
        "entropy": "mean entropy (1 = uniform)",
        "entropy_axis": "entropy of the weights\n(1 = uniform)",
        "head": "head {number}",
        "input_token": "input token",
        "key": "key",
        "key_width_axis": "key width $d_k$",
        "mixture_all": "one blend of everything",
        "mixture_three": "one blend of the three",
        "mixture_separate": "three vectors, side by side",
        "moving_saturation_alt": "Twelve bars, mean attention weights from the largest to the smallest",
        "not_scaled": "not scaled",
        "one_head_apart": "one head, keys apart",
        "one_head_together": "one head, keys together",
        "output": "output",
        "output_token": "output token",
        "place": "place",
        "query": "query",
        "relation_coreference": "coreference",
        "relation_meaning": "meaning",
        "relation_syntax": "syntax",
        "results": "results",
        "right": "right",
        "scaled_control": "scale by 1/√d_k",
        "scaled_control_html": "scale by 1/√<i>d</i><sub>k</sub>",
        "scaled": "scaled by $1/\\sqrt{d_k}$",
        "sorted_keys": "twelve keys, by their weight",
        "split": "split",
        "three_heads": "three heads",
        "token": "token {number}",
        "value": "value",
        "weights": "weights",
        "weights_times_values": "weights · V",
        "width_control": "d_k",
        "width_control_html": "<i>d</i><sub>k</sub>",
        "wrong": "wrong",
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
