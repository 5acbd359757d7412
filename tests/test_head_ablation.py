"""Taking heads away: masking removes a head and nothing else, pruning equals masking, and what a trained model does."""

import copy
import re

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import mha
from mha.head_ablation import (
    ablation_effects,
    lengths_added,
    prune_heads,
    prune_model,
    removal_curve,
    similarity,
    without_heads,
)
from mha.head_roles import best_heads, hits, weight_on_right
from mha.minilm import MiniLM
from mha.resampling import rank_correlation
from mha.role_cases import find_cases
from mha.role_sentences import role_sentences, word_weights

LAYERS, HEADS, D_K, WIDTH = 2, 3, 4, 12
DIFFERENT = r"^model: expected as many heads in every block, got \[2, 3\]$"
TEXTS = ["The old dog slept.", "Rain fell on the zookeeper all day."]


@pytest.fixture
def small(trained):
    """Return a small model with random numbers; padding happens."""
    torch.manual_seed(0)
    sizes = {"d_model": WIDTH, "num_heads": HEADS, "num_blocks": LAYERS, "d_ff": 20}
    return MiniLM(trained.tokenizer, **sizes).eval()


def attention(seed=0, **options):
    torch.manual_seed(seed)
    module = mha.MultiHeadAttention(WIDTH, HEADS, **options)
    for parameter in module.parameters():
        nn.init.normal_(parameter)  # biases that are not 0
    return module


def masked(module, heads):
    """Return a copy with zeros in the columns of ``W_o`` of these heads."""
    module = copy.deepcopy(module)
    with torch.no_grad():
        for head in heads:
            module.W_o.weight[:, head * D_K : (head + 1) * D_K] = 0
    return module


# --- masking ---


def test_a_head_that_is_gone_adds_nothing(small):
    x, mask = torch.rand(2, 5, WIDTH), mha.padding_mask(torch.tensor([5, 3]), 5)
    whole = small.blocks[1].attention
    less = without_heads(small, [(1, 2)]).blocks[1].attention
    q, k, v = (mha.split_heads(W(x), HEADS) for W in (whole.W_q, whole.W_k, whole.W_v))
    heads = mha.scaled_dot_product_attention(q, k, v, mask)[0].clone()
    heads[:, 2] = 0
    assert_close(less(x, mask=mask)[0], whole.W_o(mha.combine_heads(heads)))
    assert torch.equal(less(x, mask=mask)[1], whole(x, mask=mask)[1]), "it still looks"


def test_masking_leaves_the_model_as_it_was_and_shares_all_else(small):
    before = {name: number.clone() for name, number in small.named_parameters()}
    less = without_heads(small, [(0, 1)])
    own = dict(less.named_parameters())
    for name, number in small.named_parameters():
        assert torch.equal(number, before[name]), name
        shared = own[name].data_ptr() == number.data_ptr()
        assert shared == (name != "blocks.0.attention.W_o.weight"), name
    assert less.tokenizer is small.tokenizer and not less.training


def test_without_all_heads_of_a_layer_only_the_bias_is_left(small):
    less = without_heads(small, [(0, head) for head in range(HEADS)])
    x = torch.rand(2, 5, WIDTH)
    output, _ = less.blocks[0].attention(x)
    assert_close(output, small.blocks[0].attention.W_o.bias.expand(2, 5, WIDTH))
    assert not torch.allclose(less.blocks[1].attention(x)[0], output), (
        "the other layer keeps its heads"
    )


def test_without_no_head_nothing_changes(small):
    assert_close(similarity(small, [], TEXTS), torch.ones(2))
    assert torch.equal(without_heads(small, []).encode(TEXTS), small.encode(TEXTS))


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ((LAYERS, 0), "layer in heads: expected a number from 0 to 1, got 2"),
        ((-1, 0), "layer in heads: expected a number from 0 to 1, got -1"),
        ((0, HEADS), "head in heads: expected a number from 0 to 2, got 3"),
        ((0, -1), "head in heads: expected a number from 0 to 2, got -1"),
    ],
)
def test_heads_that_are_not_there(small, head, message):
    for remove in (without_heads, prune_model):
        with pytest.raises(ValueError, match=message):
            remove(small, [(0, 0), head])
    with pytest.raises(ValueError, match=message):
        similarity(small, [head], TEXTS)
    with pytest.raises(ValueError, match=message.replace("in heads", "in order")):
        removal_curve(small, [(0, 0), head], [0, 1], TEXTS)  # also where it stays


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        (None, "heads: expected a list of (layer, head), got None"),
        (3, "heads: expected a list of (layer, head), got 3"),
        ((1, 0), "heads: expected a list of (layer, head), got 1 in it"),
        ([1], "heads: expected a list of (layer, head), got 1 in it"),
        ("01", "heads: expected a list of (layer, head), got '01'"),
        (["01"], "heads: expected a list of (layer, head), got '01' in it"),
        ([(0, 1, 2)], "heads: expected a list of (layer, head), got (0, 1, 2) in it"),
        ([(0.5, 1)], "layer in heads: expected an int, got 0.5 of type float"),
        ([(0, 1.5)], "head in heads: expected an int, got 1.5 of type float"),
        ([(True, 1)], "layer in heads: expected an int, got True of type bool"),
        ([(0, None)], "head in heads: expected an int, got None of type NoneType"),
    ],
)
def test_what_is_no_list_of_heads(small, heads, message):
    for remove in (without_heads, prune_model):
        with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
            remove(small, heads)
    with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
        similarity(small, heads, TEXTS)
    message = message.replace("heads:", "order:")
    with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
        removal_curve(small, heads, [0], TEXTS)


def test_a_pair_may_be_a_list_and_pairs_an_iterator(small):
    expected = without_heads(small, [(0, 1), (1, 2)]).encode(TEXTS)
    for heads in ([[0, 1], [1, 2]], iter([(0, 1), (1, 2)]), {(0, 1): 0, (1, 2): 0}):
        assert torch.equal(without_heads(small, heads).encode(TEXTS), expected)


# --- pruning ---


@pytest.mark.parametrize("gone", [[], [0], [2], [0, 2], [1, 2, 1]], ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"kdim": 5, "vdim": 7}], ids=str
)
def test_pruning_equals_masking(gone, options):
    module = attention(**options)
    pruned, expected = prune_heads(module, gone), masked(module, gone)
    x = torch.rand(2, 5, WIDTH)
    others = [
        torch.rand(2, 6, W.in_features) for W in (module.W_k, module.W_v)
    ] if "kdim" in options else []  # fmt: skip
    stay = [head for head in range(HEADS) if head not in gone]
    for need_weights in (True, False):
        output, weights = pruned(x, *others, is_causal=True, need_weights=need_weights)
        wanted, all_weights = expected(
            x, *others, is_causal=True, need_weights=need_weights
        )
        assert_close(output, wanted)
        if need_weights:
            assert_close(weights, all_weights[:, stay])


def test_a_pruned_module_is_smaller_and_the_whole_one_stays():
    module = attention()
    pruned = prune_heads(module, [1])
    assert pruned.num_heads == 2 and module.num_heads == HEADS
    shapes = {name: tuple(p.shape) for name, p in pruned.named_parameters()}
    assert shapes == {
        "W_q.weight": (8, WIDTH),
        "W_q.bias": (8,),
        "W_k.weight": (8, WIDTH),
        "W_k.bias": (8,),
        "W_v.weight": (8, WIDTH),
        "W_v.bias": (8,),
        "W_o.weight": (WIDTH, 8),
        "W_o.bias": (WIDTH,),
    }
    assert "in_features=12, out_features=8" in repr(pruned.W_q)
    assert "in_features=8, out_features=12" in repr(pruned.W_o)
    assert mha.count_parameters(module) == 4 * (WIDTH * WIDTH + WIDTH)
    with torch.no_grad():
        pruned.W_o.bias.zero_()
    assert module.W_o.bias.abs().sum() > 0, "they share no number"


def test_pruning_again_counts_the_heads_that_are_left():
    module = attention()
    twice = prune_heads(prune_heads(module, [0]), [1])  # the heads 0 and 2 are gone
    x = torch.rand(5, WIDTH)
    assert_close(twice(x)[0], masked(module, [0, 2])(x)[0])
    with pytest.raises(ValueError, match="expected a number from 0 to 0, got 1"):
        prune_heads(twice, [1])


@pytest.mark.parametrize(
    ("heads", "error", "message"),
    [
        (None, TypeError, "heads: expected a list of head numbers, got None"),
        (1, TypeError, "heads: expected a list of head numbers, got 1"),
        ("a", TypeError, "heads: expected a list of head numbers, got 'a'"),
        (["a"], TypeError, "head in heads: expected an int, got 'a' of type str"),
        ([1.5], TypeError, "head in heads: expected an int, got 1.5 of type float"),
        ([True], TypeError, "head in heads: expected an int, got True of type bool"),
        ([(0, 1)], TypeError, r"head in heads: expected an int, got \(0, 1\) of"),
        (torch.tensor([1]), TypeError, r"head in heads: expected an int, got tensor"),
        ([[0]], TypeError, r"head in heads: expected an int, got \[0\] of type list"),
        ([0, HEADS], ValueError, "head in heads: expected a number from 0 to 2, got 3"),
        ([-1], ValueError, "head in heads: expected a number from 0 to 2, got -1"),
    ],
    ids=str,
)
def test_what_cannot_be_pruned(heads, error, message):
    with pytest.raises(error, match=f"^{message}"):
        prune_heads(attention(), heads)


def test_a_pruned_module_can_be_trained():
    pruned = prune_heads(attention(), [0])
    pruned(torch.rand(2, 5, WIDTH))[0].sum().backward()
    assert all(parameter.grad is not None for parameter in pruned.parameters())


def test_one_head_must_stay(small):
    with pytest.raises(ValueError, match="at least one of 3 to stay, got all"):
        prune_heads(attention(), range(HEADS))
    with pytest.raises(ValueError, match="at least one of 3 to stay, got all"):
        prune_model(small, [(1, head) for head in range(HEADS)])


def test_a_pruned_model_equals_the_masked_one(small):
    gone = [(0, 1), (1, 0), (1, 2)]
    pruned = prune_model(small, gone)
    assert_close(pruned.encode(TEXTS), without_heads(small, gone).encode(TEXTS))
    saved = mha.count_parameters(small) - mha.count_parameters(pruned)
    assert saved == len(gone) * (4 * WIDTH * D_K + 3 * D_K)
    assert small.blocks[1].attention.num_heads == HEADS


def test_from_a_pruned_model_the_heads_that_are_left_can_go(small):
    pruned = prune_model(small, [(0, 1)])  # 2 heads in layer 0, 3 in layer 1
    expected = without_heads(small, [(0, 1), (0, 2), (1, 2)]).encode(TEXTS)
    gone = [(0, 1), (1, 2)]  # its head 1 was head 2
    assert_close(without_heads(pruned, gone).encode(TEXTS), expected)
    assert_close(prune_model(pruned, gone).encode(TEXTS), expected)
    assert pruned.blocks[0].attention.num_heads == 2, "it stays as it was"
    for remove in (without_heads, prune_model):
        with pytest.raises(ValueError, match="expected a number from 0 to 1, got 2"):
            remove(pruned, [(0, 2)])


def test_no_table_of_heads_where_layers_have_different_numbers_of_them(small):
    pruned = prune_model(small, [(0, 1)])
    for measure in (ablation_effects, lengths_added):
        with pytest.raises(ValueError, match=DIFFERENT):
            measure(pruned, TEXTS)
    with pytest.raises(ValueError, match=DIFFERENT):
        pruned.look(TEXTS[0])
    with pytest.raises(ValueError, match=DIFFERENT):
        pruned.weights(*pruned.tokenize(TEXTS))


def test_a_table_of_the_heads_that_are_left(small):
    gone = [(0, 1), (1, 0)]
    pruned, less = prune_model(small, gone), without_heads(small, gone)
    stay = torch.tensor([[0, 2], [1, 2]])
    for measure in (ablation_effects, lengths_added):
        expected = measure(less, TEXTS).gather(1, stay)
        assert_close(measure(pruned, TEXTS), expected, atol=1e-6, rtol=1e-5)
    weights = less.look(TEXTS[0])[1]
    left = torch.stack([weights[0, [0, 2]], weights[1, [1, 2]]])
    assert_close(pruned.look(TEXTS[0])[1], left)


# --- measures ---


def test_effects_are_those_of_heads_removed_one_by_one(small):
    effects = ablation_effects(small, TEXTS)
    assert effects.shape == (LAYERS, HEADS)
    for layer in range(LAYERS):
        for head in range(HEADS):
            expected = 1 - similarity(small, [(layer, head)], TEXTS).mean()
            assert_close(effects[layer, head], expected, atol=1e-6, rtol=0)


def test_a_curve_removes_the_first_heads_of_its_order(small):
    order = [(1, 0), (0, 2), (0, 1)]
    curve = removal_curve(small, order, [0, 1, 3], TEXTS)
    expected = [similarity(small, order[:n], TEXTS).mean().item() for n in (0, 1, 3)]
    assert curve == pytest.approx(expected) and curve[0] == pytest.approx(1)


@pytest.mark.parametrize(
    ("counts", "error", "message"),
    [
        ([0, -1], ValueError, "count in counts: expected a number from 0 to 2, got -1"),
        ([3], ValueError, "count in counts: expected a number from 0 to 2, got 3"),
        ([1.0], TypeError, "count in counts: expected an int, got 1.0 of type float"),
        (2, TypeError, "counts: expected a list of ints, got 2"),
        (None, TypeError, "counts: expected a list of ints, got None"),
    ],
)
def test_counts_that_an_order_does_not_have(small, counts, error, message):
    with pytest.raises(error, match=f"^{message}"):
        removal_curve(small, [(1, 0), (0, 2)], counts, TEXTS)


def test_lengths_are_those_of_what_a_head_adds(small):
    lengths = lengths_added(small, TEXTS)
    assert lengths.shape == (LAYERS, HEADS)
    added = []
    for text in TEXTS:  # alone, so without padding
        ids, _ = small.tokenize([text])
        x = small.embed(ids)
        whole, _ = small.blocks[0].attention(x)
        less, _ = without_heads(small, [(0, 1)]).blocks[0].attention(x)
        added.append((whole - less)[0].norm(dim=-1))
    assert_close(lengths[0, 1], torch.cat(added).mean(), atol=1e-6, rtol=1e-5)


def test_the_parts_of_all_heads_make_up_the_output(small):
    x = torch.rand(2, 5, WIDTH)
    parts = [
        without_heads(small, [(0, other) for other in range(HEADS) if other != head])
        .blocks[0]
        .attention(x)[0]
        for head in range(HEADS)
    ]
    bias = small.blocks[0].attention.W_o.bias
    whole, _ = small.blocks[0].attention(x)
    assert_close(sum(part - bias for part in parts) + bias, whole)


# --- what the trained model shows ---


@pytest.fixture(scope="module")
def texts():
    """Return 22 sentences of the book, and 21 others."""
    whole = [sentence for sentence in role_sentences() if sentence.variant != 1]
    return [[s.text for s in whole if s.block % 4 == rest] for rest in (0, 2)]


@pytest.fixture(scope="module")
def effects(trained, texts):
    return ablation_effects(trained, texts[0])


def test_most_heads_can_go_alone_and_the_last_layer_matters_most(effects):
    assert (effects < 0.01).sum() >= 58
    assert effects[5].min() > effects[:5].median()
    assert effects[5].mean() > 5 * effects[:5].mean()


def test_many_heads_can_go_together(trained, texts, effects):
    order = best_heads(-effects, effects.numel())  # the cheapest first
    twelve, forty, all_heads = removal_curve(trained, order, [12, 40, 72], texts[1])
    assert twelve > 0.98 and 0.85 < forty < 0.95
    assert all_heads > 0.4, "even without attention a bag of words is left"
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randperm(72, generator=generator).tolist()
    at_random = [divmod(number, 12) for number in drawn]
    assert removal_curve(trained, at_random, [12], texts[1])[0] < twelve - 0.02


def test_the_weight_says_little_and_the_length_much(trained, texts, effects):
    sentences = role_sentences()
    cases = find_cases(sentences, "delimiter")
    on_delimiters = weight_on_right(word_weights(trained, sentences), cases)
    on_words = 1 - on_delimiters.mean(dim=0)
    assert 0.1 < rank_correlation(on_words, effects) < 0.5
    assert rank_correlation(lengths_added(trained, texts[0]), effects) > 0.75


def test_two_heads_can_cancel_each_other(trained, texts):
    first, second, both = (
        1 - similarity(trained, gone, texts[1]).mean()
        for gone in ([(3, 3)], [(3, 4)], [(3, 3), (3, 4)])
    )
    assert both < first, "the second one mends what the first one's removal does"
    assert both < 0.7 * (first + second)


def test_without_the_head_that_has_a_role_others_still_have_it(trained):
    sentences = role_sentences()
    cases = find_cases(sentences, "previous")
    less = without_heads(trained, [(0, 2)])
    scores = hits(word_weights(less, sentences), cases).float().mean(dim=0)
    assert scores[2, 11] > 0.9 and scores[1, 9] > 0.9
