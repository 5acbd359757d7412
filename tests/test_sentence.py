"""The running sentence and its hand-made features."""

import torch

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


def test_every_relation_has_a_word():
    from mha.words import WORDS

    assert all(
        f"relation_{name}" in table
        for name in sentence.RELATIONS
        for table in WORDS.values()
    )
