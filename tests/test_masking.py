"""Masks: their values, how they combine, and what they refuse."""

import itertools

import pytest
import torch

import mha


def as_float(mask):
    return torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)


def test_padding_hides_the_keys_after_each_sentence():
    mask = mha.padding_mask(torch.tensor([2, 0, 3]), 3)
    assert mask.shape == (3, 1, 1, 3)
    assert mask[:, 0, 0].tolist() == [
        [True, True, False],
        [False, False, False],
        [True, True, True],
    ]


def test_padding_of_no_sentence_and_of_no_key():
    assert mha.padding_mask(torch.tensor([], dtype=torch.long), 3).shape == (0, 1, 1, 3)
    assert mha.padding_mask(torch.tensor([0, 0]), 0).shape == (2, 1, 1, 0)


@pytest.mark.parametrize(
    ("lengths", "key_len", "error", "message"),
    [
        (torch.tensor([4]), 3, ValueError, r"lengths: expected numbers from 0 to key_len 3, got \[4\]"),
        (torch.tensor([-1]), 3, ValueError, r"got \[-1\]"),
        (torch.tensor([[1]]), 3, ValueError, "lengths: expected shape"),
        (torch.tensor(1), 3, ValueError, "lengths: expected shape"),
        (torch.tensor([1.0]), 3, TypeError, "lengths: expected whole numbers"),
        (torch.tensor([True]), 3, TypeError, "lengths: expected whole numbers"),
        ([1, 2], 3, TypeError, "lengths: expected a torch.Tensor"),
        (torch.tensor([1]), 3.0, TypeError, "key_len: expected an int"),
    ],
)  # fmt: skip
def test_padding_refuses(lengths, key_len, error, message):
    with pytest.raises(error, match=message):
        mha.padding_mask(lengths, key_len)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kind", [torch.clone, as_float])
def test_pad_tokens_do_not_reach_real_ones(kind, is_causal, need_weights):
    # hyunwoongko/transformer#40: the mask belongs on key columns, not on query rows.
    torch.manual_seed(0)
    module = mha.MultiHeadAttention(8, 2)
    x = torch.randn(2, 4, 8)
    mask = kind(mha.padding_mask(torch.tensor([2, 4]), 4))
    changed = x.clone()
    changed[0, 2:] += 10.0
    for training in (True, False):
        module.train(training)
        before, after = (
            module(tokens, mask=mask, is_causal=is_causal, need_weights=need_weights)[0]
            for tokens in (x, changed)
        )
        torch.testing.assert_close(before[0, :2], after[0, :2], rtol=0, atol=0)
        torch.testing.assert_close(before[1], after[1], rtol=0, atol=0)
        assert not torch.isclose(before[0, 2:], after[0, 2:]).all(dim=-1).any()


@pytest.mark.parametrize("is_causal", [False, True])
def test_padded_queries_see_the_real_keys(is_causal):
    # hyunwoongko/transformer#40, harvardnlp/annotated-transformer#137: ids [5, 7, 0, 0], where 0 is padding.
    torch.manual_seed(0)
    mask = mha.padding_mask(torch.tensor([2]), 4)
    _, weights = mha.MultiHeadAttention(8, 2)(
        torch.randn(1, 4, 8), mask=mask, is_causal=is_causal
    )
    first = [1, 0, 0, 0] if is_causal else [1, 1, 0, 0]
    assert (weights > 0).int().tolist() == [[[first, *[[1, 1, 0, 0]] * 3]] * 2]


def test_booleans_are_joined_by_and():
    causal, padding = mha.causal_mask(3), mha.padding_mask(torch.tensor([2, 3]), 3)
    both = mha.combine_masks(causal, padding)
    assert both.shape == (2, 1, 3, 3)
    assert both[0, 0].int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 0]]
    assert both[1, 0].int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_floats_are_added_and_false_becomes_minus_infinity():
    bias = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    torch.testing.assert_close(mha.combine_masks(bias, bias), 2 * bias)
    mixed = mha.combine_masks(torch.tensor([[True, False], [True, True]]), bias)
    torch.testing.assert_close(mixed, torch.tensor([[1.0, -torch.inf], [3.0, 4.0]]))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16]
)
def test_all_four_pairs_of_kinds_agree(dtype):
    # pytorch#92554: a causal mask of floats with a padding mask of booleans, and the like.
    torch.manual_seed(0)
    module, x = mha.MultiHeadAttention(8, 2).to(dtype), torch.randn(2, 3, 8).to(dtype)
    causal, padding = mha.causal_mask(3), mha.padding_mask(torch.tensor([2, 3]), 3)
    for need_weights in (True, False):
        options = {"need_weights": need_weights}
        expected, _ = module(x, mask=mha.combine_masks(causal, padding), **options)
        pairs = itertools.product(
            (causal, as_float(causal).to(dtype)), (padding, as_float(padding).to(dtype))
        )
        for first, second in pairs:
            both = mha.combine_masks(first, second)
            output, weights = module(x, mask=both, **options)
            torch.testing.assert_close(output, expected)
            if need_weights:
                assert (weights[0, ..., 2] == 0).all()
                assert (weights[1, :, 2, 2] > 0).all()
        # The flag for the causal mask, and the padding mask alone.
        for second in (padding, as_float(padding)):
            output, _ = module(x, mask=second, is_causal=True, **options)
            torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_mask_of_zeros_hides_nothing_and_padding_beside_it_does(dtype):
    # pytorch#92554, mlverse/torch#1205: the padding was ignored, or the result of another dtype.
    torch.manual_seed(0)
    padding = mha.padding_mask(torch.tensor([2, 3]), 3)
    mask = mha.combine_masks(torch.zeros(3, 3, dtype=dtype), padding)
    assert mask.dtype == dtype
    expected = as_float(padding.expand(2, 1, 3, 3)).to(dtype)
    torch.testing.assert_close(mask, expected, rtol=0, atol=0)


def test_two_most_negative_floats_make_minus_infinity_and_hide():
    # NVIDIA/apex#1052, facebookresearch/fairseq#3575: in float16 they overflow, which must not become NaN.
    torch.manual_seed(0)
    keep = mha.causal_mask(3)
    lowest = torch.zeros(3, 3, dtype=torch.float16).masked_fill(
        ~keep, torch.finfo(torch.float16).min
    )
    both = mha.combine_masks(lowest, lowest)
    torch.testing.assert_close(both, as_float(keep).half(), rtol=0, atol=0)
    module = mha.MultiHeadAttention(8, 2).half()
    x = torch.randn(2, 3, 8).half()
    for need_weights in (True, False):
        expected, _ = module(x, mask=keep, need_weights=need_weights)
        for mask in (lowest, both):
            output, _ = module(x, mask=mask, need_weights=need_weights)
            torch.testing.assert_close(output, expected)


def test_three_axes_are_batch_query_key_beside_four():
    three = torch.ones(2, 3, 3).bool()
    three[0, 0, 1] = False
    four = torch.ones(2, 2, 3, 3).bool()  # batch == heads
    combined = mha.combine_masks(three, four)
    assert not combined[0, :, 0, 1].any() and combined[1].all()


@pytest.mark.parametrize(
    ("masks", "error", "message"),
    [
        ((), ValueError, "masks: expected at least one"),
        ((torch.ones(2, 2),) * 1 + (torch.ones(3, 3),), ValueError, "shapes that broadcast"),
        ((torch.ones(2, 2).int(),), TypeError, r"masks\[0\]: expected a boolean mask"),
        ((torch.ones(2),), ValueError, r"masks\[0\]: expected 2 to 4 axes"),
        ((torch.ones(1, 1, 1, 2, 2),), ValueError, r"masks\[0\]: expected 2 to 4 axes"),
        ((torch.ones(2, 2), [[1]]), TypeError, r"masks\[1\]: expected a torch.Tensor"),
    ],
)  # fmt: skip
def test_combining_refuses(masks, error, message):
    with pytest.raises(error, match=message):
        mha.combine_masks(*masks)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.uint16])
def test_lengths_may_be_of_a_type_that_the_number_of_keys_does_not_fit(dtype):
    mask = mha.padding_mask(torch.tensor([100, 3]).to(dtype), 300)
    assert mask.sum(dim=-1).flatten().tolist() == [100, 3]


def test_padding_compiles_exports_and_has_a_shape_without_numbers():
    lengths = torch.tensor([2, 0, 5])

    class Padding(torch.nn.Module):
        def forward(self, lengths):
            return mha.padding_mask(lengths, 5)

    compiled = torch.compile(Padding(), fullgraph=True, backend="aot_eager")
    exported = torch.export.export(Padding(), (lengths,)).module()
    for result in (compiled(lengths), exported(lengths)):
        assert result.equal(mha.padding_mask(lengths, 5))
    assert mha.padding_mask(lengths.to("meta"), 5).shape == (3, 1, 1, 5)
