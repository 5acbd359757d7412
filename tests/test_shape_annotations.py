"""The shapes in the signatures are true: the package runs with every annotation checked at run time."""

import importlib
import inspect
import sys

import pytest
import torch
from jaxtyping import TypeCheckError, install_import_hook
from torch import nn

import mha

HELPERS = (
    "alternatives",
    "character_model",
    "checks",
    "expert_team",
    "fonts",
    "head_ablation",
    "head_roles",
    "kv_sharing",
    "minilm",
    "pair_readers",
    "pair_task",
    "palette",
    "probes",
    "profiling",
    "recordings",
    "resampling",
    "role_cases",
    "role_sentences",
    "sentence",
    "style",
    "timing",
    "toy_jobs",
    "variants",
    "words",
)


@pytest.fixture(scope="module")
def checked(trained):
    """Import ``mha`` anew with every annotation checked, and put the plain package back afterwards.

    The trained model, which all tests share, is loaded before: its class is to be the plain one.
    """
    plain = {
        name: sys.modules.pop(name)
        for name in list(sys.modules)
        if name.split(".")[0] == "mha"
    }
    try:
        with install_import_hook("mha", "beartype.beartype"):
            package = importlib.import_module("mha")
            for name in HELPERS:
                importlib.import_module(f"mha.{name}")
        yield package
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "mha"]:
            del sys.modules[name]
        sys.modules.update(plain)


def valid_calls(package):
    """Name, and calls with valid arguments, of everything public."""
    q, k, v = torch.rand(2, 3, 5, 4), torch.rand(2, 3, 7, 4), torch.rand(2, 3, 7, 6)
    x = torch.rand(2, 5, 4)
    attend = package.scaled_dot_product_attention
    module = package.SingleHeadAttention(4, 3, 2)
    W = [
        torch.rand(2, 4, 3),
        torch.rand(2, 4, 3),
        torch.rand(2, 4, 5),
        torch.rand(10, 4),
    ]

    def claims():
        with package.claim("It holds."):
            assert True

    heads = package.MultiHeadAttention(4, 2)
    cross = package.MultiHeadAttention(4, 2, kdim=3, vdim=5)
    block = package.TransformerBlock(4, 2, 8)
    lengths = torch.tensor([2, 5])
    grouped = package.GroupedQueryAttention(8, 4, 2)
    latent = package.MultiHeadLatentAttention(
        4, 3, kv_rank=5, d_nope=7, d_rope=2, d_v=6
    )
    y, cache = torch.rand(2, 5, 8), package.KVCache(2, 3, 9, 4, 6)

    return {
        "GroupedQueryAttention": [
            lambda: grouped(y),
            lambda: grouped(y[:, :1], torch.ones(2, 4, 1, 1).bool()),
            lambda: grouped(y[0], torch.zeros(5, 5), need_weights=True),
            lambda: grouped(y, is_causal=False, cache=grouped.new_cache(2, 5)),
            lambda: grouped(y, cache=grouped.new_cache(2, 7), need_weights=True),
            lambda: package.GroupedQueryAttention.from_multi_head(heads, 1)(x),
        ],
        "KVCache": [
            lambda: cache.append(k[:, :, :2], v[:, :, :2]),
            lambda: cache.append(k, v),
            lambda: (cache.reset(), cache.nbytes),
            lambda: package.KVCache(
                0, 1, 0, 4, 0, dtype=torch.float16, device="cpu"
            ).append(torch.rand(0, 1, 0, 4).half(), torch.rand(0, 1, 0, 0).half()),
        ],
        "MultiHeadLatentAttention": [
            lambda: latent(x),
            lambda: latent(x[0], need_weights=True),
            lambda: latent(x, torch.ones(2, 5, 5).bool(), absorbed=True),
            lambda: latent(
                x, cache=latent.new_cache(2, 6), absorbed=True, need_weights=True
            ),
            lambda: latent(x, is_causal=False, cache=latent.new_cache(2, 5)),
        ],
        "MultiHeadAttention": [
            lambda: heads(x),
            lambda: heads(x[0], is_causal=True),
            lambda: heads(x, x[:, :3], need_weights=False),
            lambda: heads(
                x, mask=torch.zeros(2, 5, 5), is_causal=True, need_weights=False
            ),
            lambda: cross(x, torch.rand(2, 6, 3), torch.rand(2, 6, 5)),
            lambda: package.MultiHeadAttention.from_torch(heads.to_torch())(x),
        ],
        "TransformerBlock": [
            lambda: block(x),
            lambda: block(x[0], torch.ones(5, 5).bool(), is_causal=True),
        ],
        "padding_mask": [
            lambda: package.padding_mask(lengths, 5),
            lambda: package.padding_mask(lengths[:0], 0),
        ],
        "combine_masks": [
            lambda: package.combine_masks(torch.ones(5, 5).bool()),
            lambda: package.combine_masks(
                package.padding_mask(lengths, 5), torch.zeros(5, 5)
            ),
        ],
        "scaled_dot_product_attention": [
            lambda: attend(q, k, v),
            lambda: attend(q[0, 0], k[0, 0], v[0, 0]),
            lambda: attend(q[0], k[0], v[0], torch.ones(5, 7).bool(), is_causal=True),
            lambda: attend(q, k, v, torch.zeros(2, 1, 1, 7), scale=0.5, dropout_p=0.5),
            lambda: attend(q, k, v, torch.zeros(5, 7).bfloat16()),
            lambda: attend(q.half(), k.half(), v.half(), torch.ones(1, 1, 1, 1).bool()),
            lambda: attend(q[..., :0, :], k[..., :0, :], v[..., :0, :]),
            lambda: attend(q[:0], k[:0], v[:0], is_causal=True),
        ],
        "causal_mask": [
            lambda: package.causal_mask(3),
            lambda: package.causal_mask(2, 5, device="cpu"),
            lambda: package.causal_mask(0, 3, device=torch.device("cpu")),
        ],
        "SingleHeadAttention": [
            lambda: module(x),
            lambda: module(x[0], torch.ones(5, 5).bool()),
            lambda: module(x, torch.zeros(2, 5, 5), is_causal=True),
            lambda: module(x[:, :0]),
            lambda: package.SingleHeadAttention(4)(x),
        ],
        "split_heads": [
            lambda: package.split_heads(x, 2),
            lambda: package.split_heads(x[0], 4),
            lambda: package.split_heads(q, 1),
            lambda: package.split_heads(x[:, :0], 2),
        ],
        "combine_heads": [
            lambda: package.combine_heads(q),
            lambda: package.combine_heads(q[0]),
        ],
        "per_head_matrices": [lambda: package.per_head_matrices(nn.Linear(5, 6), 3)],
        "count_parameters": [lambda: package.count_parameters(module)],
        "attention_cost": [
            lambda: package.attention_cost(5, 8, 2),
            lambda: package.attention_cost(5, 8, 3, 7),
        ],
        "influence": [
            lambda: package.influence(lambda t: t, x),
            lambda: package.influence(lambda t: t[:, 1:].sum(dim=-1), x),
        ],
        "concat_heads": [
            lambda: package.concat_heads(torch.rand(2, 2), torch.rand(4, 4)),
            lambda: package.concat_heads(torch.rand(2, 3, 2), torch.rand(4, 5)),
            lambda: package.concat_heads(torch.rand(2, 6, 3, 2), torch.rand(4, 4)),
        ],
        "attend_head_by_head": [lambda: package.attend_head_by_head(x[0], *W)],
        "paper_example": [lambda: package.paper_example()],
        "plot_attention": [
            lambda: package.plot_attention(
                torch.rand(2, 3, 3), ["a", "b", "c"], heads=[1]
            ),
            lambda: package.plot_attention(
                torch.rand(2, 3).numpy(), ("a", "b"), ["x", "y", "z"], heads=None
            ),
            lambda: package.plot_attention(torch.rand(1, 2, 3, 3), heads=range(2)),
            lambda: package.plot_attention(torch.rand(90, 90)),
        ],
        "claim": [claims],
        "show_source": [
            lambda: package.show_source(package.split_heads),
            lambda: package.show_source(package.SingleHeadAttention),
        ],
        "use_book_style": [],  # it changes the process; tests/test_style.py calls it
    }


@pytest.fixture(autouse=True)
def no_pictures_left():
    import matplotlib.pyplot as plt

    yield
    plt.close("all")


def test_the_package_is_imported_anew_and_checks(checked):
    assert checked is not mha and checked.split_heads is not mha.split_heads
    with pytest.raises(TypeCheckError):
        checked.split_heads(torch.zeros(4), 2)


def test_everything_public_is_called_here(checked):
    assert set(valid_calls(checked)) >= set(mha.__all__)


@pytest.mark.parametrize("name", mha.__all__)
def test_valid_calls_agree_with_the_annotations(checked, name):
    for call in valid_calls(checked)[name]:
        call()


def test_helpers_agree_with_their_annotations(checked):
    modules = sys.modules
    assert modules["mha"] is checked
    modules["mha.sentence"].kitten_features()
    modules["mha.sentence"].kitten_heads()
    modules["mha.fonts"].fonts_with(frozenset("ab"))
    modules["mha.words"].word("head", number=1)
    modules["mha.palette"].head_color(3)
    pairs = modules["mha.pair_task"].named_pairs(3, 5, 4, torch.Generator())
    every = modules["mha.pair_task"].every_pair(pairs, 5)
    measures = modules["mha.pair_readers"]
    readers = measures.PairReaders((0, 1), num_symbols=5, num_labels=4, num_heads=2)
    measures.train(readers, modules["mha.pair_task"].named_pairs, seq=4, steps=2)
    measures.accuracy(readers, pairs)
    measures.specialisation(measures.place_shares(readers, pairs))
    measures.right_without(readers, 1, pairs)
    measures.squares(readers, every)
    measures.symbol_scores(readers)
    readers.alone(1)(pairs)
    beside, jobs = modules["mha.alternatives"], modules["mha.toy_jobs"]
    probes = modules["mha.probes"]
    for make in (
        beside.ConvolutionLayer,
        beside.RecurrentLayer,
        beside.AttentionLayer,
    ):
        layer = make(4)
        layer(torch.rand(3, 4))
        probes.felt(layer, torch.rand(2, 3, 4))
        probes.waiting_products(layer, torch.rand(2, 3, 4))
        assert probes.counted_flops(layer, torch.rand(1, 3, 4)) == layer.flops(3)
    for job in jobs.JOBS.values():
        reader = jobs.train(job, lambda: beside.AttentionLayer(4), steps=2)
        jobs.accuracy(reader, job, 20, count=3)
    team, x = checked.MultiHeadAttention(4, 2), torch.rand(2, 3, 4)
    contributions = modules["mha.expert_team"].head_contributions
    modules["mha.expert_team"].head_influence(team, lambda m: contributions(m, x))
    modules["mha.style"].to_svg(checked.plot_attention(torch.eye(2)))
    q = torch.rand(1, 2, 4, 4)
    attend, measured = checked.scaled_dot_product_attention, modules["mha.profiling"]
    assert measured.attention_backend(attend, q, q, q) == "math"
    assert measured.peak_memory(attend, q, q, q) > 0
    assert measured.bytes_moved(attend, q, q, q) > measured.operator_count(
        attend, q, q, q
    )
    measured.device_of([q, q])
    timing = modules["mha.timing"]
    assert isinstance(timing.default_device(), torch.device)
    functions = {"readable": attend, "again": lambda *q: attend(*q)[0]}
    options = {"repeats": 1, "warm_up": 1, "gradients": True, "same_values": True}
    for clock in (None, timing.clock_for("cpu"), timing.clock_for(q.device)):
        found = timing.compare(functions, q, q, q, threads=1, clock=clock, **options)
        assert found["again"].median >= 0 == found["again"].spread


def test_the_variants_agree_with_their_annotations(checked):
    variants, module = sys.modules["mha.variants"], checked.MultiHeadAttention(4, 2)
    for variant in (variants.loop_over_heads, variants.batched_heads):
        assert variant(module, torch.rand(2, 5, 4), is_causal=True).shape == (2, 5, 4)
        with pytest.raises(TypeCheckError):
            variant(module, torch.rand(5, 4))


def test_recordings_agree_with_their_annotations(checked, monkeypatch, tmp_path):
    recordings = sys.modules["mha.recordings"]
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(recordings, "SECONDS", 0)
    sizes = recordings.Sizes(1, 4, (4,), (4, 8), 4, 64, 4e3)
    record = recordings.record_device("cpu", sizes=sizes, say=lambda line: None)
    recordings.write_record(record, tmp_path)
    assert recordings.load_records(tmp_path) == [record]


def test_the_character_model_agrees_with_its_annotations(checked):
    module = sys.modules["mha.character_model"]
    assert checked.character_model is module
    sizes = {"d_model": 6, "num_heads": 3, "num_blocks": 1}
    model = module.CharacterModel(5, 8, **sizes)
    text, generator = torch.arange(20) % 5, torch.Generator()
    assert isinstance(module.python_help_text(), str)
    windows = module.random_windows(text, 3, 9, generator)
    assert windows.shape == (3, 9) and model(text[None, :8]).shape == (1, 8, 5)
    model(windows[:, :4].int())
    module.CharacterModel(5, 8, is_causal=False, **sizes)(text[None, :3])
    module.next_character_loss(model, windows).backward()
    losses = module.train(model, text, steps=2, batch=3, learning_rate=1e-3, seed=1)
    assert len(losses) == 2
    module.continue_text(model, text, 3, seed=1)
    module.continue_text(model, text[:1], 0, temperature=0.5)


def test_sharing_agrees_with_its_annotations(checked):
    sharing, rotary = sys.modules["mha.kv_sharing"], sys.modules["mha.rotary"]
    fast_path = sys.modules["mha.fast_path"]
    assert checked.kv_sharing is sharing
    module, x = checked.GroupedQueryAttention(8, 4, 2), torch.rand(2, 5, 8)
    decode = sharing.decode_in_chunks
    decode(module, x, [2, 3], module.new_cache(2, 5), need_weights=True)
    decode(module, x[0], (5,), module.new_cache(1, 5))
    for model in sharing.MODELS.values():
        sharing.cache_bytes(model.num_layers, model.numbers_per_token, 3, batch=2)
    assert sharing.kv_numbers_per_token(2, 3, 4) == 14
    assert sharing.latent_numbers_per_token(2, 3) == 5
    rotary.rotate(x, torch.arange(5))
    rotary.rotate(x[0].half(), torch.arange(5).int(), base=2.0)
    query, key = torch.rand(2, 6, 5, 4), torch.rand(2, 3, 7, 4)
    fast_path.attend_in_groups(query, key, key, is_causal=True, scale=0.5)
    fast_path.attend_in_groups(query[:, :, :1], key, key, torch.ones(1, 7).bool())


def test_what_looks_into_heads_agrees_with_its_annotations(checked, trained):
    modules = {name: sys.modules[f"mha.{name}"] for name in HELPERS if "role" in name}
    minilm, ablation = sys.modules["mha.minilm"], sys.modules["mha.head_ablation"]
    sizes = {"d_model": 12, "num_heads": 3, "num_blocks": 2, "d_ff": 20}
    model = minilm.MiniLM(trained.tokenizer, **sizes).eval()
    model(*model.tokenize(["One.", "And two."])).sum().backward()
    model.look("One sentence.")
    found = modules["role_sentences"].role_sentences()
    sentences = [*found[:4], *found[-4:]]
    weights = modules["role_sentences"].word_weights(model, sentences)
    cases = modules["role_cases"].among_nouns(sentences)
    roles, texts = modules["head_roles"], [sentence.text for sentence in sentences]
    scores = roles.hits(weights, cases).float().mean(dim=0)
    assert roles.weight_on_right(weights, cases).shape == (4, 2, 3)
    roles.held_out(weights, sentences, "subject")
    roles.pair_preferences(weights, sentences)
    effects = ablation.ablation_effects(model, texts)
    ablation.prune_model(model, roles.best_heads(scores, 2)).encode(texts)
    ablation.removal_curve(model, [(0, 1), (1, 2)], range(3), texts)
    statistics = sys.modules["mha.resampling"]
    statistics.rank_correlation(ablation.lengths_added(model, texts), effects)
    statistics.interval(torch.rand(4) < 0.5, cases.block, draws=10)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.KVCache(2, 3, 9, 4).append(
            torch.rand(2, 3, 5, 4), torch.rand(2, 3, 6, 4)
        ),
        lambda m: m.GroupedQueryAttention(4, 2, 1)(torch.rand(4)),
        lambda m: m.GroupedQueryAttention(4, 2, 1)(torch.rand(2, 3, 4), cache={}),
        lambda m: m.kv_sharing.MultiHeadLatentAttention(
            4, 2, kv_rank=3, d_nope=3, d_rope=2, d_v=3
        )(torch.ones(2, 3, 4).int()),
        lambda m: sys.modules["mha.rotary"].rotate(torch.rand(3, 4), torch.arange(5)),
        lambda m: sys.modules["mha.rotary"].rotate(torch.rand(3, 4), torch.rand(3)),
        lambda m: m.scaled_dot_product_attention(
            torch.rand(2, 4), torch.rand(3, 5), torch.rand(3, 4)
        ),
        lambda m: m.scaled_dot_product_attention(
            torch.rand(2, 4), torch.rand(3, 4), torch.rand(2, 4)
        ),
        lambda m: m.scaled_dot_product_attention(
            torch.rand(2, 2, 4), torch.rand(3, 2, 4), torch.rand(3, 2, 4)
        ),
        lambda m: m.scaled_dot_product_attention(*[torch.ones(2, 4).int()] * 3),
        lambda m: m.scaled_dot_product_attention(
            *[torch.ones(2, 4)] * 3, torch.ones(2, 2).int()
        ),
        lambda m: m.combine_heads(torch.rand(3, 4)),
        lambda m: m.attend_head_by_head(
            torch.rand(3, 4), *[torch.rand(2, 5, 2)] * 3, torch.rand(4, 4)
        ),
        lambda m: m.influence(lambda t: t, torch.rand(3, 4)),
        lambda m: m.causal_mask("3"),
        lambda m: m.SingleHeadAttention(4)(torch.rand(4)),
        lambda m: m.character_model.CharacterModel(5, 8)(torch.rand(2, 3)),
        lambda m: m.character_model.CharacterModel(5, 8)(torch.zeros(3).long()),
        lambda m: m.character_model.random_windows(
            torch.zeros(2, 9).long(), 1, 3, torch.Generator()
        ),
        lambda m: m.character_model.continue_text(
            m.character_model.CharacterModel(5, 8), torch.zeros(1, 3).long(), 1
        ),
    ],
)
def test_invalid_shapes_violate_the_annotations(checked, call):
    with pytest.raises(TypeCheckError):
        call(checked)


def test_a_wrong_result_violates_the_annotations(checked, monkeypatch):
    # The shapes of results are checked as well: break a helper, and the caller's annotation notices.
    single_head = sys.modules["mha.single_head"]
    monkeypatch.setattr(
        single_head,
        "attention_weights",
        lambda scores: scores.softmax(dim=-1)[..., :1, :],
    )
    with pytest.raises(TypeCheckError):
        checked.scaled_dot_product_attention(
            torch.rand(2, 4), torch.rand(3, 4), torch.rand(3, 5), torch.zeros(2, 3)
        )


def tensor_annotations(function):
    signature = inspect.signature(function)
    annotations = [p.annotation for p in signature.parameters.values()] + [
        signature.return_annotation
    ]
    return [a for a in annotations if a is torch.Tensor]


@pytest.mark.parametrize("name", mha.__all__)
def test_no_public_signature_has_a_tensor_without_a_shape(name):
    obj = getattr(mha, name)
    functions = [obj]
    if inspect.isclass(obj):
        called = "forward" if hasattr(obj, "forward") else "append"
        functions = [obj.__init__, getattr(obj, called)]
    for function in functions:
        assert not tensor_annotations(function), (
            f"{name} takes or returns a bare Tensor"
        )
