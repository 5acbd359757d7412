"""Latent attention: a loop over the paper's equations, both forms, and decoding with positions that go on."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mha
from mha.kv_sharing import decode_in_chunks
from mha.profiling import attention_backend, peak_memory
from mha.rotary import rotate

# All different, or a swapped axis would not show.
B, H, L, E, RANK, NOPE, ROPE, V = 2, 3, 7, 11, 5, 13, 4, 17
SIZES = {"kv_rank": RANK, "d_nope": NOPE, "d_rope": ROPE, "d_v": V}
CHUNKS = [[1] * 7, [4, 3], [3, 1, 3], [7]]
MODES = (torch.enable_grad, torch.no_grad, torch.inference_mode)
NAMES = ("W_q", "W_dkv", "W_kr", "W_uk", "W_uv", "W_o")


def module(**options):
    torch.manual_seed(0)
    return mha.MultiHeadLatentAttention(E, H, **SIZES, **options)


def inputs(dtype=torch.float32, batch=B, seq=L):
    torch.manual_seed(1)
    return torch.randn(batch, seq, E).to(dtype)


def masks():
    """Yield every kind of mask in every shape; each leaves one query of sentence 0 without a key."""
    torch.manual_seed(2)
    for shape in ((L, L), (B, L, L), (B, H, L, L), (B, 1, 1, L)):
        keep = torch.rand(shape) > 0.4
        keep[(0,) * (len(shape) - 1)] = False
        yield f"bool{shape}", keep
        yield f"inf{shape}", torch.zeros(shape).masked_fill(~keep, -torch.inf)
        yield f"bias{shape}", torch.randn(shape)


MASKS = dict(masks()) | {"none": None}
PADDING = mha.padding_mask(torch.tensor([L, 4]), L)


def every_setting(attention):
    """Yield both forms with and without weights, and how gradients are treated, in training and in eval."""
    for training in (True, False):
        attention.train(training)
        for absorbed, need_weights, mode in itertools.product(*[(True, False)] * 2, MODES):  # fmt: skip
            yield {"absorbed": absorbed, "need_weights": need_weights}, mode


def by_loop(attention, x, mask=None, is_causal=True):
    """The paper's equations 9-11 and 14-19 in float64, token by token and head by head."""
    state = {name: tensor.double() for name, tensor in attention.state_dict().items()}
    W = {name: state[f"{name}.weight"] for name in NAMES}
    b = {name: state.get(f"{name}.bias", torch.zeros(1)) for name in NAMES}
    shape = len(x), H, x.shape[1], x.shape[1]
    outputs, all_weights = torch.zeros(*x.shape).double(), torch.zeros(shape).double()
    keep, bias = torch.ones(shape).bool(), torch.zeros(shape).double()
    if mask is not None:
        mask = mask[:, None] if mask.dim() == 3 else mask
        if mask.dtype == torch.bool:
            keep &= mask
        else:
            bias += mask
    if is_causal:
        keep &= torch.ones(shape[2:]).tril().bool()
    for item in range(len(x)):
        h = x[item].double()
        keys, values = {}, {}
        for t in range(len(h)):
            c = W["W_dkv"] @ h[t] + b["W_dkv"]  # equation 9
            k_rope = turn(W["W_kr"] @ h[t] + b["W_kr"], t)  # 15, one for all heads
            for i in range(H):
                k_nope = W["W_uk"][i * NOPE : (i + 1) * NOPE] @ c  # 10
                keys[t, i] = torch.cat([k_nope, k_rope])  # 17
                values[t, i] = W["W_uv"][i * V : (i + 1) * V] @ c  # 11
        for t in range(len(h)):
            q = (W["W_q"] @ h[t] + b["W_q"]).view(H, NOPE + ROPE)
            heads = []
            for i in range(H):
                query = torch.cat([q[i, :NOPE], turn(q[i, NOPE:], t)])  # 14, 16
                scores = bias[item, i, t].masked_fill(~keep[item, i, t], -torch.inf)
                for j in range(len(h)):
                    scores[j] += query @ keys[j, i] / (NOPE + ROPE) ** 0.5
                if (scores > -torch.inf).any():
                    all_weights[item, i, t] = scores.softmax(dim=0)  # 18
                mixed = zip(all_weights[item, i, t], range(len(h)), strict=True)
                heads.append(sum(weight * values[j, i] for weight, j in mixed))
            outputs[item, t] = W["W_o"] @ torch.cat(heads) + b["W_o"]  # 19
    return outputs, all_weights


def turn(x, position):
    """Rotate pairs, written for this test alone."""
    speeds = 10000.0 ** (-torch.arange(0, len(x), 2).double() / len(x))
    turns = torch.polar(torch.ones(len(x) // 2).double(), position * speeds)
    return torch.view_as_real(torch.complex(x[::2], x[1::2]) * turns).flatten()


def decode(attention, x, chunks, mask=None, **options):
    """Decode with a cache, each chunk with its rows of the mask and the keys up to its end."""
    cache = attention.new_cache(1 if x.dim() == 2 else len(x), x.shape[-2])
    outputs, end = [], 0
    for chunk in chunks:
        start, end = end, end + chunk
        part = None
        if mask is not None:
            rows = slice(start, end) if mask.shape[-2] > 1 else slice(None)
            part = mask[..., rows, :end]
        outputs.append(attention(x[..., start:end, :], part, cache=cache, **options)[0])
        assert cache.length == end
    return torch.cat(outputs, dim=-2)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_every_path_gives_what_the_equations_say(name, bias, is_causal):
    attention, x = module(bias=bias), inputs()
    expected, expected_weights = by_loop(attention, x, MASKS[name], is_causal)
    for options, mode in every_setting(attention):
        with mode():
            output, weights = attention(x, MASKS[name], is_causal=is_causal, **options)
        torch.testing.assert_close(output, expected.float(), rtol=1e-4, atol=1e-5)
        assert (weights is not None) == options["need_weights"]
        if weights is not None:
            torch.testing.assert_close(weights, expected_weights.float())
            assert (weights[expected_weights == 0] == 0).all()  # exactly


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_all_forms_have_the_same_finite_gradients(name, bias):
    gradients = []
    for absorbed, need_weights in itertools.product((False, True), repeat=2):
        attention = module(bias=bias).double()
        x = inputs(torch.float64).requires_grad_()
        options = {"absorbed": absorbed, "need_weights": need_weights}
        attention(x, MASKS[name], **options)[0].square().sum().backward()
        found = {name: p.grad for name, p in attention.named_parameters()}
        gradients.append(found | {"x": x.grad})
    for found in gradients:
        assert all(gradient.isfinite().all() for gradient in found.values())
        torch.testing.assert_close(found, gradients[0])


def test_it_is_causal_and_without_weights_unless_told_otherwise():
    attention, x = module(), inputs()
    output, weights = attention(x)
    assert weights is None
    torch.testing.assert_close(output, attention(x, is_causal=True, absorbed=False)[0])
    assert mha.influence(lambda x: attention(x)[0], x).equal(torch.ones(L, L).tril() > 0)  # fmt: skip


def test_it_is_plain_attention_where_nothing_is_compressed():
    # With a latent that is the token itself and a rotary part of zeros it is MultiHeadAttention.
    torch.manual_seed(0)
    plain = mha.MultiHeadAttention(6, 2, bias=False).double()
    attention = mha.MultiHeadLatentAttention(
        6, 2, kv_rank=6, d_nope=3, d_rope=2, d_v=3
    ).double()
    with torch.no_grad():
        attention.W_dkv.weight.copy_(torch.eye(6))
        attention.W_kr.weight.zero_()
        # The scale is that of five numbers, three of them used.
        queries = plain.W_q.weight.view(2, 3, 6) * (5 / 3) ** 0.5
        attention.W_q.weight.zero_().view(2, 5, 6)[:, :3].copy_(queries)
        attention.W_uk.weight.copy_(plain.W_k.weight)
        attention.W_uv.weight.copy_(plain.W_v.weight)
        attention.W_o.weight.copy_(plain.W_o.weight)
    x = torch.randn(B, L, 6).double()
    expected, expected_weights = plain(x, is_causal=True)
    for absorbed in (False, True):
        output, weights = attention(x, need_weights=True, absorbed=absorbed)
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(weights, expected_weights)


# --- decoding ---


@pytest.mark.parametrize(
    ("dtype", "close"),
    [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.03)],
)
@pytest.mark.parametrize("name", ["none", "padding", f"bias{(B, H, L, L)}"])
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_decoding_in_chunks_equals_the_whole(chunks, name, dtype, close):
    attention, x = module().to(dtype), inputs(dtype)
    mask = PADDING if name == "padding" else MASKS[name]
    whole, _ = attention(x, mask, need_weights=True)
    for options, mode in every_setting(attention):
        with mode():
            output = decode(attention, x, chunks, mask, **options)
        torch.testing.assert_close(output, whole, rtol=close, atol=close)


@pytest.mark.parametrize("absorbed", [False, True])
def test_positions_go_on_from_those_in_the_cache(absorbed):
    attention, x = module().double(), inputs(torch.float64)
    cache = attention.new_cache(B, L)
    decode_in_chunks(attention, x, [4, 3], cache, absorbed=absorbed)
    nothing = torch.ones(B, 1, 0, RANK + ROPE).double()
    keys, _ = cache.append(nothing, nothing[..., :0])
    places = torch.arange(L)
    torch.testing.assert_close(keys[:, 0, :, :RANK], attention.W_dkv(x))
    torch.testing.assert_close(keys[:, 0, :, RANK:], rotate(attention.W_kr(x), places))


@pytest.mark.parametrize("absorbed", [False, True])
def test_a_token_sees_how_far_another_one_is(absorbed):
    # Without the rotary part the order of the tokens before would not matter.
    attention, x = module().double(), inputs(torch.float64)
    swapped = x[:, [1, 0, 2, 3, 4, 5, 6]]
    options = {"absorbed": absorbed}
    last, other = (attention(tokens, **options)[0][:, -1] for tokens in (x, swapped))
    assert not torch.isclose(last, other).any()
    with torch.no_grad():
        attention.W_kr.weight.zero_()
    last, other = (attention(tokens, **options)[0][:, -1] for tokens in (x, swapped))
    torch.testing.assert_close(last, other)


def test_the_cache_holds_a_latent_and_a_rotary_key_and_no_head():
    for heads in (1, 3, 30):
        attention = mha.MultiHeadLatentAttention(E, heads, **SIZES).double()
        assert attention.new_cache(B, L).nbytes == B * L * (RANK + ROPE) * 8
    half = module().to("meta", torch.float16).new_cache(B, L)
    entries = torch.ones(B, 1, 4, RANK + ROPE, device="meta").half()
    keys, values = half.append(entries, entries[..., :0])
    assert keys.dtype == torch.float16 and keys.device.type == "meta"
    assert values.numel() == 0


@pytest.mark.parametrize("absorbed", [False, True])
def test_after_a_reset_a_second_prompt_is_a_first_one(absorbed):
    # awslabs/keys_values#45, #140; positions begin at 0 again.
    attention, prompts = module(), torch.randn(2, B, 5, E)
    used, options = attention.new_cache(B, L), {"absorbed": absorbed}
    attention(torch.full((B, L, E), torch.nan), cache=used)
    used.reset()
    for prompt in prompts:
        fresh = attention.new_cache(B, L)
        expected = decode_in_chunks(attention, prompt, [2, 1, 2], fresh, **options)
        found = decode_in_chunks(attention, prompt, [2, 1, 2], used, **options)
        assert torch.equal(found, expected)
        used.reset()


@pytest.mark.parametrize("absorbed", [False, True])
def test_a_call_that_fails_leaves_the_cache_as_it_was(absorbed):
    attention, x = module(), inputs()
    whole, _ = attention(x)
    cache = attention.new_cache(B, L)
    attention(x[:, :4], cache=cache)
    options = {"cache": cache, "absorbed": absorbed}
    with pytest.raises(ValueError, match=r"cache: expected room for 4 .* length 4"):
        attention(x[:, :4], **options)
    with pytest.raises(ValueError, match=r"mask: expected shape \(3, 7\)"):
        attention(x[:, 4:], torch.ones(3, 3).bool(), **options)
    with pytest.raises(ValueError, match=r"cache: .* batch 1, 1 kv heads .* got KVCache\(2, 1, 7"):  # fmt: skip
        attention(x[:1, 4:], **options)
    with pytest.raises(TypeError, match="cache: expected a KVCache, got Tensor"):
        attention(x[:, 4:], cache=x)
    with pytest.raises(
        ValueError,
        match=r"cache: .* 1 kv heads .* got KVCache\(2, 3, 7",
    ):
        attention(x, cache=mha.KVCache(B, H, L, RANK + ROPE, 0))
    assert cache.length == 4
    torch.testing.assert_close(attention(x[:, 4:], **options)[0], whole[:, 4:])


@pytest.mark.parametrize("absorbed", [False, True])
def test_gradients_of_two_calls_are_those_of_each_alone(absorbed):
    attention, x = module().double(), inputs(torch.float64)
    options = {"absorbed": absorbed}
    weights = [attention.W_q.weight, attention.W_uk.weight, attention.W_uv.weight]
    cache = attention.new_cache(B, L)
    both = [attention(part, cache=cache, **options)[0] for part in x.split([4, 3], 1)]
    found = torch.autograd.grad(torch.cat(both, 1).square().sum(), weights)
    latents = [*attention.W_dkv.parameters(), *attention.W_kr.parameters()]
    for parameter in latents:  # no gradient goes through what is stored
        parameter.requires_grad_(False)
    whole, _ = attention(x, **options)
    expected = torch.autograd.grad(whole.square().sum(), weights)
    torch.testing.assert_close(found, expected)


def test_under_autocast_a_cache_is_of_autocasts_dtype():
    attention, x = module(), inputs()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for absorbed in (False, True):
            cache, options = attention.new_cache(B, L), {"absorbed": absorbed}
            output = decode_in_chunks(attention, x, [4, 3], cache, **options)
            expected, _ = attention(x, **options)
            torch.testing.assert_close(output, expected, rtol=0.05, atol=0.05)


def test_one_sentence_without_a_batch():
    attention, x = module(), inputs()
    for absorbed, need_weights in itertools.product((False, True), repeat=2):
        options = {"absorbed": absorbed, "need_weights": need_weights}
        output, weights = attention(x, **options)
        alone, alone_weights = attention(x[0], **options)
        torch.testing.assert_close(alone, output[0])
        if need_weights:
            torch.testing.assert_close(alone_weights, weights[0])
        steps = decode(attention, x[0], [3, 1, 3], **options)
        torch.testing.assert_close(steps, output[0])


def test_a_cache_takes_no_gradient_but_the_query_and_what_reads_the_latents_do():
    attention, x = module(), inputs()
    for absorbed in (False, True):
        attention.zero_grad()
        decode(attention, x, [7], absorbed=absorbed).square().sum().backward()
        without = {name for name, p in attention.named_parameters() if p.grad is None}
        assert without == {"W_dkv.weight", "W_kr.weight"}


# --- masks, types, sizes ---


@pytest.mark.parametrize("bias", [False, True])
def test_a_query_without_keys_gets_the_output_bias(bias):
    attention, x = module(bias=bias), inputs()
    keep = mha.padding_mask(torch.tensor([4, 0]), L)
    infinite = torch.zeros(keep.shape).masked_fill(~keep, -torch.inf)
    expected = attention.W_o.bias.expand(L, E) if bias else torch.zeros(L, E)
    for mask, is_causal in itertools.product((keep, infinite), (False, True)):
        for options, mode in every_setting(attention):
            with mode():
                output, weights = attention(x, mask, is_causal=is_causal, **options)
                steps = decode(attention, x, [1] * L, mask, **options)
            assert torch.equal(output[1], expected) and torch.equal(steps[1], expected)
            assert weights is None or (weights[1] == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MASKS)
def test_half_types(name, dtype):
    attention, x = module(), inputs()
    expected, _ = attention(x, MASKS[name])
    attention = attention.to(dtype)
    for options, mode in every_setting(attention):
        with mode():
            output, _ = attention(x.to(dtype), MASKS[name], **options)
        assert output.dtype == dtype
        torch.testing.assert_close(output.float(), expected, rtol=0.05, atol=0.05)


def test_under_autocast_the_cache_has_its_type():
    attention, x = module(), inputs()
    whole, _ = attention(x)
    for absorbed in (False, True):
        cache = mha.KVCache(B, 1, L, RANK + ROPE, 0, dtype=torch.bfloat16)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = decode_in_chunks(attention, x, [3, 1, 3], cache, absorbed=absorbed)
        torch.testing.assert_close(output.float(), whole, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("absorbed", [False, True])
@pytest.mark.parametrize("length", [1, L])
def test_sentences_do_not_mix(length, absorbed):
    attention, x = module(), inputs(seq=length).requires_grad_()
    attention(x, absorbed=absorbed)[0][0].sum().backward()
    assert x.grad[0].abs().max() > 0 and (x.grad[1] == 0).all()


@pytest.mark.parametrize("absorbed", [False, True])
@pytest.mark.parametrize(("batch", "seq"), [(0, 4), (2, 0), (0, 0)])
@pytest.mark.parametrize("need_weights", [True, False])
def test_lengths_of_zero(batch, seq, need_weights, absorbed):
    attention, x = module(), inputs(batch=batch, seq=seq)
    options = {"need_weights": need_weights, "absorbed": absorbed}
    for cache in (None, attention.new_cache(batch, seq)):
        output, _ = attention(x, cache=cache, **options)
        assert output.shape == (batch, seq, E)
    cache = attention.new_cache(B, L)
    attention(inputs(), cache=cache)
    assert attention(inputs()[:, :0], cache=cache, **options)[0].shape == (B, 0, E)


def test_callers_tensors_are_left_alone_and_layout_does_not_matter():
    attention, x = module(), inputs()
    mask = MASKS[f"bool{(B, H, L, L)}"]
    copies = x.clone(), mask.clone()
    twisted = x.mT.contiguous().mT
    for options, _ in every_setting(attention):
        expected, _ = attention(x, mask, **options)
        output, _ = attention(twisted, mask, **options)
        torch.testing.assert_close(output, expected)
    assert torch.equal(x, copies[0]) and torch.equal(mask, copies[1])


@settings(max_examples=30)
@given(
    batch=st.integers(0, 3), heads=st.integers(1, 3), rank=st.integers(1, 4), nope=st.integers(1, 3),
    rope=st.sampled_from([2, 4]), d_v=st.integers(1, 3), chunks=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    seed=st.integers(0, 1000), masked=st.booleans(),
)  # fmt: skip
def test_forms_agree_at_random_sizes(batch, heads, rank, nope, rope, d_v, chunks, seed, masked):  # fmt: skip
    torch.manual_seed(seed)
    sizes = {"kv_rank": rank, "d_nope": nope, "d_rope": rope, "d_v": d_v}
    attention = mha.MultiHeadLatentAttention(5, heads, **sizes).double()
    seq = sum(chunks)
    x = torch.randn(batch, seq, 5).double()
    mask = torch.rand(batch, 1, seq, seq) > 0.4 if masked and seq > 1 else None
    expected, _ = attention(x, mask, need_weights=True)
    for absorbed in (False, True):
        output, _ = attention(x, mask, absorbed=absorbed)
        torch.testing.assert_close(output, expected)
        steps = decode(attention, x, chunks, mask, absorbed=absorbed)
        torch.testing.assert_close(steps, expected)


def test_absorbed_decoding_makes_no_keys_and_values():
    torch.manual_seed(0)
    attention = mha.MultiHeadLatentAttention(
        64, 16, kv_rank=32, d_nope=32, d_rope=8, d_v=32
    )
    cache, x = attention.new_cache(1, 1001), torch.randn(1, 1001, 64)
    attention(x[:, :1000], cache=cache)

    def one_step(x, absorbed):
        cache.truncate(1000)
        return attention(x[:, :1], cache=cache, absorbed=absorbed)[0]

    keys_and_values = 1001 * 16 * (32 + 8 + 32) * 4
    assert peak_memory(lambda x: one_step(x, False), x) > keys_and_values
    assert attention_backend(lambda x: one_step(x, True), x) == "flash"
    # Not even a copy of the cache.
    assert peak_memory(lambda x: one_step(x, True), x) < cache.nbytes < keys_and_values


# --- state, errors, compilation ---


@pytest.mark.parametrize("bias", [False, True])
def test_the_state_dict_holds_parameters_only(bias):
    attention, x = module(bias=bias), inputs()
    decode(attention, x, [7])
    expected = {f"{name}.weight" for name in NAMES}
    if bias:
        expected |= {f"{name}.bias" for name in ("W_q", "W_dkv", "W_kr", "W_o")}
    assert set(attention.state_dict()) == expected and not list(attention.buffers())
    shapes = {name: tuple(getattr(attention, name).weight.shape) for name in NAMES}
    assert shapes == {
        "W_q": (H * (NOPE + ROPE), E),
        "W_dkv": (RANK, E),
        "W_kr": (ROPE, E),
        "W_uk": (H * NOPE, RANK),
        "W_uv": (H * V, RANK),
        "W_o": (E, H * V),
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_rank": 0}, "kv_rank: expected at least 1, got 0"),
        ({"d_nope": 0}, "d_nope: expected at least 1, got 0"),
        ({"d_rope": 0}, "d_rope: expected at least 1, got 0"),
        ({"d_rope": 3}, "d_rope: expected an even number, got 3"),
        ({"d_v": -1}, "d_v: expected at least 1, got -1"),
        ({"num_heads": 0}, "num_heads: expected at least 1, got 0"),
        ({"d_model": 0}, "d_model: expected at least 1, got 0"),
    ],
)
def test_construction_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        mha.MultiHeadLatentAttention(**({"d_model": E, "num_heads": H} | SIZES | changes))  # fmt: skip


def test_construction_refuses_other_types():
    with pytest.raises(TypeError, match=r"kv_rank: expected an int, got 2\.0"):
        mha.MultiHeadLatentAttention(E, H, **(SIZES | {"kv_rank": 2.0}))


@pytest.mark.parametrize("shape", [(B, L, E + 1), (E,), (1, B, L, E)], ids=str)
def test_inputs_that_do_not_fit(shape):
    with pytest.raises(ValueError, match=r"x: expected shape \(batch, length, 11\)"):
        module()(torch.zeros(shape))


def test_inputs_of_another_type():
    with pytest.raises(TypeError, match=r"x: expected the module's dtype torch.float32"):  # fmt: skip
        module()(inputs(torch.float64))
    with pytest.raises(TypeError, match="x: expected a floating-point tensor"):
        module()(torch.ones(B, L, E).long())


@pytest.mark.parametrize("absorbed", [False, True])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("shape", [(L, 6), (H, L, L), (B, 2, L, L), (L,)], ids=str)
def test_masks_that_do_not_fit(shape, need_weights, absorbed):
    options = {"need_weights": need_weights, "absorbed": absorbed}
    with pytest.raises(ValueError, match="mask: expected"):
        module()(inputs(), torch.ones(shape).bool(), **options)
    with pytest.raises(TypeError, match="mask: expected a boolean mask"):
        module()(inputs(), torch.ones(L, L).int(), **options)


@pytest.mark.parametrize("absorbed", [False, True])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("name", ["none", f"bool{(B, 1, 1, L)}"])
def test_compile_and_export(name, need_weights, absorbed):
    attention, x = module().eval(), inputs()
    torch._dynamo.reset()  # each case anew: the number of versions of one function is limited
    options = {"mask": MASKS[name], "need_weights": need_weights, "absorbed": absorbed}
    expected, _ = attention(x, **options)
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, **options)[0], expected)
    exported = torch.export.export(attention, (x,), options).module()
    torch.testing.assert_close(exported(x, **options)[0], expected)
