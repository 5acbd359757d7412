"""The running sentence and its hand-made features."""

import torch
from torch.testing import assert_close

from mha import sentence


def test_the_sentence_of_the_book():
    said = sentence.KITTEN_SENTENCE
    assert (
        said.replace(" .", ".")
        == "The kitten did not cross the road because it was too tired."
    )
    assert said.split() == list(sentence.KITTEN_TOKENS)
    assert len(sentence.KITTEN_TOKENS) == 13


def test_every_relation_of_it_points_at_one_token():
    for token in (*sentence.RELATIONS.values(), "it"):
        assert sentence.KITTEN_TOKENS.count(token) == 1
    assert len(set(sentence.RELATIONS.values())) == 3


def test_features_stand_where_they_are_said_to_stand():
    features = sentence.kitten_features()
    assert features.shape == (len(sentence.KITTEN_TOKENS), len(sentence.FEATURES))
    found = {
        (sentence.KITTEN_TOKENS[row], sentence.FEATURES[column])
        for row, column in features.nonzero().tolist()
    }
    assert found == {
        ("kitten", "animate"),
        ("it", "pronoun"),
        ("was", "verb of it"),
        ("tired", "state"),
    }
    assert features.unique().tolist() == [0.0, 1.0]
    assert features.sum(dim=0).tolist() == [1, 1, 1, 1]  # one token has each feature


def test_the_table_is_made_anew_each_time():
    sentence.kitten_features().zero_()
    assert sentence.kitten_features().any()
    assert sentence.kitten_features().dtype == torch.float32


def test_each_head_finds_one_thing_that_it_needs():
    module, x = sentence.kitten_heads()
    _, weights = module(x)
    it = sentence.KITTEN_TOKENS.index("it")
    assert weights.shape == (3, 13, 13)
    for head, word in enumerate(sentence.RELATIONS.values()):
        row = weights[head, it]
        assert sentence.KITTEN_TOKENS[row.argmax()] == word and row.max() > 0.9
        # All others, and every row of a token that asks nothing, are alike.
        rest = row[row < row.max()]
        assert_close(rest, ((1 - row.max()) / 12).expand(12))
    others = [place for place in range(13) if place != it]
    assert_close(weights[:, others], torch.full((3, 12, 13), 1 / 13))


def test_the_heads_values_and_output_are_the_inputs():
    module, x = sentence.kitten_heads()
    assert_close(x[:, :4], sentence.kitten_features(), rtol=0, atol=0)
    assert x.shape == (13, 6) and not x[:, 4:].any()
    for identity in (module.W_v, module.W_o):
        assert_close(identity.weight, torch.eye(6), rtol=0, atol=0)
        assert identity.bias is None
    for need_weights in (True, False):
        output, _ = module(x, need_weights=need_weights)
        # Head i mixes the columns 2i and 2i + 1 of the sentence, and nothing else is done to them.
        _, weights = module(x)
        mixed = [weights[head] @ x[:, 2 * head : 2 * head + 2] for head in range(3)]
        assert_close(output, torch.cat(mixed, dim=-1))


def test_the_heads_are_made_anew_each_time():
    module, x = sentence.kitten_heads()
    with torch.no_grad():
        module.W_q.weight.zero_()
        x.zero_()
    module, x = sentence.kitten_heads()
    assert module.W_q.weight.any() and x.any()


def test_every_relation_has_a_word():
    from mha.words import WORDS

    assert all(
        f"relation_{name}" in table
        for name in sentence.RELATIONS
        for table in WORDS.values()
    )
