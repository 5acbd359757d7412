"""The full module: one oracle for every path, PyTorch's own module as a second one, and the field's bug reports."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import mha
from mha.fast_path import attend_without_weights

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


def by_loop(attention, query, key, value, mask, is_causal):
    """Head by head with plain softmax in float64, written for this test alone."""
    query, key, value = query.double(), key.double(), value.double()
    double = mha.MultiHeadAttention(E, H).double()
    double.load_state_dict({k: v.double() for k, v in attention.state_dict().items()})
    q, k, v = double.W_q(query), double.W_k(key), double.W_v(value)
    width = E // H
    outputs = torch.zeros(*query.shape[:2], E, dtype=torch.float64)
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
            outputs[item, row, block] = (weights / weights.sum()) @ v[item, :, block]
    return double.W_o(outputs)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_every_path_gives_what_a_loop_gives(name, is_causal):
    attention, (query, key) = module(), inputs()
    expected = by_loop(attention, query, key, key, MASKS[name], is_causal).float()
    for need_weights in (True, False):
        for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            for train in (True, False):
                attention.train(train)
                with mode():
                    output, weights = attention(
                        query,
                        key,
                        mask=MASKS[name],
                        is_causal=is_causal,
                        need_weights=need_weights,
                    )
                torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
                assert (weights is not None) == need_weights


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
@pytest.mark.parametrize("name", MASKS)
def test_half_and_double_types(name, dtype):
    attention, (query, key) = module(), inputs()
    expected = attention(query, key, mask=MASKS[name])[0]
    for need_weights in (True, False):
        output, weights = attention.to(dtype)(
            query.to(dtype), key.to(dtype), mask=MASKS[name], need_weights=need_weights
        )
        assert output.dtype == dtype
        loose = (
            {"rtol": 0.05, "atol": 0.05}
            if dtype.itemsize == 2
            else {"rtol": 1e-4, "atol": 1e-5}
        )
        torch.testing.assert_close(output.float(), expected, **loose)
        assert weights is None or weights.dtype == dtype


def test_a_query_without_keys_gets_the_output_bias():
    # pytorch#27968: one answer in every setting.
    attention, (query, key) = module(), inputs()
    mask = mha.padding_mask(torch.tensor([3, 0]), S)
    for need_weights, train in itertools.product((True, False), repeat=2):
        attention.train(train)
        output, weights = attention(query, key, mask=mask, need_weights=need_weights)
        torch.testing.assert_close(output[1], attention.W_o.bias.expand(L, E))
        alone = attention(query[:1], key[:1], mask=mask[:1], need_weights=need_weights)[
            0
        ]
        torch.testing.assert_close(output[:1], alone)
        assert weights is None or (weights[1] == 0).all()


@pytest.mark.parametrize(
    "lengths", [(5, 5), (2, 5), (5, 2), (1, 4), (0, 3), (3, 0), (2, 3)]
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
    assert attention(query[0], key[0])[1].shape == (H, L, S)


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


def test_state_dict_holds_parameters_only_and_fits_any_length():
    # devalab/molgpt#18: a mask buffer that makes checkpoints unloadable.
    attention = module()
    names = [f"W_{p}.{kind}" for p in "qkvo" for kind in ("weight", "bias")]
    assert list(attention.state_dict()) == names
    module().load_state_dict(attention.state_dict())


@pytest.mark.parametrize("need_weights", [True, False])
def test_sentences_do_not_mix(need_weights):
    # pytorch#122959: attention over the batch.
    attention, (query, key) = module(), inputs()
    key.requires_grad_()
    attention(query, key, need_weights=need_weights)[0][0].sum().backward()
    assert key.grad[0].abs().max() > 0
    assert (key.grad[1] == 0).all()


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


@pytest.mark.parametrize("lengths", [(300, 300), (100, 300), (300, 100), (1, 300)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_fast_path_makes_no_tensor_of_query_times_key(lengths, is_causal):
    attention, (query, key) = (
        module(),
        inputs(batch=1, query=lengths[0], key=lengths[1]),
    )
    largest = (
        max(lengths) * E * 4
    )  # projections, and room for the kernel's own bookkeeping
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
