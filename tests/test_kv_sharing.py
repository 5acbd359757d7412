"""What caches weigh, counted and on real storage, and decoding in chunks."""

import itertools

import pytest
import torch

import mha
from mha import kv_sharing
from mha.kv_sharing import (
    MODELS,
    cache_bytes,
    decode_in_chunks,
    kv_numbers_per_token,
    latent_numbers_per_token,
)

GIB = 2**30


def test_it_offers_what_the_chapter_uses():
    for name in ("GroupedQueryAttention", "KVCache", "MultiHeadLatentAttention"):
        assert getattr(kv_sharing, name) is getattr(mha, name)


def test_numbers_per_token_by_hand():
    # A key and a value of 128 numbers in each of 32, 8 and 1 heads.
    assert [kv_numbers_per_token(heads, 128) for heads in (32, 8, 1)] == [
        8192,
        2048,
        256,
    ]
    assert kv_numbers_per_token(3, 5, 7) == 36
    assert latent_numbers_per_token(512, 64) == 576


def test_published_models():
    # DeepSeek-V2, section 2.1.4: as much as grouped queries with 2.25 groups.
    deepseek = MODELS["DeepSeek-V2"]
    assert deepseek.numbers_per_token == 2.25 * kv_numbers_per_token(1, deepseek.d_k)
    found = {
        name: cache_bytes(model.num_layers, model.numbers_per_token, 4096)
        for name, model in MODELS.items()
    }
    assert found == {
        "Llama 2 7B": 2 * GIB,
        "Llama 2 70B": 1.25 * GIB,
        "Llama 3 8B": GIB / 2,
        "Falcon 7B": GIB / 32,
        "DeepSeek-V2": 60 * 576 * 4096 * 2,
    }
    # With a key and a value for each head instead: the widths are those of the papers.
    widths = {"Llama 2 7B": 4096, "Llama 2 70B": 8192, "Llama 3 8B": 4096, "Falcon 7B": 4544}  # fmt: skip
    for name, width in widths.items():
        assert MODELS[name].num_heads * MODELS[name].d_k == width
    shares = {
        name: kv_numbers_per_token(model.num_heads, model.d_k) / model.numbers_per_token
        for name, model in MODELS.items()
    }
    assert shares == {
        "Llama 2 7B": 1,
        "Llama 2 70B": 8,
        "Llama 3 8B": 4,
        "Falcon 7B": 71,
        "DeepSeek-V2": pytest.approx(56.9, abs=0.05),
    }


def test_bytes_are_a_product():
    assert cache_bytes(2, 3, 5, 7, 11) == 2 * 3 * 5 * 7 * 11
    assert cache_bytes(2, 3, 5) == 2 * 3 * 5 * 1 * 2
    assert cache_bytes(2, 3, 0) == 0


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float16, 2), (torch.float32, 4), (torch.float64, 8)]
)
def test_what_is_counted_is_what_is_set_aside(dtype, size):
    batch, room, heads, width = 2, 7, 6, 5
    for kv_heads in (1, 2, 3, 6):
        module = mha.GroupedQueryAttention(heads * width, heads, kv_heads).to(dtype)
        numbers = kv_numbers_per_token(kv_heads, width)
        cache = module.new_cache(batch, room)
        assert cache.nbytes == cache_bytes(1, numbers, room, batch, size)
    latent = mha.MultiHeadLatentAttention(
        11, 3, kv_rank=13, d_nope=5, d_rope=4, d_v=7
    ).to(dtype)
    expected = cache_bytes(1, latent_numbers_per_token(13, 4), room, batch, size)
    assert latent.new_cache(batch, room).nbytes == expected


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kv_numbers_per_token(0, 5), "num_kv_heads: expected at least 1, got 0"),
        (lambda: kv_numbers_per_token(3, 0), "d_k: expected at least 1, got 0"),
        (lambda: kv_numbers_per_token(3, 5, 0), "d_v: expected at least 1, got 0"),
        (lambda: latent_numbers_per_token(0, 4), "kv_rank: expected at least 1, got 0"),
        (lambda: latent_numbers_per_token(4, 0), "d_rope: expected at least 1, got 0"),
        (lambda: cache_bytes(-1, 2, 3), "num_layers: expected at least 0, got -1"),
        (lambda: cache_bytes(1, 2, 3, -1), "batch: expected at least 0, got -1"),
    ],
)  # fmt: skip
def test_counting_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def modules():
    torch.manual_seed(0)
    yield mha.GroupedQueryAttention(30, 6, 2)
    yield mha.MultiHeadLatentAttention(30, 3, kv_rank=7, d_nope=5, d_rope=4, d_v=11)


@pytest.mark.parametrize("shape", [(2, 7, 30), (7, 30)])
@pytest.mark.parametrize("chunks", [[1] * 7, [4, 3], [3, 1, 3], [7], [0, 7]], ids=str)
def test_chunks_are_joined(chunks, shape):
    for module in modules():
        x = torch.randn(shape)
        cache = module.new_cache(2 if len(shape) == 3 else 1, 9)
        output = decode_in_chunks(module, x, chunks, cache)
        torch.testing.assert_close(output, module(x)[0])
        assert cache.length == 7


def test_decoding_goes_on_where_the_cache_ends():
    for module in modules():
        x, cache = torch.randn(2, 7, 30), module.new_cache(2, 7)
        parts = [decode_in_chunks(module, part, [1, 2], cache) for part in x.split([3, 3, 1], dim=1)[:2]]  # fmt: skip
        torch.testing.assert_close(torch.cat(parts, dim=1), module(x[:, :6])[0])


def test_options_reach_the_module():
    *_, latent = modules()
    x, called = torch.randn(2, 7, 30), []
    latent.register_forward_pre_hook(
        lambda module, arguments, options: called.append(options), with_kwargs=True
    )
    decode_in_chunks(latent, x, [3, 4], latent.new_cache(2, 7), absorbed=True)
    assert [options["absorbed"] for options in called] == [True, True]


def test_chunks_that_do_not_fit():
    module, x = next(modules()), torch.randn(2, 7, 30)
    for chunks, message in (
        ([4, 4], r"chunks: expected 7 tokens together, those of x, got \[4, 4\], which is 8"),
        ([], "number of chunks: expected at least 1, got 0"),
        ([8, -1], r"chunks\[1\]: expected at least 0, got -1"),
    ):  # fmt: skip
        cache = module.new_cache(2, 9)
        with pytest.raises(ValueError, match=message):
            decode_in_chunks(module, x, chunks, cache)
        assert cache.length == 0
    cache = module.new_cache(2, 6)
    with pytest.raises(ValueError, match=r"cache: expected room for 7 tokens, got KVCache\(2, 2, 6"):  # fmt: skip
        decode_in_chunks(module, x, [3, 4], cache)
    assert cache.length == 0  # the first chunk would have fitted
    for chunks, given, message in (
        ([3, 4], None, "cache: expected a KVCache, got NoneType"),
        (7, cache, "chunks: expected a sequence of ints, got int"),
    ):
        with pytest.raises(TypeError, match=message):
            decode_in_chunks(module, x, chunks, given)


def test_the_table_names_its_sources(root):
    source = (root / "code/mha/kv_sharing.py").read_text(encoding="utf-8")
    table = source[source.index("MODELS = {") :]
    entries = list(itertools.takewhile(lambda line: line != "}", table.splitlines()))
    for before, line in itertools.pairwise(entries):
        if line.lstrip().startswith('"'):
            assert "https://" in before, line
