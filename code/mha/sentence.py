"""The book's running sentence, with hand-made features that make its three relations visible."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .multi_head import MultiHeadAttention

KITTEN_SENTENCE = "The kitten did not cross the road because it was too tired ."
KITTEN_TOKENS: tuple[str, ...] = tuple(KITTEN_SENTENCE.split())

# What a trained model would have to learn, written down by hand: the features a head of ours may ask for.
FEATURES: tuple[str, ...] = ("animate", "pronoun", "verb of it", "state")
_HAS_FEATURE = {
    "kitten": "animate",
    "it": "pronoun",
    "was": "verb of it",
    "tired": "state",
}

# What "it" must find, and under which name the relation goes: the key token of each.
RELATIONS: dict[str, str] = {
    "coreference": "kitten",
    "syntax": "was",
    "meaning": "tired",
}


def kitten_features() -> Float[Tensor, "seq features"]:
    """Return the running sentence as a table of hand-made features.

    Returns
    -------
    Tensor
        ``(13, 4)``: one row a token, one column a name in ``FEATURES``, 1 where the token has it and else 0.
    """
    features = torch.zeros(len(KITTEN_TOKENS), len(FEATURES))
    for token, feature in _HAS_FEATURE.items():
        features[KITTEN_TOKENS.index(token), FEATURES.index(feature)] = 1.0
    return features


def kitten_heads() -> tuple[MultiHeadAttention, Float[Tensor, "seq d_model"]]:
    """Return a module whose three heads find what "it" needs, and its input.

    Both are made by hand.

    In each head a pronoun asks, and one feature answers: animate, verb of it, state.
    The sentence is :func:`kitten_features` with two columns of 0, so that three heads of width 2 fit.

    Returns
    -------
    module : MultiHeadAttention
        ``d_model`` 6 and three heads; the projections of values and output are the identity.
    sentence : Tensor
        ``(13, 6)``.
    """
    sentence = nn.functional.pad(kitten_features(), (0, 2))
    module = MultiHeadAttention(d_model=6, num_heads=3, bias=False)
    with torch.no_grad():
        for W in (module.W_q, module.W_k):
            nn.init.zeros_(W.weight)
        for W in (module.W_v, module.W_o):
            nn.init.eye_(W.weight)
        for head, answers in enumerate(("animate", "verb of it", "state")):
            first = 2 * head  # of the head's two numbers
            module.W_q.weight[first, FEATURES.index("pronoun")] = 7.0
            module.W_k.weight[first, FEATURES.index(answers)] = 1.0
    return module, sentence
