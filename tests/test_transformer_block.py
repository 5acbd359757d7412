"""The block around attention: both orders of normalisation, and nothing that leaks."""

import pytest
import torch
from torch import nn

import mha


@pytest.mark.parametrize("norm_first", [True, False])
def test_it_is_pytorchs_encoder_layer(norm_first):
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(
        12, 3, 24, dropout=0.0, norm_first=norm_first, batch_first=True
    )
    block = mha.TransformerBlock(12, 3, 24, norm_first=norm_first)
    block.attention = mha.MultiHeadAttention.from_torch(theirs.self_attn)
    block.feed_forward[0].load_state_dict(theirs.linear1.state_dict())
    block.feed_forward[2].load_state_dict(theirs.linear2.state_dict())
    block.norm_1.load_state_dict(theirs.norm1.state_dict())
    block.norm_2.load_state_dict(theirs.norm2.state_dict())
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(block(x), theirs(x))
    keep = mha.causal_mask(5)
    torch.testing.assert_close(block(x, keep), theirs(x, src_mask=~keep))
    torch.testing.assert_close(block(x, is_causal=True), block(x, keep))


@pytest.mark.parametrize("norm_first", [True, False])
def test_causal_means_no_leak_and_full_reach(norm_first):
    torch.manual_seed(0)
    block = mha.TransformerBlock(12, 3, 24, norm_first=norm_first).double()
    x = torch.randn(1, 6, 12, dtype=torch.float64)
    reached = mha.influence(lambda x: block(x, is_causal=True), x)
    assert torch.equal(reached, mha.causal_mask(6))


def test_dropout_only_while_training():
    block, x = mha.TransformerBlock(12, 3, 24, dropout=0.5), torch.randn(2, 5, 12)
    assert not torch.allclose(block(x), block(x))
    block.eval()
    torch.testing.assert_close(block(x), block(x), rtol=0, atol=0)


def test_the_width_inside_is_checked():
    with pytest.raises(ValueError, match="d_ff: expected at least 1, got 0"):
        mha.TransformerBlock(12, 3, 0)
