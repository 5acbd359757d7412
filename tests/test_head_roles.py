"""Detectors: right on weights whose scores are known, honest in what they choose, and what they find in the model."""

import pytest
import torch
from torch.testing import assert_close

from mha.head_roles import (
    best_heads,
    held_out,
    hits,
    pair_preferences,
    rule_hits,
    weight_on_right,
)
from mha.resampling import interval
from mha.role_cases import ROLES, SYNTAX, among_nouns, find_cases
from mha.role_sentences import (
    held_sentences,
    parse,
    role_sentences,
    word_weights,
)

TEXT = """
The kitten did not cross the road because it was too {tired|wide}.
    coreference: it > {kitten not road|road not kitten}
    subject: cross > kitten
    object: road > cross
    determiner: The > kitten, the > road
A small dog slept.
    subject: slept > dog
    determiner: A > dog
    adjective: small > dog
"""
SENTENCES = parse(TEXT)
KITTEN, CROSS, ROAD, IT = 2, 5, 7, 9  # places, where 0 is [CLS]


def peaked(sentences, targets):
    """Return weights of one layer: each head has 0.9 at ``targets[head](sentence, query)``, the rest spread."""
    longest = max(len(sentence.words) for sentence in sentences) + 2
    shape = (len(sentences), 1, len(targets), longest, longest)
    weights = torch.zeros(shape)
    for number, sentence in enumerate(sentences):
        own = len(sentence.words) + 2
        weights[number, :, :, :own, :own] = 0.1 / own
        for head, target in enumerate(targets):
            for query in range(own):
                key = min(max(target(sentence, query), 0), own - 1)
                weights[number, 0, head, query, key] += 0.9
    return weights


def perfect(role):
    """Return a target that is right for a role wherever a link of it asks."""

    def target(sentence, query):
        keys = {link.query + 1: link.key + 1 for link in sentence.links[role]}
        return keys.get(query, 0)

    return target


def before(_, query):
    return query - 1


def behind(_, query):
    return query + 1


def cls(_, query):
    return 0


def score(weights, sentences, role):
    return hits(weights, find_cases(sentences, role)).float().mean(dim=0)[0].tolist()


# --- what is asked ---


def test_cases_of_a_link():
    cases = find_cases(SENTENCES, "coreference")
    assert cases.sentence.tolist() == [0, 1] and cases.block.tolist() == [0, 0]
    assert cases.query.tolist() == [IT, IT]
    assert [row.nonzero().flatten().tolist() for row in cases.right] == [
        [KITTEN],
        [ROAD],
    ]
    words = list(range(1, 13))  # neither [CLS] nor the full stop nor [SEP]
    assert [row.nonzero().flatten().tolist() for row in cases.allowed] == [words, words]


def test_cases_of_neighbours_stay_among_the_words():
    (dog,) = SENTENCES[2:]
    for role, queries, step in (("previous", [2, 3, 4], -1), ("next", [1, 2, 3], 1)):
        cases = find_cases([dog], role)
        assert cases.query.tolist() == queries
        right = [row.nonzero().item() for row in cases.right]
        assert right == [query + step for query in queries]


def test_cases_of_the_delimiter():
    cases = find_cases(SENTENCES[2:], "delimiter")
    assert cases.query.tolist() == [1, 2, 3, 4]
    for row in cases.right:
        assert row.nonzero().flatten().tolist() == [0, 5, 6]
    assert cases.allowed.all()
    # In a batch, the shorter sentence's padding is never allowed.
    both = find_cases(SENTENCES, "delimiter")
    assert both.allowed[both.sentence == 2].sum(dim=1).tolist() == [7] * 4


def test_among_nouns_asks_among_the_nouns_of_the_link():
    cases = among_nouns(SENTENCES)
    for row in cases.allowed:
        assert row.nonzero().flatten().tolist() == [KITTEN, ROAD]
    assert torch.equal(cases.right, find_cases(SENTENCES, "coreference").right)


def test_roles_that_nothing_asks_for():
    with pytest.raises(ValueError, match=r"role: expected one of .*, got 'verb'"):
        find_cases(SENTENCES, "verb")
    with pytest.raises(ValueError, match="ask for 'coreference', got none"):
        find_cases(SENTENCES[2:], "coreference")
    with pytest.raises(ValueError, match="ask for 'next', got none"):
        find_cases([], "next")


# --- scores that are known ---


@pytest.mark.parametrize("role", ["coreference", *SYNTAX])
def test_a_head_made_for_a_role_has_all_its_hits(role):
    weights = peaked(SENTENCES, [perfect(role), cls])
    assert score(weights, SENTENCES, role)[0] == 1.0


def test_scores_of_heads_that_look_at_neighbours_and_delimiters():
    weights = peaked(SENTENCES, [before, behind, cls])
    assert score(weights, SENTENCES, "previous")[0] == 1.0
    assert score(weights, SENTENCES, "next")[1] == 1.0
    # The word before the first, and behind the last, is a delimiter.
    words = [12, 12, 4]
    assert score(weights, SENTENCES, "delimiter") == [
        pytest.approx(3 / sum(words)),
        pytest.approx(3 / sum(words)),
        1.0,
    ]
    # "slept > dog" is the one subject that stands just before its verb.
    assert score(weights, SENTENCES, "subject")[0] == pytest.approx(1 / 3)
    # "The kitten", "the road", twice each, but not "A small dog".
    assert score(weights, SENTENCES, "determiner")[1] == pytest.approx(4 / 5)


def test_a_delimiter_does_not_hide_what_a_head_finds_besides():
    weights = 0.1 * peaked(SENTENCES, [perfect("coreference")])
    weights[..., 0] += 0.9
    assert score(weights, SENTENCES, "coreference") == [1.0]
    assert score(weights, SENTENCES, "delimiter") == [1.0]
    on_right = weight_on_right(weights, find_cases(SENTENCES, "coreference"))
    assert_close(on_right, torch.full((2, 1, 1), 0.1 * (0.9 + 0.1 / 15)))


def test_looking_at_oneself_is_no_hit():
    weights = peaked(SENTENCES, [lambda _, query: query])
    for role in ("coreference", *SYNTAX, "previous", "next", "delimiter"):
        assert score(weights, SENTENCES, role) == [0.0], role


def test_a_head_that_always_prefers_one_noun_is_right_once_a_pair():
    weights = peaked(SENTENCES, [lambda *_: KITTEN, lambda *_: ROAD])
    found = hits(weights, among_nouns(SENTENCES))[:, 0]
    assert found.tolist() == [[True, False], [False, True]]
    preferences = pair_preferences(weights, SENTENCES)  # (1 pair, 2, 1 layer, 2 heads)
    assert preferences.shape == (1, 2, 1, 2)
    assert_close(preferences[:, 0], preferences[:, 1])
    assert (preferences[..., 0] > 0.9).all() and (preferences[..., 1] < 0.1).all()


def test_a_head_that_understands_moves_with_the_word():
    weights = peaked(SENTENCES, [perfect("coreference")])
    tired, wide = pair_preferences(weights, SENTENCES).flatten().tolist()
    assert tired > 0.9 and wide < 0.1


# --- rules ---


def test_rules_are_right_where_their_offset_leads():
    names, right = rule_hits(SENTENCES, "coreference")
    found = {name: right[:, place].tolist() for place, name in enumerate(names)}
    assert found["-7"] == [True, False]  # it > kitten
    assert found["-2"] == [False, True]  # it > road
    assert found["nearest noun"] == [False, True]
    assert found["first noun"] == [True, False]
    others = set(names) - {"-7", "-2", "nearest noun", "first noun"}
    assert not any(any(found[name]) for name in others)
    assert "+0" not in names


def test_rules_of_other_roles_are_offsets():
    names, right = rule_hits(SENTENCES, "determiner")
    share = dict(zip(names, right.float().mean(dim=0).tolist(), strict=True))
    assert share["+1"] == pytest.approx(0.8) and share["+2"] == pytest.approx(0.2)
    assert not {"nearest noun", "always [CLS]"} & set(names)
    assert all(row.any() for row in right)


def test_the_delimiter_has_a_rule_that_is_always_right():
    names, right = rule_hits(SENTENCES, "delimiter")
    assert right[:, names.index("always [CLS]")].all()


@pytest.mark.parametrize("role", ROLES)
def test_an_offset_is_a_head_that_looks_there(role):
    sentences = role_sentences()
    names, right = rule_hits(sentences, role)
    for offset in (-1, 1, -3):
        weights = peaked(sentences, [lambda _, query, k=offset: query + k])
        cases = find_cases(sentences, role)
        there = cases.query + offset
        # Where the offset leads to no word that may be looked at, a head takes another.
        inside = (there >= 0) & (there < cases.allowed.shape[1])
        there = there.clamp(0, cases.allowed.shape[1] - 1)
        inside &= cases.allowed.gather(1, there[:, None])[:, 0]
        rule = right[:, names.index(f"{offset:+d}")]
        assert torch.equal(hits(weights, cases)[inside, 0, 0], rule[inside])


# --- choosing and judging ---


def blocks_of(count):
    """Return sentences in blocks 0, 1, 2 …, each with two determiners."""
    lines = "The cat saw the{} dog.\n  determiner: The > cat, the > dog\n"
    return parse("\n".join(lines.format(" big" * (n % 3 == 0)) for n in range(count)))


def test_the_head_is_judged_on_sentences_that_did_not_choose_it():
    sentences = blocks_of(8)
    cases = find_cases(sentences, "determiner")
    weights = peaked(sentences, [perfect("determiner"), cls, before])
    # Head 1 is perfect on even blocks, head 2 on odd ones, both useless elsewhere; head 0 nowhere.
    for number, sentence in enumerate(sentences):
        right = weights[number, 0, 0].clone()
        for head in (0, 1, 2):
            weights[number, 0, head] = 0
            weights[number, 0, head, :, 0] = 1
        weights[number, 0, 2 if sentence.block % 2 else 1] = right
    found = held_out(weights, sentences, "determiner")
    assert found.heads == ((0, 1), (0, 2))
    assert found.head_hits.sum() == 0, "what chose a head also judged it"
    in_sample = hits(weights, cases)[:, 0].float().mean(dim=0)
    assert in_sample.tolist() == [0.0, 0.5, 0.5]


def test_a_head_that_is_right_everywhere_is_so_held_out():
    sentences = blocks_of(6)
    found = held_out(
        peaked(sentences, [behind, perfect("determiner")]), sentences, "determiner"
    )
    assert found.heads == ((0, 1), (0, 1)) and found.head_hits.all()
    assert found.rule == "+1"
    assert found.rule_hits.mean().item() == pytest.approx(10 / 12)


def test_halves_that_do_not_ask():
    sentences = blocks_of(3)
    weights = peaked(sentences, [cls])
    with pytest.raises(ValueError, match="'determiner' in even and in odd blocks"):
        held_out(weights[::2], sentences[::2], "determiner")


def test_the_best_heads_come_first():
    scores = torch.tensor([[0.1, 0.9, 0.3], [0.9, 0.0, 0.5]])
    assert best_heads(scores, 3) == [(0, 1), (1, 0), (1, 2)]
    assert best_heads(scores, 0) == []


@pytest.mark.parametrize(
    ("count", "error", "message"),
    [
        (-1, ValueError, "count: expected a number from 0 to 6, got -1"),
        (7, ValueError, "count: expected a number from 0 to 6, got 7"),
        (1.0, TypeError, "count: expected an int, got 1.0 of type float"),
    ],
)
def test_more_heads_than_there_are(count, error, message):
    with pytest.raises(error, match=f"^{message}"):
        best_heads(torch.rand(2, 3), count)


# --- weights and sentences that do not fit ---


@pytest.mark.parametrize("measure", [hits, weight_on_right])
def test_weights_of_other_sentences(measure):
    cases, weights = find_cases(SENTENCES, "subject"), peaked(SENTENCES, [cls])
    expected = r"weights: expected shape \(sentences, layers, heads, 15, 15\) with "
    for wrong in (
        weights[0],
        weights[None],
        weights[:2],
        weights[..., :-1],
        weights[..., :-1, :],
        torch.zeros(3, 1, 1, 16, 16),
    ):
        with pytest.raises(
            ValueError, match=f"^{expected}3 or more sentences"
        ) as error:
            measure(wrong, cases)
        assert str(error.value).endswith(f"got {tuple(wrong.shape)}")
    for wrong in (None, weights.tolist()):
        with pytest.raises(TypeError, match=r"^weights: expected a torch\.Tensor, got"):
            measure(wrong, cases)
    with pytest.raises(TypeError, match=r"^weights: expected a floating-point tensor"):
        measure(weights.long(), cases)


def test_preferences_without_a_pair():
    for few in (SENTENCES[2:], SENTENCES[1:], []):
        with pytest.raises(ValueError, match=r"^sentences: expected a minimal pair"):
            pair_preferences(peaked(SENTENCES, [cls])[: len(few)], few)


def test_preferences_with_weights_of_other_sentences():
    weights = peaked(SENTENCES, [cls])
    pair_preferences(weights, SENTENCES)
    for wrong in (weights[:2], torch.cat([weights, weights]), weights[..., :-1]):
        with pytest.raises(ValueError, match=r"^weights: expected shape") as error:
            pair_preferences(wrong, SENTENCES)
        assert str(error.value).endswith(f"got {tuple(wrong.shape)}")


@pytest.mark.parametrize(
    ("links", "count"), [("", 0), ("coreference: it > cat not dog, its > cat", 2)]
)
def test_preferences_need_one_pronoun_a_pair(links, count):
    pair = parse(f"The cat saw the dog, and it {{hid|hit}} its paw.\n    {links}")
    with pytest.raises(ValueError) as error:
        pair_preferences(peaked(pair, [cls]), pair)
    assert str(error.value) == (
        "sentences: expected one link of coreference in "
        f"'The cat saw the dog, and it hid its paw.', got {count}"
    )


# --- what they find in the trained model ---


@pytest.fixture(scope="module")
def sentences():
    return role_sentences()


@pytest.fixture(scope="module")
def weights(trained, sentences):
    return word_weights(trained, sentences)


def held_out_scores(weights, sentences, role):
    found = held_out(weights, sentences, role)
    gain = found.head_hits - found.rule_hits
    low, _ = interval(gain, find_cases(sentences, role).block)
    return found, found.head_hits.mean().item(), found.rule_hits.mean().item(), low


def test_neighbours_are_found(weights, sentences):
    for role, head in (("previous", (0, 2)), ("next", (1, 8))):
        found, score, _, _ = held_out_scores(weights, sentences, role)
        assert found.heads == (head, head) and score > 0.97


def test_most_heads_rest_on_delimiters(weights, sentences):
    cases = find_cases(sentences, "delimiter")
    on_delimiters = weight_on_right(weights, cases).mean(dim=0)
    assert 36 <= (on_delimiters > 0.5).sum() <= 44
    assert on_delimiters[4, 5] > 0.8
    assert (on_delimiters[0] < 0.5).all(), "none in the first layer"


def test_determiners_find_their_nouns_better_than_any_offset(weights, sentences):
    found, score, rule, low = held_out_scores(weights, sentences, "determiner")
    assert found.heads == ((2, 8), (2, 8)) and found.rule == "+1"
    assert score > 0.92 and rule < 0.87 and low > 0


def test_subjects_are_not_found(weights, sentences):
    """The best head is the one that looks at the word before."""
    found, score, rule, _ = held_out_scores(weights, sentences, "subject")
    assert found.heads == ((0, 2), (0, 2)) and found.rule == "-1"
    assert score == pytest.approx(rule)


def test_objects_and_adjectives_are_not_surely_found(weights, sentences):
    for role in ("object", "adjective"):
        _, score, rule, low = held_out_scores(weights, sentences, role)
        assert score >= rule and low <= 0


# Each role's best head on the sentences that chose it, and how often it is right on others, from the page.
ON_HELD_SENTENCES = {
    "coreference": ((2, 5), 0.56),
    "subject": ((0, 2), 0.77),
    "object": ((2, 0), 0.84),
    "adjective": ((3, 1), 0.80),
    "determiner": ((2, 8), 0.90),
    "previous": ((0, 2), 0.99),
    "next": ((1, 8), 0.98),
    "delimiter": ((1, 10), 1.00),
}


@pytest.mark.parametrize("role", ROLES)
def test_held_sentences_give_scores_in_line_with_the_page(
    trained, weights, sentences, role
):
    new = held_sentences()
    scores = hits(weights, find_cases(sentences, role)).float().mean(dim=0)
    head, on_held = ON_HELD_SENTENCES[role]
    assert best_heads(scores, 1) == [head]
    found = hits(word_weights(trained, new), find_cases(new, role)).float()
    assert found.mean(dim=0)[head].item() == pytest.approx(on_held, abs=0.02)
    assert abs(scores[head] - found.mean(dim=0)[head]) < 0.08


def test_a_head_finds_the_verbs_of_objects_where_no_offset_does(trained):
    new = held_sentences()
    found = hits(word_weights(trained, new), find_cases(new, "object"))[:, 2, 0]
    _, right = rule_hits(new, "object")
    best = right.float().mean(dim=0).argmax()
    gain = found.float() - right[:, best].float()
    low, _ = interval(gain, find_cases(new, "object").block)
    assert low > 0.1, "also if the rule is chosen on these very sentences"


def test_pronouns_find_their_nouns_in_plain_sentences_and_guess_in_minimal_pairs(
    weights, sentences
):
    cases = among_nouns(sentences)
    found = hits(weights, cases)[:, 3, 1].float()
    in_pair = torch.tensor([sentences[n].variant is not None for n in cases.sentence])
    assert found[~in_pair].mean() > 0.85
    assert 0.4 < found[in_pair].mean() < 0.6


def test_no_head_solves_the_minimal_pairs(weights, sentences):
    preferences = pair_preferences(weights, sentences)
    solved = (preferences[:, 0] > 0.5) & (preferences[:, 1] < 0.5)
    assert len(solved) == 30
    assert solved.sum(dim=0)[3, 1] <= 4
    assert solved.sum(dim=0).max() <= 9, "of 30, even in the best of 72 heads"
    # The first layer reads only word and place: another word far away changes nothing.
    assert_close(preferences[:, 0, 0], preferences[:, 1, 0])
