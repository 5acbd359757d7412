"""Heads that share keys and values: one oracle for every path, multi-head attention as a second one, and decoding."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils import prune

import mha
from mha import grouped_query
from mha.fast_path import attend_in_groups, attend_without_weights
from mha.kv_sharing import decode_in_chunks
from mha.profiling import attention_backend, peak_memory

# All different, or a swapped axis would not show: 3 kv heads for groups of 5 heads.
B, G, GROUP, L, D = 2, 3, 5, 7, 11
H, E = G * GROUP, G * GROUP * D
CHUNKS = [[1] * 7, [4, 3], [3, 1, 3], [7]]
MODES = (torch.enable_grad, torch.no_grad, torch.inference_mode)


def module(kv_heads=G, **options):
    torch.manual_seed(0)
    return mha.GroupedQueryAttention(E, H, kv_heads, **options)


def inputs(dtype=torch.float32, batch=B, seq=L):
    torch.manual_seed(1)
    return torch.randn(batch, seq, E).to(dtype)


def masks():
    """Yield every kind of mask in every shape; each leaves one query of sentence 0 without a key."""
    torch.manual_seed(2)
    for shape in ((L, L), (B, L, L), (B, 1, L, L), (B, H, L, L), (1, H, L, L), (B, 1, 1, L)):  # fmt: skip
        keep = torch.rand(shape) > 0.4
        keep[(0,) * (len(shape) - 1)] = False
        yield f"bool{shape}", keep
        yield f"inf{shape}", torch.zeros(shape).masked_fill(~keep, -torch.inf)
        yield f"bias{shape}", torch.randn(shape)


MASKS = dict(masks()) | {"none": None}
PADDING = mha.padding_mask(torch.tensor([L, 4]), L)
DECODING_MASKS = {
    "none": None,
    "padding": PADDING,
    **{name: MASKS[name] for name in (f"bool{(L, L)}", f"bias{(B, H, L, L)}")},
}


def every_setting(attention):
    """Yield ``need_weights`` and how gradients are treated, in training and in eval."""
    for training in (True, False):
        attention.train(training)
        yield from itertools.product((True, False), MODES)


def by_loop(attention, x, mask, is_causal):
    """Head by head and query by query in float64, written for this test alone."""
    state = {name: tensor.double() for name, tensor in attention.state_dict().items()}
    x = x.double()
    q, k, v = (x @ state[f"W_{p}.weight"].T + state[f"W_{p}.bias"] for p in "qkv")
    width, group = attention.d_k, attention.num_heads // attention.num_kv_heads
    outputs = torch.zeros(*x.shape, dtype=torch.float64)
    shape = len(x), attention.num_heads, x.shape[1], x.shape[1]
    all_weights = torch.zeros(shape, dtype=torch.float64)
    keep = torch.ones(shape).bool()
    bias = torch.zeros(shape, dtype=torch.float64)
    if mask is not None:
        mask = mask[:, None] if mask.dim() == 3 else mask
        if mask.dtype == torch.bool:
            keep &= mask
        else:
            bias += mask
    if is_causal:
        keep &= torch.arange(x.shape[1]) <= torch.arange(x.shape[1])[:, None]
    for item, head, row in itertools.product(*map(range, shape[:3])):
        mine = slice(head * width, (head + 1) * width)
        shared = slice(head // group * width, (head // group + 1) * width)
        scores = k[item, :, shared] @ q[item, row, mine] / width**0.5
        scores = scores + bias[item, head, row]
        scores[~keep[item, head, row]] = -torch.inf
        if (scores > -torch.inf).any():
            weights = scores.softmax(dim=0)
            outputs[item, row, mine] = weights @ v[item, :, shared]
            all_weights[item, head, row] = weights
    return outputs @ state["W_o.weight"].T + state["W_o.bias"], all_weights


def decode(attention, x, chunks, mask=None, **options):
    """Decode with a cache, each chunk with its rows of the mask and the keys up to its end."""
    cache = attention.new_cache(1 if x.dim() == 2 else len(x), x.shape[-2])
    outputs, all_weights, end = [], [], 0
    for chunk in chunks:
        start, end = end, end + chunk
        part = None
        if mask is not None:
            rows = slice(start, end) if mask.shape[-2] > 1 else slice(None)
            part = mask[..., rows, :end]
        output, weights = attention(x[..., start:end, :], part, cache=cache, **options)
        outputs.append(output)
        all_weights.append(weights)
        assert cache.length == end
    return torch.cat(outputs, dim=-2), all_weights


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_every_path_gives_what_a_loop_gives(name, is_causal):
    attention, x = module(), inputs()
    expected, expected_weights = by_loop(attention, x, MASKS[name], is_causal)
    for need_weights, mode in every_setting(attention):
        with mode():
            output, weights = attention(
                x, MASKS[name], is_causal=is_causal, need_weights=need_weights
            )
        torch.testing.assert_close(output, expected.float(), rtol=1e-4, atol=1e-5)
        assert (weights is not None) == need_weights
        if need_weights:
            torch.testing.assert_close(weights, expected_weights.float())
            assert (weights[expected_weights == 0] == 0).all()  # exactly


@pytest.mark.parametrize("kv_heads", [1, 3, 5, 15])
def test_all_numbers_of_kv_heads(kv_heads):
    # onnx#7274: with 1 kv head or as many as heads, a wrong order of repeating is hidden.
    attention, x = module(kv_heads), inputs()
    expected, _ = by_loop(attention, x, PADDING, True)
    for need_weights in (True, False):
        output, _ = attention(x, PADDING, need_weights=need_weights)
        torch.testing.assert_close(output, expected.float(), rtol=1e-4, atol=1e-5)


def test_it_is_causal_and_without_weights_unless_told_otherwise():
    attention, x = module(), inputs()
    output, weights = attention(x)
    assert weights is None
    assert torch.equal(output, attention(x, is_causal=True, need_weights=False)[0])
    assert mha.influence(lambda x: attention(x)[0], x).equal(torch.ones(L, L).tril() > 0)  # fmt: skip


# --- which head reads which ---


def constant_values(kv_heads, values):
    """Return attention whose kv heads have a constant each as their values, whatever the input."""
    attention = mha.GroupedQueryAttention(4, 4, kv_heads)
    with torch.no_grad():
        attention.W_v.weight.zero_()
        attention.W_v.bias.copy_(torch.tensor(values))
        attention.W_o.weight.copy_(torch.eye(4))
        attention.W_o.bias.zero_()
    return attention


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("length", [1, 3])  # one token takes another way
def test_four_heads_read_10_10_20_20(need_weights, length):
    # onnx#7274, ONNXim#34, jxiw/M1#4: repeat gives 10, 20, 10, 20.
    attention, x = constant_values(2, [10.0, 20.0]), torch.randn(1, length, 4)
    output, _ = attention(x, need_weights=need_weights)
    expected = torch.tensor([10.0, 10.0, 20.0, 20.0]).expand(1, length, 4)
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_order_is_that_of_pytorchs_flag(is_causal):
    torch.manual_seed(0)
    query, key, value = torch.randn(B, H, L, D), *torch.randn(2, B, G, L, D)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=is_causal, enable_gqa=True
    )
    output = attend_in_groups(query, key, value, is_causal=is_causal)
    torch.testing.assert_close(output, expected)


# --- multi-head attention ---


@pytest.mark.parametrize("bias", [True, False])
def test_with_as_many_kv_heads_it_is_multi_head_attention(bias):
    torch.manual_seed(0)
    plain = mha.MultiHeadAttention(E, H, bias=bias)
    attention = mha.GroupedQueryAttention(E, H, H, bias=bias)
    attention.load_state_dict(plain.state_dict())  # as it is, strictly
    x = inputs()
    for name, is_causal in itertools.product(MASKS, (False, True)):
        for need_weights in (True, False):
            options = {"is_causal": is_causal, "need_weights": need_weights}
            expected, expected_weights = plain(x, mask=MASKS[name], **options)
            output, weights = attention(x, MASKS[name], **options)
            torch.testing.assert_close(output, expected)
            torch.testing.assert_close(weights, expected_weights)


def tied(attention):
    """Return multi-head attention whose heads have copies of what theirs share."""
    plain = mha.MultiHeadAttention(E, H).to(attention.W_q.weight.dtype)
    state = attention.state_dict()
    for name in ("W_k.weight", "W_k.bias", "W_v.weight", "W_v.bias"):
        heads = state[name].unflatten(0, (attention.num_kv_heads, D))
        group = H // attention.num_kv_heads
        state[name] = heads.repeat_interleave(group, dim=0).flatten(0, 1)
    plain.load_state_dict(state)
    return plain


@pytest.mark.parametrize("kv_heads", [1, 3, 5, 15])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("name", ["none", "padding", f"bias{(B, H, L, L)}"])
def test_gradients_are_those_of_tied_heads(name, need_weights, kv_heads):
    attention = module(kv_heads).double()
    mask = PADDING if name == "padding" else MASKS[name]
    gradients = []
    for model in (tied(attention), attention):
        x = inputs(torch.float64).requires_grad_()
        options = {"is_causal": True, "need_weights": need_weights}
        model(x, mask=mask, **options)[0].square().sum().backward()
        found = {name: p.grad for name, p in model.named_parameters()}
        gradients.append(found | {"x": x.grad})
    expected, found = gradients
    for name in ("W_k.weight", "W_k.bias", "W_v.weight", "W_v.bias"):
        # What a head is shared by adds up.
        groups = expected[name].unflatten(0, (kv_heads, H // kv_heads, D))
        expected[name] = groups.sum(dim=1).flatten(0, 1)
    torch.testing.assert_close(found, expected)


# --- decoding ---


@pytest.mark.parametrize(
    ("dtype", "close"),
    [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.03)],
)
@pytest.mark.parametrize("name", DECODING_MASKS)
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_decoding_in_chunks_equals_the_whole(chunks, name, dtype, close):
    # pytorch#144858, Dao-AILab/flash-attention#517: a causal mask that is aligned to the start.
    attention, x = module().to(dtype), inputs(dtype)
    mask = DECODING_MASKS[name]
    whole, whole_weights = attention(x, mask, need_weights=True)
    for need_weights, mode in every_setting(attention):
        with mode():
            output, parts = decode(attention, x, chunks, mask, need_weights=need_weights)  # fmt: skip
        torch.testing.assert_close(output, whole, rtol=close, atol=close)
        if need_weights:
            ends = itertools.accumulate(chunks)
            for end, chunk, part in zip(ends, chunks, parts, strict=True):
                expected = whole_weights[:, :, end - chunk : end, :end]
                torch.testing.assert_close(part, expected, rtol=close, atol=close)


@pytest.mark.parametrize("kv_heads", [1, 3, 15])
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_decoding_with_all_numbers_of_kv_heads(chunks, kv_heads):
    attention, x = module(kv_heads).double(), inputs(torch.float64)
    whole, _ = attention(x)
    cache = attention.new_cache(B, L)
    for need_weights in (True, False):
        cache.reset()
        options = {"need_weights": need_weights}
        output = decode_in_chunks(attention, x, chunks, cache, **options)
        torch.testing.assert_close(output, whole)
    # Only the kv heads are stored, and nothing else: of each token a key and a value.
    assert cache.nbytes == B * L * 2 * kv_heads * D * 8
    keys, _ = cache.append(*torch.ones(2, B, kv_heads, 0, D).double())
    expected = attention.W_k(x).unflatten(-1, (kv_heads, D)).transpose(1, 2)
    torch.testing.assert_close(keys, expected)


def test_without_is_causal_new_tokens_see_each_other():
    attention, x = module(), inputs()
    output, _ = decode(attention, x, [4, 3], is_causal=False)
    torch.testing.assert_close(output[:, 4:], attention(x, is_causal=False)[0][:, 4:])
    four = attention(x[:, :4], is_causal=False)[0]
    torch.testing.assert_close(output[:, :4], four)


def test_many_tokens_after_many_others():
    # More than the rows of a mask that are made at a time, and more than a quarter of the keys.
    attention, x = module(), inputs(batch=1, seq=400)
    whole, _ = attention(x)
    for chunks in ([330, 70], [200, 200], [300, 99, 1]):
        torch.testing.assert_close(decode(attention, x, chunks)[0], whole)


@pytest.mark.parametrize("need_weights", [True, False])
def test_after_a_reset_a_second_prompt_is_a_first_one(need_weights):
    # awslabs/keys_values#45, #140; einygpt#2.
    attention, prompts = module(), torch.randn(2, B, 5, E)
    used = attention.new_cache(B, L)
    attention(torch.full((B, L, E), torch.nan), cache=used)
    used.reset()
    for prompt in prompts:
        fresh = attention.new_cache(B, L)
        for part in prompt.split([2, 1, 2], dim=1):
            options = {"need_weights": need_weights}
            expected, _ = attention(part, cache=fresh, **options)
            assert torch.equal(attention(part, cache=used, **options)[0], expected)
        used.reset()


@pytest.mark.parametrize("need_weights", [True, False])
def test_a_call_that_fails_leaves_the_cache_as_it_was(need_weights):
    attention, x = module(), inputs()
    whole, _ = attention(x)
    cache = attention.new_cache(B, L)
    attention(x[:, :4], cache=cache)
    options = {"cache": cache, "need_weights": need_weights}
    # swarmllm#31: past the end. The mask has to reach over all seven keys.
    with pytest.raises(ValueError, match=r"cache: expected room for 4 .* length 4"):
        attention(x[:, :4], **options)
    with pytest.raises(ValueError, match=r"mask: expected shape \(3, 7\)"):
        attention(x[:, 4:], torch.ones(3, 3).bool(), **options)
    with pytest.raises(TypeError, match="mask: expected a boolean mask"):
        attention(x[:, 4:], torch.ones(3, 7).int(), **options)
    with pytest.raises(ValueError, match=r"cache: .* batch 1, 3 kv heads .* got KVCache\(2, 3, 7"):  # fmt: skip
        attention(x[:1, 4:], **options)
    assert cache.length == 4
    torch.testing.assert_close(attention(x[:, 4:], **options)[0], whole[:, 4:])


def test_caches_that_do_not_fit():
    attention, x = module(), inputs()
    with pytest.raises(
        ValueError,
        match=r"cache: expected one of .* batch 2, 3 kv heads of width 11, got KVCache\(2, 15, 7",
    ):
        attention(x, cache=mha.KVCache(B, H, L, D))
    with pytest.raises(TypeError, match=r"cache: expected torch.float32, .* got .*torch.float64"):  # fmt: skip
        attention(x, cache=mha.KVCache(B, G, L, D, dtype=torch.float64))
    with pytest.raises(
        ValueError, match=r"cache: expected to be on cpu, got KVCache\(.*device='meta'"
    ):
        attention(x, cache=mha.KVCache(B, G, L, D, device="meta"))
    with pytest.raises(TypeError, match="cache: expected a KVCache, got tuple"):
        attention(x, cache=(x, x))


@pytest.mark.parametrize("need_weights", [True, False])
def test_gradients_of_two_calls_are_those_of_each_alone(need_weights):
    """What one call has read is not changed under it by the next, nor by another prompt."""
    attention, x = module().double(), inputs(torch.float64)
    options = {"need_weights": need_weights}

    def gradients(outputs):
        total = sum(output.square().sum() for output in outputs)
        return torch.autograd.grad(total, [attention.W_q.weight, attention.W_o.weight])

    cache, whole, alone = attention.new_cache(B, L), [], []
    whole.append(attention(x[:, :4], cache=cache, **options)[0])
    whole.append(attention(x[:, 4:], cache=cache, **options)[0])
    cache.reset()
    whole.append(attention(2 * x, cache=cache, **options)[0])
    for chunk, before in ((x[:, :4], x[:, :0]), (x[:, 4:], x[:, :4]), (2 * x, x[:, :0])):  # fmt: skip
        cache = attention.new_cache(B, L)
        with torch.no_grad():
            attention(before, cache=cache, **options)
        alone.append(gradients([attention(chunk, cache=cache, **options)[0]]))
    expected = [sum(parts) for parts in zip(*alone, strict=True)]
    torch.testing.assert_close(list(gradients(whole)), expected)


def test_without_gradients_nothing_is_copied(monkeypatch):
    attention, x = module(), inputs()
    cache, read = attention.new_cache(B, L), []

    def noting(query, key, *others, **options):
        read.append(key)
        return attend_in_groups(query, key, *others, **options)

    monkeypatch.setattr(grouped_query, "attend_in_groups", noting)
    with torch.no_grad():
        attention(x, cache=cache)
    assert read[0].data_ptr() == cache._keys.data_ptr()


def test_under_autocast_a_cache_is_of_autocasts_dtype():
    attention, x = module(), inputs()
    whole, _ = attention(x)
    with torch.autocast("cpu", torch.bfloat16):
        cache = attention.new_cache(B, L)
        output = decode_in_chunks(attention, x, [3, 1, 3], cache)
    torch.testing.assert_close(output.float(), whole, rtol=0.03, atol=0.03)
    assert cache._keys.dtype == torch.bfloat16
    assert attention.new_cache(B, L)._keys.dtype == torch.float32


def test_a_new_cache_is_like_the_module():
    cache = module().to("meta", torch.float16).new_cache(B, L)
    keys, values = cache.append(*torch.ones(2, B, G, 4, D, device="meta").half())
    assert keys.dtype == values.dtype == torch.float16 and keys.device.type == "meta"
    assert cache.max_len == L and cache.length == 4


def test_one_sentence_without_a_batch():
    attention, x = module(), inputs()
    for need_weights in (True, False):
        output, weights = attention(x, need_weights=need_weights)
        alone, alone_weights = attention(x[0], need_weights=need_weights)
        torch.testing.assert_close(alone, output[0])
        if need_weights:
            torch.testing.assert_close(alone_weights, weights[0])
        parts, _ = decode(attention, x[0], [3, 1, 3], need_weights=need_weights)
        torch.testing.assert_close(parts, output[0])


def test_a_cache_takes_no_gradient_but_the_query_does():
    attention, x = module(), inputs()
    output, _ = decode(attention, x, [7])
    output.square().sum().backward()
    assert attention.W_k.weight.grad is None and attention.W_v.weight.grad is None
    expected = module()
    q, k, v = (
        mha.split_heads(W(x), heads)
        for W, heads in ((expected.W_q, H), (expected.W_k, G), (expected.W_v, G))
    )
    heads = attend_in_groups(q, k.detach(), v.detach(), is_causal=True)
    expected.W_o(mha.combine_heads(heads)).square().sum().backward()
    torch.testing.assert_close(attention.W_q.weight.grad, expected.W_q.weight.grad)


# --- masks, types, sizes ---


def test_a_query_without_keys_gets_the_output_bias():
    attention, x = module(), inputs()
    keep = mha.padding_mask(torch.tensor([4, 0]), L)
    infinite = torch.zeros(keep.shape).masked_fill(~keep, -torch.inf)
    for mask, is_causal in itertools.product((keep, infinite), (False, True)):
        for need_weights, mode in every_setting(attention):
            options = {"is_causal": is_causal, "need_weights": need_weights}
            with mode():
                output, weights = attention(x, mask, **options)
                steps, _ = decode(attention, x, [1] * L, mask, **options)
            bias = attention.W_o.bias.expand(L, E)
            assert torch.equal(output[1], bias) and torch.equal(steps[1], bias)
            assert weights is None or (weights[1] == 0).all()


@pytest.mark.parametrize("name", MASKS)
def test_both_paths_have_the_same_finite_gradients(name):
    # pytorch#41508: the forward pass looks clean and the gradients are NaN.
    gradients = []
    for need_weights in (True, False):
        attention, x = module(), inputs().requires_grad_()
        mask = MASKS[name]
        attention(x, mask, need_weights=need_weights)[0].square().sum().backward()
        gradients.append([x.grad, *(p.grad for p in attention.parameters())])
    for readable, fast in zip(*gradients, strict=True):
        assert readable.isfinite().all() and fast.isfinite().all()
        torch.testing.assert_close(readable, fast, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MASKS)
def test_half_and_double_types(name, dtype):
    attention, x = module(), inputs()
    expected, _ = attention(x, MASKS[name])
    close = 0.05 if dtype.itemsize == 2 else 1e-5
    attention = attention.to(dtype)
    for need_weights in (True, False):
        output, weights = attention(x.to(dtype), MASKS[name], need_weights=need_weights)
        assert output.dtype == dtype
        torch.testing.assert_close(output.float(), expected, rtol=close, atol=close)
        assert weights is None or weights.dtype == dtype


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("length", [1, L])
def test_sentences_do_not_mix(need_weights, length):
    # The fast path lays sentences and kv heads into one axis.
    attention, x = module(), inputs(seq=length).requires_grad_()
    keep = torch.ones(B, length, length).bool()
    keep[1, :, 0] = length == 1
    free, _ = attention(x, is_causal=False, need_weights=need_weights)
    output, _ = attention(x, keep, is_causal=False, need_weights=need_weights)
    torch.testing.assert_close(output[0], free[0])
    if length > 1:
        assert not torch.isclose(output[1], free[1]).all()
    output[0].sum().backward()
    assert x.grad[0].abs().max() > 0 and (x.grad[1] == 0).all()


@pytest.mark.parametrize("length", [1, 2])
def test_a_mask_of_one_head_reaches_that_head_alone(length):
    torch.manual_seed(0)
    query, key, value = torch.randn(B, H, length, D), *torch.randn(2, B, G, L, D)
    keep = torch.ones(1, H, length, L).bool()
    keep[:, 7, :, 2:] = False  # of kv head 1
    free = attend_in_groups(query, key, value)
    output = attend_in_groups(query, key, value, keep)
    changed = ~torch.isclose(output, free).flatten(2).all(dim=-1)
    assert changed.tolist() == [[head == 7 for head in range(H)]] * B


@pytest.mark.parametrize("kind", ["bool", "minus infinity", "causal"])
def test_a_hidden_key_counts_for_nothing_however_large(kind):
    # hyunwoongko/transformer#10, lucidrains/nGPT-pytorch#11: too small a "minus infinity" leaks.
    query = torch.ones(1, 2, 2, 1)
    key, value = torch.tensor([[[[0.0], [1e30]]]]), torch.tensor([[[[1.0], [1e30]]]])
    keep = torch.ones(2, 2).tril().bool()
    masks = {"bool": keep, "causal": None}
    mask = masks.get(kind, torch.zeros(2, 2).masked_fill(~keep, -torch.inf))
    output = attend_in_groups(query, key, value, mask, is_causal=kind == "causal")
    assert torch.equal(output, value.expand(1, 2, 2, 1))


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize(("length", "keys"), [(1, 5), (3, 5), (5, 3), (3, 20)])
def test_the_scale_is_the_one_that_is_asked_for(kv_heads, length, keys):
    torch.manual_seed(0)
    query = torch.randn(B, 6, length, 4).double()
    key, value = torch.randn(2, B, kv_heads, keys, 4).double()
    repeated = (x.repeat_interleave(6 // kv_heads, dim=1) for x in (key, value))
    expected, _ = mha.scaled_dot_product_attention(
        query, *repeated, is_causal=True, scale=0.7
    )
    options = {"is_causal": True, "scale": 0.7}
    output = attend_in_groups(query, key, value, **options)
    torch.testing.assert_close(output, expected)
    with pytest.raises(TypeError, match="scale: expected a number, got '1'"):
        attend_in_groups(query, key, value, scale="1")


@pytest.mark.parametrize("need_weights", [True, False])
def test_dropout_only_while_training(need_weights):
    attention, x = module(dropout=0.25), inputs()
    options = {"need_weights": need_weights}
    outputs = [attention(x, **options)[0] for _ in range(2)]
    assert not torch.equal(*outputs)
    attention.eval()
    plain, _ = module()(x, **options)
    torch.testing.assert_close(attention(x, **options)[0], plain)
    steps, _ = decode(attention, x, [3, 1, 3], **options)
    torch.testing.assert_close(steps, plain)


@pytest.mark.parametrize(("batch", "seq"), [(0, 4), (2, 0), (0, 0)])
@pytest.mark.parametrize("need_weights", [True, False])
def test_lengths_of_zero(batch, seq, need_weights):
    attention, x = module(), inputs(batch=batch, seq=seq)
    for cache in (None, attention.new_cache(batch, seq)):
        for mask in (None, torch.ones(seq, seq).bool(), torch.zeros(batch, H, seq, seq)):  # fmt: skip
            options = {"need_weights": need_weights}
            output, _ = attention(x, mask, cache=cache, **options)
            assert output.shape == (batch, seq, E)
            if cache is not None:
                cache.reset()
    cache = attention.new_cache(B, L)
    attention(inputs(), cache=cache)
    assert attention(inputs()[:, :0], cache=cache)[0].shape == (B, 0, E)


def test_callers_tensors_are_left_alone_and_layout_does_not_matter():
    attention, x = module(), inputs()
    mask = MASKS[f"bool{(B, H, L, L)}"]
    copies = x.clone(), mask.clone()
    twisted = x.mT.contiguous().mT
    for need_weights in (True, False):
        expected, _ = attention(x, mask, need_weights=need_weights)
        output, _ = attention(twisted, mask, need_weights=need_weights)
        torch.testing.assert_close(output, expected)
        decode(attention, x, [3, 1, 3], mask, need_weights=need_weights)
    assert torch.equal(x, copies[0]) and torch.equal(mask, copies[1])


@settings(max_examples=40)
@given(
    batch=st.integers(0, 3), kv_heads=st.integers(1, 3), group=st.integers(1, 3), width=st.integers(1, 3),
    chunks=st.lists(st.integers(0, 3), min_size=1, max_size=4), seed=st.integers(0, 1000), masked=st.booleans(),
)  # fmt: skip
def test_paths_agree_at_random_sizes(batch, kv_heads, group, width, chunks, seed, masked):  # fmt: skip
    torch.manual_seed(seed)
    heads, seq = kv_heads * group, sum(chunks)
    attention = mha.GroupedQueryAttention(heads * width, heads, kv_heads).double()
    x = torch.randn(batch, seq, heads * width).double()
    mask = torch.rand(batch, 1, seq, seq) > 0.4 if masked and seq > 1 else None
    readable, _ = attention(x, mask, need_weights=True)
    torch.testing.assert_close(attention(x, mask)[0], readable)
    for need_weights in (True, False):
        steps, _ = decode(attention, x, chunks, mask, need_weights=need_weights)
        torch.testing.assert_close(steps, readable)


def test_gradcheck_on_the_fast_path():
    torch.manual_seed(0)
    for length in (1, 3):
        shapes = (1, 4, length, 2), (1, 2, 4, 2), (1, 2, 4, 2)
        tensors = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]  # fmt: skip
        assert torch.autograd.gradcheck(
            lambda *t: attend_in_groups(*t, is_causal=True), tensors
        )


# --- memory ---


@pytest.mark.parametrize("kv_heads", [1, 5, 15])
def test_the_fast_path_makes_no_table_and_repeats_nothing(kv_heads):
    attention, x = module(kv_heads), inputs(batch=1, seq=600)
    tokens = x.nbytes
    table = H * 600 * 600 * 4
    # Queries, keys, values, the heads' outputs and the module's, and a kernel's notes.
    fast = peak_memory(lambda x: attention(x)[0], x)
    assert fast < 8 * tokens < table
    assert attention_backend(attention, x) == "flash"
    readable = peak_memory(lambda x: attention(x, need_weights=True)[0], x)
    assert readable >= table
    if kv_heads < H:
        # One token more: the cache holds so much, and repeated it would be more.
        cache = attention.new_cache(1, 601)
        attention(x, cache=cache)
        repeated = cache.nbytes * H // kv_heads

        def one_step(x):
            cache.truncate(600)
            return attention(x[:, :1], cache=cache)[0]

        assert peak_memory(one_step, x) < cache.nbytes / 4 < repeated
        assert attention_backend(one_step, x) == "flash"


def test_a_padding_mask_is_not_blown_up():
    attention, x = module(), inputs(batch=4, seq=600)
    keep = mha.padding_mask(torch.tensor([600, 300, 2, 0]), 600)
    plain = peak_memory(lambda x: attention(x, is_causal=False)[0], x)
    masked = peak_memory(lambda x: attention(x, keep, is_causal=False)[0], x)
    # The kernel wants a number for each key, of each sentence and kv head.
    assert masked - plain <= 4 * G * 600 * (4 + 1) + 1000


# --- conversion ---


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 3, 5, 15])
def test_from_multi_head_takes_means(bias, kv_heads):
    torch.manual_seed(0)
    plain = mha.MultiHeadAttention(E, H, dropout=0.25, bias=bias).double().eval()
    copy = mha.GroupedQueryAttention.from_multi_head(plain, kv_heads)
    assert (copy.num_heads, copy.num_kv_heads, copy.dropout) == (H, kv_heads, 0.25)
    assert not copy.training
    state, group = copy.state_dict(), H // kv_heads
    for name, tensor in plain.state_dict().items():
        if name[:3] in ("W_k", "W_v"):
            for head in range(kv_heads):
                first = head * group * D
                mine = [tensor[first + i * D : first + (i + 1) * D] for i in range(group)]  # fmt: skip
                found = state[name][head * D : (head + 1) * D]
                torch.testing.assert_close(found, sum(mine) / group)
        else:
            assert torch.equal(state[name], tensor)
    x = inputs(torch.float64)
    if kv_heads == H:
        expected, _ = plain(x, is_causal=True, need_weights=False)
        torch.testing.assert_close(copy(x)[0], expected)


def test_equal_heads_lose_nothing_in_the_mean():
    attention, x = module(), inputs()
    copy = mha.GroupedQueryAttention.from_multi_head(tied(attention), G)
    torch.testing.assert_close(copy.state_dict(), attention.state_dict())
    torch.testing.assert_close(copy(x)[0], attention(x)[0])


@pytest.mark.parametrize("mode", MODES)
def test_from_multi_head_keeps_what_is_frozen_and_copies(mode):
    plain = mha.MultiHeadAttention(E, H).half()
    plain.W_k.weight.requires_grad_(False)
    plain.W_o.bias.requires_grad_(False)
    with mode():
        copy = mha.GroupedQueryAttention.from_multi_head(plain, G)
    frozen = {name for name, p in copy.named_parameters() if not p.requires_grad}
    assert frozen == {"W_k.weight", "W_o.bias"}
    assert {p.dtype for p in copy.parameters()} == {torch.float16}
    before = plain.W_q.weight.clone()
    with torch.inference_mode():
        copy.W_q.weight.zero_()
    assert torch.equal(plain.W_q.weight, before)
    meta = mha.GroupedQueryAttention.from_multi_head(plain.to("meta"), G)
    assert {p.device.type for p in meta.parameters()} == {"meta"}


def test_from_multi_head_takes_the_weights_that_are_used():
    # A pruned weight is computed from another parameter and a buffer.
    plain = mha.MultiHeadAttention(E, H)
    prune.l1_unstructured(plain.W_k, "weight", amount=0.9)
    copy = mha.GroupedQueryAttention.from_multi_head(plain, G)
    used = plain.W_k.weight.unflatten(0, (G, GROUP, D)).mean(dim=1).flatten(0, 1)
    torch.testing.assert_close(copy.W_k.weight, used)


def test_from_multi_head_refuses():
    convert = mha.GroupedQueryAttention.from_multi_head
    with pytest.raises(TypeError, match="module: expected a MultiHeadAttention, got Linear"):  # fmt: skip
        convert(torch.nn.Linear(4, 4), 1)
    with pytest.raises(ValueError, match=r"kdim and vdim of 4, its d_model, got \(3, 4\)"):  # fmt: skip
        convert(mha.MultiHeadAttention(4, 2, kdim=3), 1)
    with pytest.raises(ValueError, match="num_heads=4 and num_kv_heads=3"):
        convert(mha.MultiHeadAttention(4, 4), 3)
    mixed = mha.MultiHeadAttention(4, 2)
    mixed.W_k.half()
    with pytest.raises(ValueError, match="one dtype on one device"):
        convert(mixed, 1)


# --- state, errors, compilation ---


def test_the_state_dict_holds_parameters_only():
    attention, x = module(), inputs()
    names = [f"W_{p}.{kind}" for p in "qkvo" for kind in ("weight", "bias")]
    assert list(attention.state_dict()) == names and not list(attention.buffers())
    decode(attention, x, [7])  # devalab/molgpt#18: what is kept in a module by length
    assert list(attention.state_dict()) == names and not list(attention.buffers())
    assert attention.W_k.weight.shape == attention.W_v.weight.shape == (G * D, E)
    kv = 2 * (E * G * D + G * D)
    assert mha.count_parameters(attention) == 2 * (E * E + E) + kv


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((12, 4, 3), {}, r"num_heads=4 and num_kv_heads=3 \(remainder 1\)"),
        ((12, 3, 2), {}, "num_heads=3 and num_kv_heads=2"),
        ((12, 3, 6), {}, "num_heads=3 and num_kv_heads=6"),
        ((12, 4, 0), {}, "num_kv_heads: expected at least 1, got 0"),
        ((10, 3, 1), {}, "d_model=10 and num_heads=3"),
        ((0, 1, 1), {}, "d_model: expected at least 1"),
        ((12, 4, 2), {"dropout": 1.0}, r"dropout: expected a probability in \[0, 1\)"),
    ],
)
def test_construction_refuses(arguments, options, message):
    # fla-org/flash-linear-attention#1029, torchtitan#4276: heads that do not divide.
    with pytest.raises(ValueError, match=message):
        mha.GroupedQueryAttention(*arguments, **options)


def test_construction_refuses_other_types():
    with pytest.raises(TypeError, match=r"num_kv_heads: expected an int, got 2\.0"):
        mha.GroupedQueryAttention(12, 4, 2.0)


@pytest.mark.parametrize("shape", [(B, L, E + 1), (E,), (1, B, L, E)], ids=str)
def test_inputs_that_do_not_fit(shape):
    with pytest.raises(ValueError, match=r"x: expected shape \(batch, length, 165\)"):
        module()(torch.zeros(shape))


def test_inputs_of_another_type():
    with pytest.raises(
        TypeError, match=r"x: expected the module's dtype torch.float32"
    ):
        module()(inputs(torch.float64))
    with pytest.raises(TypeError, match="x: expected a floating-point tensor"):
        module()(torch.ones(B, L, E).long())


@pytest.mark.parametrize(
    "shape",
    [(L, 6), (G, L, L), (1, L, L), (B, G, L, L), (L,), (B, H, 1, 1, 1)],
    ids=str,
)
@pytest.mark.parametrize("need_weights", [True, False])
def test_masks_that_do_not_fit(shape, need_weights):
    with pytest.raises(ValueError, match="mask: expected"):
        module()(inputs(), torch.ones(shape).bool(), need_weights=need_weights)


@pytest.mark.parametrize(
    ("shapes", "mask", "message"),
    [
        (((2, 4, 3, 5), (2, 3, 3, 5), (2, 3, 3, 5)), None, "heads=4 and kv_heads=3"),
        (((2, 4, 3, 5), (1, 2, 3, 5), (1, 2, 3, 5)), None, "key: expected the query's batch"),
        (((2, 4, 1, 5), (2, 2, 3, 5), (2, 1, 3, 5)), None, "value: expected the query's batch"),
        (((2, 4, 3, 5), (2, 2, 3, 5), (2, 2, 4, 5)), None, "value: expected length 3"),
        (((2, 4, 3, 5), (2, 2, 3, 6), (2, 2, 3, 6)), None, "key: expected width 5"),
        (((2, 4, 3, 5), (2, 2, 3, 5), (2, 2, 3, 5)), (2, 2, 3, 3), "mask: expected shape"),
    ],
)  # fmt: skip
def test_the_fast_path_checks_for_itself(shapes, mask, message):
    mask = None if mask is None else torch.ones(mask).bool()
    with pytest.raises(ValueError, match=message):
        attend_in_groups(*(torch.randn(shape) for shape in shapes), mask)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("name", ["none", f"bool{(B, 1, 1, L)}", f"inf{(B, L, L)}"])
def test_compile_and_export(name, need_weights):
    attention, x = module().eval(), inputs()
    torch._dynamo.reset()  # each case anew: the number of versions of one function is limited
    for seq in (L, 1):
        mask = MASKS[name]
        mask = None if mask is None else mask[..., :seq, :seq]
        options = {"mask": mask, "need_weights": need_weights}
        expected, _ = attention(x[:, :seq], **options)
        compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x[:, :seq], **options)[0], expected)
        exported = torch.export.export(attention, (x[:, :seq],), options).module()
        torch.testing.assert_close(exported(x[:, :seq], **options)[0], expected)


def test_decoding_compiles():
    attention, x = module().eval(), inputs()
    torch._dynamo.reset()
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        output = decode_in_chunks(compiled, x, [3, 1, 3], attention.new_cache(B, L))
    torch.testing.assert_close(output, attention(x)[0])


def test_with_one_kv_head_for_each_the_groups_are_plain_attention():
    torch.manual_seed(0)
    query, key, value = torch.randn(B, H, L, D), *torch.randn(2, B, H, L, D)
    expected = attend_without_weights(query, key, value, is_causal=True)
    assert torch.equal(attend_in_groups(query, key, value, is_causal=True), expected)
