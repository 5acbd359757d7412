"""Masks: their values, how they combine, and what they refuse."""

import pytest
import torch

import mha


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


def test_pad_tokens_do_not_reach_real_ones():
    # hyunwoongko/transformer#40: the mask belongs on key columns, not on query rows.
    torch.manual_seed(0)
    module = mha.MultiHeadAttention(8, 2).eval()
    x = torch.randn(2, 4, 8)
    mask = mha.padding_mask(torch.tensor([2, 4]), 4)
    changed = x.clone()
    changed[0, 2:] += 10.0
    before, after = module(x, mask=mask)[0], module(changed, mask=mask)[0]
    torch.testing.assert_close(before[0, :2], after[0, :2], rtol=0, atol=0)
    torch.testing.assert_close(before[1], after[1], rtol=0, atol=0)


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


def test_all_four_pairs_of_kinds_agree():
    # pytorch#92554: a causal mask of floats with a padding mask of booleans, and the like.
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8)
    module = mha.MultiHeadAttention(8, 2)
    causal, padding = mha.causal_mask(3), mha.padding_mask(torch.tensor([2, 3]), 3)

    def as_float(mask):
        return torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)

    expected = module(x, mask=mha.combine_masks(causal, padding))[0]
    for first in (causal, as_float(causal)):
        for second in (padding, as_float(padding)):
            torch.testing.assert_close(
                module(x, mask=mha.combine_masks(first, second))[0], expected
            )


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
        ((torch.ones(2),), ValueError, r"masks\[0\]: expected two to four axes"),
        ((torch.ones(1, 1, 1, 2, 2),), ValueError, r"masks\[0\]: expected two to four axes"),
        ((torch.ones(2, 2), [[1]]), TypeError, r"masks\[1\]: expected a torch.Tensor"),
    ],
)  # fmt: skip
def test_combining_refuses(masks, error, message):
    with pytest.raises(error, match=message):
        mha.combine_masks(*masks)
