"""The book's running sentence, with hand-made features that make its three relations visible."""

import torch
from jaxtyping import Float
from torch import Tensor

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
