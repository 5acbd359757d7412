"""The cache gives back what was stored, and an error leaves it as it was."""

import pytest
import torch

import mha
from mha.kv_cache import tokens_before

B, G, ROOM, D, V = 2, 3, 11, 5, 7  # all different, or a swapped axis would not show


def tokens(new, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    shapes = (B, G, new, D), (B, G, new, V)
    return tuple(torch.randn(shape).to(dtype) for shape in shapes)


def cache(**options):
    return mha.KVCache(B, G, ROOM, D, V, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("chunks", [[7], [1] * 7, [4, 3], [3, 1, 3], [0, 7, 0], [11]])
def test_what_is_appended_comes_back_in_order(chunks, dtype):
    stored, (key, value) = cache(dtype=dtype), tokens(sum(chunks), dtype)
    end = 0
    for chunk in chunks:
        start, end = end, end + chunk
        keys, values = stored.append(key[:, :, start:end], value[:, :, start:end])
        assert stored.length == end
        assert torch.equal(keys, key[:, :, :end])
        assert torch.equal(values, value[:, :, :end])


def test_values_are_as_wide_as_keys_unless_told_otherwise():
    stored = mha.KVCache(B, G, ROOM, D)
    keys, values = stored.append(*torch.ones(2, B, G, 4, D))
    assert keys.shape == values.shape == (B, G, 4, D)


def test_nothing_is_set_aside_for_values_of_no_width():
    stored = mha.KVCache(B, 1, ROOM, D, 0)
    keys, values = stored.append(torch.ones(B, 1, 4, D), torch.ones(B, 1, 4, 0))
    assert keys.shape == (B, 1, 4, D) and values.shape == (B, 1, 4, 0)
    assert stored.nbytes == B * ROOM * D * 4


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float16, 2), (torch.float32, 4), (torch.float64, 8)]
)
def test_its_bytes_are_those_of_the_memory_that_is_set_aside(dtype, size):
    stored = cache(dtype=dtype)
    assert stored.nbytes == B * G * ROOM * (D + V) * size
    keys, values = stored.append(*tokens(4, dtype))
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in (keys, values)}  # fmt: skip
    assert sum(storages.values()) == stored.nbytes  # before and after, filled or not


def test_what_comes_back_is_a_view_and_what_was_given_is_a_copy():
    stored, (key, value) = cache(), tokens(4)
    copies = key.clone(), value.clone()
    first, _ = stored.append(key, value)
    second, _ = stored.append(*tokens(3, seed=1))
    assert first.data_ptr() == second.data_ptr()
    assert torch.equal(key, copies[0]) and torch.equal(value, copies[1])
    key.zero_()
    assert torch.equal(second[:, :, :4], copies[0])


def test_any_layout_can_be_stored():
    stored, (key, value) = cache(), tokens(4)
    twisted = key.transpose(1, 2).contiguous().transpose(1, 2), value.mT.contiguous().mT
    keys, values = stored.append(*twisted)
    assert torch.equal(keys, key) and torch.equal(values, value)


def test_it_begins_with_zeros_and_its_defaults_are_torchs():
    stored = cache()
    assert stored.length == 0 and stored.max_len == ROOM
    for tensor in (stored._keys, stored._values):
        assert tensor.dtype == torch.get_default_dtype()
        assert tensor.device == torch.device("cpu") and (tensor == 0).all()


def test_after_a_reset_nothing_is_left_of_the_prompt_before():
    # awslabs/keys_values#45, #140: a stale cache. NaN in it would show everywhere.
    stored, fresh = cache(), cache()
    stored.append(*(torch.full_like(tensor, torch.nan) for tensor in tokens(ROOM)))
    stored.reset()
    assert stored.length == 0
    for chunk in (4, 3):
        second = tokens(chunk, seed=chunk)
        for old, new in zip(stored.append(*second), fresh.append(*second), strict=True):
            assert torch.equal(old, new)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_it_keeps_no_graph(mode):
    # With a graph, the memory of every step would be held on to.
    stored, (key, value) = cache(), tokens(4)
    key.requires_grad_(), value.requires_grad_()
    with mode():
        kept = stored.append(key * 2, value * 2)
    for tensor in kept:
        assert not tensor.requires_grad and tensor.grad_fn is None
    torch.testing.assert_close(kept[0], key.detach() * 2)


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_inference_mode_may_begin_and_end_anywhere(made, first, second):
    with torch.inference_mode(made):
        stored = cache()
    with torch.inference_mode(first):
        one = tokens(4)
        stored.append(*one)
    with torch.inference_mode(second):
        two = tokens(3, seed=1)
        keys, values = stored.append(*two)
    assert not keys.requires_grad
    torch.testing.assert_close(keys, torch.cat([one[0], two[0]], dim=2))
    torch.testing.assert_close(values, torch.cat([one[1], two[1]], dim=2))
    weight = torch.ones(D, requires_grad=True)
    (keys.clone() @ weight).sum().backward()  # as a module does that is being trained
    torch.testing.assert_close(weight.grad, keys.sum(dim=(0, 1, 2)))


# --- errors ---


def unchanged(stored, before):
    assert stored.length == before[0].shape[2]
    for tensor, expected in zip((stored._keys, stored._values), before, strict=True):
        assert torch.equal(tensor[:, :, : stored.length], expected)
        assert (tensor[:, :, stored.length :] == 0).all()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ((3, G, 4, D), (B, G, 4, V), r"key: expected shape \(2, 3, new, 5\), got \(3, 3, 4, 5\)"),
        ((B, G, 4, D), (3, G, 4, V), r"value: expected shape \(2, 3, new, 7\), got \(3, 3, 4, 7\)"),
        ((B, 6, 4, D), (B, 6, 4, V), r"key: expected shape .* got \(2, 6, 4, 5\)"),
        ((B, G, 4, V), (B, G, 4, V), r"key: expected shape .* got \(2, 3, 4, 7\)"),
        ((B, G, 4, D), (B, G, 4, D), r"value: expected shape .* got \(2, 3, 4, 5\)"),
        ((B, G, D), (B, G, 4, V), r"key: expected shape .* got shape \(2, 3, 5\)"),
        ((1, B, G, 4, D), (B, G, 4, V), r"key: expected shape .* got \(1, 2, 3, 4, 5\)"),
        ((B, G, 4, D), (B, G, 3, V), "value: expected length 4, the key's, got 3"),
        ((B, G, 8, D), (B, G, 8, V), r"key: expected at most 7 new tokens \(max_len 11, 4 stored\), got 8"),
    ],
)  # fmt: skip
def test_what_does_not_fit_changes_nothing(key, value, message):
    # swarmllm#31: a cache that runs past its end. The batch must not change either.
    stored, four = cache(), tokens(4)
    stored.append(*four)
    with pytest.raises(ValueError, match=message):
        stored.append(torch.ones(key), torch.ones(value))
    unchanged(stored, four)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda t: t.double(), "expected the cache's torch.float32, got torch.float64"),
        (lambda t: t.long(), "expected a floating-point tensor, got torch.int64"),
        (lambda t: t.tolist(), "expected a torch.Tensor, got list"),
    ],
)
def test_what_is_of_another_type_changes_nothing(place, wrong, message):
    stored, four = cache(), tokens(4)
    stored.append(*four)
    new = list(tokens(2, seed=1))
    new[place] = wrong(new[place])
    with pytest.raises(TypeError, match=("key: ", "value: ")[place] + message):
        stored.append(*new)
    unchanged(stored, four)


@pytest.mark.parametrize("place", [0, 1])
def test_another_device_is_refused(place):
    stored, new = cache(), list(tokens(2))
    new[place] = new[place].to("meta")
    with pytest.raises(ValueError, match="to be on the cache's device cpu, got meta"):
        stored.append(*new)
    unchanged(stored, tokens(0))
    meta = cache(device="meta").append(*(tensor.to("meta") for tensor in tokens(2)))
    assert [tensor.shape for tensor in meta] == [(B, G, 2, D), (B, G, 2, V)]


def test_a_full_cache_takes_nothing_more():
    stored = cache()
    stored.append(*tokens(ROOM))
    stored.append(*tokens(0))
    with pytest.raises(ValueError, match="expected at most 0 new tokens"):
        stored.append(*tokens(1))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((-1, G, ROOM, D, V), "batch: expected at least 0, got -1"),
        ((B, 0, ROOM, D, V), "num_kv_heads: expected at least 1, got 0"),
        ((B, G, -1, D, V), "max_len: expected at least 0, got -1"),
        ((B, G, ROOM, 0, V), "d_k: expected at least 1, got 0"),
        ((B, G, ROOM, D, -1), "d_v: expected at least 0, got -1"),
    ],
)
def test_construction_refuses_what_is_too_small(sizes, message):
    with pytest.raises(ValueError, match=message):
        mha.KVCache(*sizes)


def test_construction_refuses_other_types():
    with pytest.raises(TypeError, match=r"max_len: expected an int, got 11\.0"):
        mha.KVCache(B, G, 11.0, D)
    with pytest.raises(TypeError, match=r"dtype: expected a floating-point type, got torch.int8"):  # fmt: skip
        mha.KVCache(B, G, ROOM, D, dtype=torch.int8)
    with pytest.raises(TypeError, match="dtype: expected a floating-point type, got 'float32'"):  # fmt: skip
        mha.KVCache(B, G, ROOM, D, dtype="float32")


@pytest.mark.parametrize(("batch", "room"), [(0, 4), (2, 0), (0, 0)])
def test_lengths_of_zero(batch, room):
    stored = mha.KVCache(batch, G, room, D)
    keys, values = stored.append(*torch.ones(2, batch, G, room, D))
    assert keys.shape == values.shape == (batch, G, room, D)
    assert stored.nbytes == 0 and stored.length == room


def test_no_cache_holds_no_tokens():
    stored, shape, like = cache(), (B, G, 3, D), torch.ones(1)
    assert tokens_before(None, shape, like) == tokens_before(stored, shape, like) == 0
    stored.append(*tokens(4))
    assert tokens_before(stored, shape, like) == 4
    with pytest.raises(TypeError, match="cache: expected a KVCache, got dict"):
        tokens_before({}, shape, like)


# --- taking back ---


def test_what_is_taken_back_makes_room_and_the_rest_stays():
    stored, seven, others = cache(), tokens(7), tokens(2, seed=1)
    stored.append(*seven)
    stored.truncate(4)
    assert stored.length == 4
    for kept, old, new in zip(stored.append(*others), seven, others, strict=True):
        assert torch.equal(kept, torch.cat([old[:, :, :4], new], dim=2))
    stored.truncate(6)  # all of them: nothing changes
    stored.truncate(0)
    assert stored.length == 0


@pytest.mark.parametrize(
    ("length", "error", "message"),
    [
        (5, ValueError, "length: expected at most the 4 tokens stored, got 5"),
        (-1, ValueError, "length: expected at least 0, got -1"),
        (2.5, TypeError, "length: expected an int, got 2.5"),
    ],
)
def test_what_cannot_be_taken_back(length, error, message):
    stored = cache()
    stored.append(*tokens(4))
    with pytest.raises(error, match=message):
        stored.truncate(length)
    assert stored.length == 4


@pytest.mark.parametrize("name", ["length", "max_len", "nbytes"])
def test_what_it_says_of_itself_cannot_be_set(name):
    with pytest.raises(AttributeError):
        setattr(cache(), name, 3)


def test_it_shows_what_fits_and_what_is_stored():
    stored = cache(dtype=torch.float64)
    stored.append(*tokens(4, torch.float64))
    assert repr(stored) == (
        "KVCache(2, 3, 11, 5, 7, dtype=torch.float64, device='cpu') with length 4"
    )
