"""One head: values, gradients, masks, half types, empty lengths, errors, compilation.

The reference is written here from the formula, in float64 and Python loops, so that it shares nothing with
the package. Public bug reports of this field are cited as owner/repository#number beside the test that covers
them.
"""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import mha
from mha.single_head import attention_weights

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 2e-6,
    torch.bfloat16: 3e-2,
    torch.float16: 4e-3,
}
BATCH, HEADS, QUERY, KEY, D_K, D_V = (
    2,
    3,
    5,
    7,
    11,
    13,
)  # all different, so that no axis can stand for another
MASK_KINDS = ("none", "bool", "minus infinity", "bias")
MASK_SHAPES = {
    "query key": (QUERY, KEY),
    "all axes": (BATCH, HEADS, QUERY, KEY),
    "padding": (BATCH, 1, 1, KEY),
    "per head": (1, HEADS, QUERY, KEY),
    "all ones": (1, 1, 1, 1),
}
MODES = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_inputs(
    batch=(BATCH, HEADS),
    query=QUERY,
    key=KEY,
    d_k=D_K,
    d_v=D_V,
    dtype=torch.float64,
    seed=0,
):
    generator = seeded(seed)
    shapes = ((*batch, query, d_k), (*batch, key, d_k), (*batch, key, d_v))
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        for shape in shapes
    ]


def make_mask(kind, shape, dtype=torch.float64, seed=1):
    """Return a mask with about one row in three fully masked, or a bias that masks nothing."""
    generator = seeded(seed)
    if kind == "none":
        return None
    if kind == "bias":
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    allowed = torch.rand(shape, generator=generator) > 0.4
    if allowed.dim() and math.prod(shape) > 1:
        allowed[..., : -(-shape[-2] // 3), :] &= (
            shape[-2] == 1
        )  # the first third of the rows sees nothing
        if shape[-2] == 1:
            allowed[0] = False  # a padded item sees nothing
    if kind == "bool":
        return allowed
    return torch.zeros(shape, dtype=dtype).masked_fill(~allowed, -math.inf)


def attend_by_hand(query, key, value, visible, bias, scale, d_v):
    """Equation 1 of the paper on nested lists: one query after the other, one key after the other."""
    outputs, weights = [], []
    for i, q in enumerate(query):
        scores = [
            sum(a * b for a, b in zip(q, k, strict=True)) * scale + bias[i][j]
            if visible[i][j]
            else -math.inf
            for j, k in enumerate(key)
        ]
        highest = max(scores, default=-math.inf)
        exponentials = [
            0.0 if score == -math.inf else math.exp(score - highest) for score in scores
        ]
        total = sum(exponentials)
        row = [e / total if total else 0.0 for e in exponentials]
        weights.append(row)
        outputs.append(
            [sum(w * v[c] for w, v in zip(row, value, strict=True)) for c in range(d_v)]
        )
    return outputs, weights


def reference(query, key, value, mask=None, is_causal=False, scale=None):
    """Apply :func:`attend_by_hand` to every item of the batch axes."""
    *batch, query_len, d_k = query.shape
    key_len, d_v = value.shape[-2:]
    scale = d_k**-0.5 if scale is None else scale
    shape = (*batch, query_len, key_len)
    bias = torch.zeros(shape, dtype=torch.float64)
    visible = torch.ones(shape, dtype=torch.bool)
    if mask is not None and mask.dtype == torch.bool:
        visible = mask.expand(shape)
    elif mask is not None:
        bias = mask.detach().double().expand(shape)
    outputs, weights = [], []
    for item in itertools.product(*map(range, batch)):
        seen = visible[item].tolist()
        for i, j in itertools.product(range(query_len), range(key_len)):
            seen[i][j] = seen[i][j] and (not is_causal or j <= i + key_len - query_len)
        lists = [
            tensor[item].detach().double().tolist() for tensor in (query, key, value)
        ]
        output, weight = attend_by_hand(*lists, seen, bias[item].tolist(), scale, d_v)
        outputs.append(output)
        weights.append(weight)
    return (
        torch.tensor(outputs, dtype=torch.float64).reshape(*batch, query_len, d_v),
        torch.tensor(weights, dtype=torch.float64).reshape(shape),
    )


def combined_mask(mask, is_causal, query_len, key_len):
    """One mask for torch's own function, which aligns its flag to the start and may refuse flag and mask."""
    if not is_causal:
        return mask
    seen = torch.tensor(
        [
            [j <= i + key_len - query_len for j in range(key_len)]
            for i in range(query_len)
        ]
    )
    seen = seen.reshape(query_len, key_len).bool()
    if mask is None:
        return seen
    return (
        mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, -math.inf)
    )


def hidden(mask, is_causal, shape):
    """Return where a weight must be exactly 0."""
    combined = combined_mask(mask, is_causal, *shape[-2:])
    if combined is None:
        return torch.zeros(shape, dtype=torch.bool)
    return (
        ~combined if combined.dtype == torch.bool else combined == -math.inf
    ).expand(shape)


# --- the causal mask ---


@pytest.mark.parametrize(
    ("query_len", "key_len", "rows"),
    [
        (4, None, "1000 1100 1110 1111"),
        (2, 5, "11110 11111"),
        (5, 2, "00 00 00 10 11"),
        (1, 4, "1111"),
        (2, 3, "110 111"),  # the off-by-one of flashinfer-ai/flashinfer#348
        (1, 1, "1"),
        (4, 1, "0 0 0 1"),
    ],
)
def test_causal_mask_is_aligned_to_the_end(query_len, key_len, rows):
    # pytorch/pytorch#108108, #103082, Dao-AILab/flash-attention#517
    expected = torch.tensor([[cell == "1" for cell in row] for row in rows.split()])
    mask = mha.causal_mask(query_len, key_len)
    assert mask.dtype == torch.bool
    assert torch.equal(mask, expected)


def test_causal_mask_row_i_sees_itself_and_all_before():
    # the flipped or off-by-one mask: pytorch/pytorch#29546, #34908
    mask = mha.causal_mask(6)
    assert mask.sum(dim=1).tolist() == [1, 2, 3, 4, 5, 6]
    assert mask.diagonal().all() and not mask.triu(1).any()


@pytest.mark.parametrize(("query_len", "key_len"), [(0, 0), (0, 3), (3, 0), (0, None)])
def test_causal_mask_of_length_zero(query_len, key_len):
    shape = (query_len, query_len if key_len is None else key_len)
    assert mha.causal_mask(query_len, key_len).shape == shape


@pytest.mark.parametrize(("query_len", "key_len"), [(-1, None), (-1, 2), (2, -1)])
def test_causal_mask_refuses_negative_lengths(query_len, key_len):
    with pytest.raises(
        ValueError, match=r"(query|key)_len: expected at least 0, got -1"
    ):
        mha.causal_mask(query_len, key_len)


@pytest.mark.parametrize("length", ["3", 2.5, None, True])
def test_causal_mask_refuses_what_is_no_length(length):
    with pytest.raises(TypeError, match="query_len: expected an int"):
        mha.causal_mask(length, 3)


@pytest.mark.parametrize("x", [[[1.0]], "text", np.ones((2, 3))])
def test_module_refuses_what_is_no_tensor(x):
    with pytest.raises(TypeError, match=r"x: expected a torch\.Tensor, got"):
        mha.SingleHeadAttention(3)(x)


def test_module_refuses_whole_numbers():
    with pytest.raises(TypeError, match="x: expected a floating-point tensor"):
        mha.SingleHeadAttention(3)(torch.ones(2, 3, dtype=torch.int64))


@pytest.mark.parametrize(
    ("name", "value"), [("scale", "x"), ("scale", True), ("dropout_p", "a")]
)
def test_numbers_have_to_be_numbers(name, value):
    x = torch.rand(2, 3)
    with pytest.raises(TypeError, match=f"{name}: expected a number"):
        mha.scaled_dot_product_attention(x, x, x, **{name: value})


def test_compiles_for_any_length():
    compiled = torch.compile(
        lambda x: mha.scaled_dot_product_attention(x, x, x, is_causal=True)[0],
        fullgraph=True,
        dynamic=True,
        backend="aot_eager",
    )
    for length in (3, 5, 9):
        x = torch.rand(2, length, 4)
        expected = mha.scaled_dot_product_attention(x, x, x, is_causal=True)[0]
        torch.testing.assert_close(compiled(x), expected)


def test_causal_mask_goes_where_it_is_told():
    assert mha.causal_mask(2, device="meta").device.type == "meta"


# --- the softmax ---


def test_softmax_runs_over_the_keys():
    # labmlai/annotated_deep_learning_paper_implementations#146 and #282: two people argue opposite ways
    weights = attention_weights(torch.tensor([[0.0, 1.0], [0.0, 2.0]]))
    assert_close(
        weights, torch.tensor([[0.2689, 0.7311], [0.1192, 0.8808]]), atol=1e-4, rtol=0
    )


def test_softmax_of_a_row_of_minus_infinity_is_zero_and_leaves_the_others():
    scores = torch.tensor(
        [[-math.inf, -math.inf], [0.0, -math.inf]], requires_grad=True
    )
    weights = attention_weights(scores)
    assert torch.equal(weights, torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    weights.square().sum().backward()
    assert torch.equal(scores.grad, torch.zeros(2, 2))


def test_a_finite_fill_is_the_mean_and_minus_infinity_is_nothing():
    # pytorch/pytorch#110213, d2l-ai/d2l-en#379: a finite "minus infinity" attends everywhere
    row = torch.full((1, 3), -1e9)
    assert_close(attention_weights(row), torch.full((1, 3), 1 / 3))
    assert torch.equal(
        attention_weights(torch.full((1, 3), -math.inf)), torch.zeros(1, 3)
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_softmax_of_half_types_sums_in_float32(dtype):
    scores = (torch.randn(4, 3000, generator=seeded()) * 2).to(dtype)
    exact = torch.softmax(scores.double(), dim=-1)
    assert torch.equal(attention_weights(scores), exact.to(torch.float32).to(dtype))
    assert attention_weights(scores).dtype == dtype


def test_softmax_keeps_a_nan_visible():
    assert attention_weights(torch.tensor([[math.nan, 0.0]])).isnan().all()


def test_softmax_does_not_overflow():
    assert_close(
        attention_weights(torch.tensor([[1e30, 1e30], [-1e30, 1e30]])),
        torch.tensor([[0.5, 0.5], [0.0, 1.0]]),
    )


# --- values against the reference ---


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [("none", "query key"), *itertools.product(MASK_KINDS[1:], MASK_SHAPES)],
)
def test_values_in_every_setting(kind, shape, is_causal, dtype):
    # One answer with gradients on and off: pytorch/pytorch#103963, #103749, #107084
    query, key, value = make_inputs(dtype=dtype)
    mask = make_mask(kind, MASK_SHAPES[shape], dtype)
    before = [t.clone() for t in (query, key, value, mask) if t is not None]
    expected_output, expected_weights = reference(query, key, value, mask, is_causal)
    blocked = hidden(mask, is_causal, expected_weights.shape)
    results = []
    for mode in MODES.values():
        with mode():
            output, weights = mha.scaled_dot_product_attention(
                query, key, value, mask, is_causal=is_causal
            )
        results.append((output, weights))
        assert output.dtype == weights.dtype == dtype
        close = {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype]}
        assert_close(output.double(), expected_output, **close)
        assert_close(weights.double(), expected_weights, **close)
        assert (weights[blocked] == 0).all()  # exactly
        empty = blocked.all(dim=-1)
        assert (output[empty] == 0).all()  # exactly
        sums = weights.double().sum(dim=-1)
        assert_close(sums, (~empty).double(), atol=TOLERANCE[dtype], rtol=0)
    for other in results[1:]:
        assert torch.equal(results[0][0], other[0]) and torch.equal(
            results[0][1], other[1]
        )
    after = [t for t in (query, key, value, mask) if t is not None]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(t._version == 0 for t in (query, key, value))


def test_some_of_these_masks_leave_rows_with_nothing_to_see():
    # Without such rows the tests above would prove less than they say.
    for kind, shape in itertools.product(
        ("bool", "minus infinity"), ("query key", "all axes", "padding", "per head")
    ):
        mask = make_mask(kind, MASK_SHAPES[shape])
        blocked = hidden(mask, False, (BATCH, HEADS, QUERY, KEY))
        assert blocked.all(dim=-1).any() and not blocked.all()


sizes = st.integers(min_value=0, max_value=4)
widths = st.integers(min_value=1, max_value=4)


@settings(derandomize=True, deadline=None, max_examples=80)
@given(
    batch=st.lists(st.integers(0, 3), max_size=2),
    query_len=sizes,
    key_len=sizes,
    d_k=widths,
    d_v=widths,
    kind=st.sampled_from(MASK_KINDS),
    ones=st.lists(st.booleans(), min_size=4, max_size=4),
    flat=st.booleans(),
    is_causal=st.booleans(),
    scale=st.sampled_from([None, 0.3, -1.0, 0.0]),
    seed=st.integers(0, 2**16),
)
def test_values_and_gradients_at_random(
    batch, query_len, key_len, d_k, d_v, kind, ones, flat, is_causal, scale, seed
):
    generator = seeded(seed)
    inputs = make_inputs(batch, query_len, key_len, d_k, d_v, seed=seed)
    scores_shape = (*batch, query_len, key_len)
    shape = [1 if one else size for one, size in zip(ones, scores_shape, strict=False)]
    shape = (query_len, key_len) if flat else tuple(shape)
    mask = None
    if kind in ("bool", "minus infinity"):
        mask = torch.rand(shape, generator=generator) > 0.6
    if kind == "minus infinity":
        mask = torch.zeros(shape, dtype=torch.float64).masked_fill(~mask, -math.inf)
    if kind == "bias":
        mask = torch.randn(shape, generator=generator, dtype=torch.float64)

    output, weights = mha.scaled_dot_product_attention(
        *inputs, mask, is_causal=is_causal, scale=scale
    )
    expected_output, expected_weights = reference(*inputs, mask, is_causal, scale)
    assert_close(output, expected_output, atol=1e-12, rtol=1e-12)
    assert_close(weights, expected_weights, atol=1e-12, rtol=1e-12)

    differentiable = [*inputs] + (
        [mask] if mask is not None and mask.is_floating_point() else []
    )
    for tensor in differentiable:
        tensor.requires_grad_()
    upstream = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    output, _ = mha.scaled_dot_product_attention(
        *inputs, mask, is_causal=is_causal, scale=scale
    )
    gradients = torch.autograd.grad(output, differentiable, upstream)
    assert all(gradient.isfinite().all() for gradient in gradients)
    if 0 not in scores_shape and scale != 0.0:
        combined = combined_mask(mask, is_causal, query_len, key_len)
        theirs = F.scaled_dot_product_attention(*inputs, combined, scale=scale)
        assert_close(output, theirs, atol=1e-12, rtol=1e-12)
        for ours, torchs in zip(
            gradients,
            torch.autograd.grad(theirs, differentiable, upstream),
            strict=True,
        ):
            assert_close(ours, torchs, atol=1e-10, rtol=1e-10)


# --- gradients ---


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows_in_loss", ["all rows", "good rows only"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("shape", MASK_SHAPES)
@pytest.mark.parametrize("kind", ["bool", "minus infinity"])
def test_gradients_stay_finite_where_rows_see_nothing(
    kind, shape, is_causal, rows_in_loss, dtype
):
    # NaN in the gradients although the forward looks clean: pytorch/pytorch#41508
    inputs = [tensor.requires_grad_() for tensor in make_inputs(dtype=dtype)]
    mask = make_mask(kind, MASK_SHAPES[shape], dtype)
    if kind == "minus infinity":
        mask.requires_grad_()
    output, weights = mha.scaled_dot_product_attention(
        *inputs, mask, is_causal=is_causal
    )
    blocked = hidden(mask.detach(), is_causal, weights.shape)
    empty = blocked.all(dim=-1)
    loss = output.square() if rows_in_loss == "all rows" else output[~empty].square()
    (loss.sum() + weights.square().sum()).backward()
    leaves = inputs + ([mask] if mask.requires_grad else [])
    for leaf in leaves:
        assert leaf.grad.isfinite().all()
    assert (inputs[0].grad[empty] == 0).all()
    if not empty.all():
        assert (inputs[2].grad != 0).any()
    unseen = blocked.all(dim=-2)  # keys that no query may see
    assert (inputs[1].grad[unseen] == 0).all() and (inputs[2].grad[unseen] == 0).all()


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kind", MASK_KINDS)
def test_gradients_are_the_derivatives(kind, is_causal):
    inputs = [tensor.requires_grad_() for tensor in make_inputs((2,), 3, 4, 2, 3)]
    mask = make_mask(kind, (3, 4))
    if kind == "bias":
        inputs.append(mask.requires_grad_())

    def attend(query, key, value, bias=None):
        return mha.scaled_dot_product_attention(
            query, key, value, mask if bias is None else bias, is_causal=is_causal
        )

    assert torch.autograd.gradcheck(attend, inputs)
    if kind in ("none", "bool"):
        assert torch.autograd.gradgradcheck(
            lambda *tensors: attend(*tensors)[0], inputs
        )


def test_weights_carry_gradients_too():
    query, key, value = (tensor.requires_grad_() for tensor in make_inputs())
    _, weights = mha.scaled_dot_product_attention(query, key, value)
    weights.square().sum().backward()
    assert (
        query.grad.abs().sum() > 0 and key.grad.abs().sum() > 0 and value.grad is None
    )


# --- masks ---


def eye_values(length):
    """q = k = 0 and v = I: the output is the weights."""
    return torch.zeros(length, 4), torch.zeros(length, 4), torch.eye(length)


def test_true_means_may_attend():
    # the two APIs of torch mean opposite things: rasbt/LLMs-from-scratch#1061, pytorch/pytorch#170400
    output, _ = mha.scaled_dot_product_attention(
        *eye_values(3), torch.ones(3, 3).tril().bool()
    )
    assert_close(
        output, torch.tensor([[1, 0, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3]])
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_zeros_and_ones_as_floats_are_a_bias(dtype):
    # pytorch/pytorch#21518, #163026, timeseriesAI/tsai#171
    output, _ = mha.scaled_dot_product_attention(
        *eye_values(3), torch.ones(3, 3).tril().to(dtype)
    )
    assert_close(
        output,
        torch.tensor([[0.576, 0.212, 0.212], [0.422, 0.422, 0.155], [1 / 3] * 3]),
        atol=1e-3,
        rtol=0,
    )


def test_a_row_without_keys_gives_zero_and_leaves_the_other_rows():
    # pytorch/pytorch#103963, #133882
    query, key, value = make_inputs((1, 1), 3, 3, 4, 4)
    allowed = torch.tensor([[1, 0, 0], [0, 0, 0], [1, 1, 1]]).bool()
    output, weights = mha.scaled_dot_product_attention(query, key, value, allowed)
    assert torch.equal(output[0, 0, 1], torch.zeros(4, dtype=torch.float64))
    assert_close(
        weights.sum(dim=-1)[0, 0], torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    )
    assert_close(output[0, 0, 0], value[0, 0, 0])
    assert_close(output, F.scaled_dot_product_attention(query, key, value, allowed))


def test_a_large_finite_bias_on_a_whole_row_is_the_mean():
    # pytorch/pytorch#110213, #109517: only minus infinity means "must not see"
    query, key, value = make_inputs((), dtype=torch.float32)
    bias = torch.zeros(QUERY, KEY)
    bias[1] = torch.finfo(torch.float32).min
    output, _ = mha.scaled_dot_product_attention(query, key, value, bias)
    assert_close(output[1], value.mean(dim=0))


def test_a_masked_key_cannot_win_however_large_its_score():
    # too small a "minus infinity" leaks: hyunwoongko/transformer#10
    query, key, value = (
        torch.tensor([[1.0]]),
        torch.tensor([[0.0], [1e30]]),
        torch.tensor([[1.0], [2.0]]),
    )
    output, weights = mha.scaled_dot_product_attention(
        query, key, value, torch.tensor([[True, False]])
    )
    assert torch.equal(weights, torch.tensor([[1.0, 0.0]])) and output.item() == 1.0


def test_masking_renormalises_what_is_left():
    # a mask multiplied onto the scores leaks, one after the softmax leaves a sum below 1:
    # autosome-ru/vigg_ribonanza#1
    query, key = torch.tensor([[1.0]]), torch.tensor([[1.0], [2.0], [3.0]])
    allowed = torch.tensor([[True, True, False]])
    _, weights = mha.scaled_dot_product_attention(query, key, key, allowed, scale=1.0)
    assert_close(weights, torch.tensor([[0.2689, 0.7311, 0.0]]), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.int64, torch.uint8, torch.complex64], ids=str
)
def test_whole_number_and_complex_masks_are_type_errors(dtype):
    # pytorch/pytorch#21518, huggingface/transformers#24897
    with pytest.raises(
        TypeError, match=rf"mask: expected a boolean.*{dtype}.*mask\.bool\(\)"
    ):
        mha.scaled_dot_product_attention(
            *make_inputs(), torch.ones(QUERY, KEY).to(dtype)
        )


@pytest.mark.parametrize(
    "mask", [[[True]], True, 0.0, "causal", torch.ones(QUERY, KEY).bool().numpy()]
)
def test_a_mask_that_is_no_tensor_is_a_type_error(mask):
    with pytest.raises(TypeError, match=r"mask: expected a torch\.Tensor"):
        mha.scaled_dot_product_attention(*make_inputs(), mask)


WRONG_MASK_SHAPES = [
    (),
    (KEY,),
    (1, KEY),
    (QUERY, 1),
    (1, 1),
    (KEY, QUERY),
    (QUERY, KEY + 1),
    (BATCH, KEY),
    (BATCH, QUERY, KEY),
    (HEADS, QUERY, KEY),
    (1, QUERY, KEY),
    (HEADS, BATCH, QUERY, KEY),
    (
        BATCH * HEADS,
        QUERY,
        KEY,
    ),  # line/lighthouse#77: repeat or repeat_interleave, nobody knows
    (BATCH, HEADS, KEY, QUERY),
    (BATCH, HEADS, QUERY, 0),
    (BATCH, HEADS, QUERY, KEY + 1),
    (BATCH, HEADS, QUERY + 1, KEY),
    (BATCH + 1, 1, 1, KEY),
    (1, BATCH, HEADS, QUERY, KEY),
]


@pytest.mark.parametrize("dtype", [torch.bool, torch.float64], ids=str)
@pytest.mark.parametrize("shape", WRONG_MASK_SHAPES, ids=str)
def test_a_mask_of_another_shape_names_both_shapes(shape, dtype):
    with pytest.raises(ValueError) as error:
        mha.scaled_dot_product_attention(*make_inputs(), torch.ones(shape).to(dtype))
    for text in (
        "mask",
        str(tuple(shape)),
        str((QUERY, KEY)),
        str((BATCH, HEADS, QUERY, KEY)),
    ):
        assert text in str(error.value)


@pytest.mark.parametrize("heads", [1, 2, 5])
def test_a_mask_per_item_never_lands_on_the_heads(heads):
    # Broadcasting from the right would put (batch, query, key) on the heads, silently where batch == heads.
    inputs = make_inputs((heads, heads), QUERY, QUERY)
    for shape in ((heads, QUERY, QUERY), (heads, 1, QUERY)):
        with pytest.raises(ValueError, match="mask"):
            mha.scaled_dot_product_attention(*inputs, torch.ones(shape).bool())


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    ("first", "second"), list(itertools.product(["bool", "minus infinity"], repeat=2))
)
def test_boolean_and_minus_infinity_say_the_same(first, second, is_causal):
    # float causal mask with boolean padding mask, and the other three: pytorch/pytorch#92554
    inputs = make_inputs()
    results = []
    for kind in (first, second):
        mask = make_mask(kind, (BATCH, 1, 1, KEY))
        results.append(
            mha.scaled_dot_product_attention(*inputs, mask, is_causal=is_causal)
        )
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(
        results[0][1], results[1][1]
    )


def test_a_query_that_sees_nothing_in_one_item_leaves_the_other_item_bit_equal():
    # pytorch/pytorch#27968, #152028
    inputs = make_inputs((2,), 3, 3, dtype=torch.float32)
    padding = torch.tensor([[True, True, False], [False, False, False]])[:, None, :]
    output, weights = mha.scaled_dot_product_attention(*inputs, padding)
    alone, _ = mha.scaled_dot_product_attention(
        *(tensor[:1] for tensor in inputs), padding[:1]
    )
    assert torch.equal(output[0], alone[0])
    assert not output[1].any() and not weights[1].any()


def test_padding_hides_key_columns_not_query_rows():
    # hyunwoongko/transformer#40, harvardnlp/annotated-transformer#137
    module = mha.SingleHeadAttention(6).double()
    ids = torch.tensor([[5, 7, 0, 0], [3, 0, 0, 0]])
    x = torch.randn(2, 4, 6, generator=seeded(), dtype=torch.float64)
    padding = (ids != 0)[:, None, :]
    before, _ = module(x, padding)
    after, _ = module(torch.where((ids == 0)[..., None], x + 3.0, x), padding)
    assert torch.equal(before[ids != 0], after[ids != 0])


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    ("query_dtype", "mask_dtype"), list(itertools.permutations(DTYPES, 2)), ids=str
)
def test_a_float_mask_of_another_dtype_is_cast_to_the_scores(
    query_dtype, mask_dtype, is_causal
):
    # pytorch/pytorch#161936, comfyanonymous/ComfyUI#8118
    inputs = make_inputs(dtype=query_dtype)
    mask = make_mask("bias", (QUERY, KEY), mask_dtype).requires_grad_()
    output, weights = mha.scaled_dot_product_attention(
        *inputs, mask, is_causal=is_causal
    )
    assert output.dtype == weights.dtype == query_dtype
    same, _ = mha.scaled_dot_product_attention(
        *inputs, mask.detach().to(query_dtype), is_causal=is_causal
    )
    assert torch.equal(output, same)
    output.float().square().sum().backward()
    assert (
        mask.grad.dtype == mask_dtype and mask.grad.isfinite().all() and mask.grad.any()
    )


@pytest.mark.parametrize(
    "mask_dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_most_negative_float_does_not_raise_in_half_types(dtype, mask_dtype):
    # the fill constant overflows: NVIDIA/apex#1052, facebookresearch/fairseq#3575
    inputs = [tensor.requires_grad_() for tensor in make_inputs(dtype=dtype)]
    lowest = torch.finfo(mask_dtype).min
    mask = torch.zeros(QUERY, KEY, dtype=mask_dtype).masked_fill(
        ~torch.ones(QUERY, KEY).tril().bool(), lowest
    )
    output, weights = mha.scaled_dot_product_attention(*inputs, mask, is_causal=True)
    assert output.isfinite().all()
    assert (weights[..., ~torch.ones(QUERY, KEY).tril().bool()] == 0).all()
    output.float().sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in inputs)


# --- causality ---


@pytest.mark.parametrize(
    ("query_len", "key_len"),
    [(2, 5), (5, 2), (1, 4), (2, 3), (4, 4), (0, 3), (3, 0), (1, 1)],
)
def test_is_causal_is_aligned_to_the_end(query_len, key_len):
    # pytorch/pytorch#108108, #144858: torch's own flag is aligned to the start
    query, key, value = (
        torch.zeros(query_len, 4),
        torch.zeros(key_len, 4),
        torch.eye(key_len),
    )
    output, weights = mha.scaled_dot_product_attention(
        query, key, value, is_causal=True
    )
    expected = torch.zeros(query_len, key_len)
    for i in range(query_len):
        seen = max(0, i + key_len - query_len + 1)
        expected[i, :seen] = 1 / max(seen, 1)
    assert_close(weights, expected)
    assert_close(output, expected)
    explicit, _ = mha.scaled_dot_product_attention(
        query, key, value, mha.causal_mask(query_len, key_len)
    )
    assert torch.equal(output, explicit)


def test_decoding_in_chunks_equals_decoding_at_once():
    query, key, value = make_inputs((2,), 7, 7)
    whole, _ = mha.scaled_dot_product_attention(query, key, value, is_causal=True)
    parts = [
        mha.scaled_dot_product_attention(
            query[:, a:b], key[:, :b], value[:, :b], is_causal=True
        )[0]
        for a, b in ((0, 3), (3, 4), (4, 7))
    ]
    assert_close(torch.cat(parts, dim=-2), whole)


def test_the_future_has_no_influence_not_even_on_gradients():
    inputs = [tensor.requires_grad_() for tensor in make_inputs((2,), 5, 5)]
    output, _ = mha.scaled_dot_product_attention(*inputs, is_causal=True)
    for i in range(5):
        gradients = torch.autograd.grad(
            output[:, i].sum(), inputs[1:], retain_graph=True
        )
        assert all(not gradient[:, i + 1 :].any() for gradient in gradients)
        assert all(gradient[:, : i + 1].abs().sum() > 0 for gradient in gradients[1:])


@pytest.mark.parametrize("kind", ["bool", "minus infinity", "bias"])
@pytest.mark.parametrize(("query_len", "key_len"), [(3, 3), (2, 5), (5, 2)])
def test_mask_and_is_causal_both_apply(query_len, key_len, kind):
    # one of them dropped, by luck of the backend: pytorch/pytorch#187801, jingyaogong/minimind#497
    inputs = make_inputs((2,), query_len, key_len)
    mask = make_mask(kind, (2, query_len, key_len))
    both, weights = mha.scaled_dot_product_attention(*inputs, mask, is_causal=True)
    explicit = combined_mask(mask, True, query_len, key_len)
    assert torch.equal(both, mha.scaled_dot_product_attention(*inputs, explicit)[0])
    assert not weights[hidden(mask, True, weights.shape)].any()
    if kind == "bias" or (query_len, key_len) != (5, 2):
        assert not torch.equal(
            both, mha.scaled_dot_product_attention(*inputs, is_causal=True)[0]
        )
    if (query_len, key_len) == (3, 3):
        assert not torch.equal(both, mha.scaled_dot_product_attention(*inputs, mask)[0])


def test_is_causal_needs_no_mask_and_a_mask_that_hides_nothing_changes_nothing():
    # pytorch/pytorch#118972, #99282: a wrong hint, or "Need attn_mask if specifying the is_causal hint"
    inputs = make_inputs((2,), 4, 4)
    alone, _ = mha.scaled_dot_product_attention(*inputs, is_causal=True)
    for mask in (torch.ones(4, 4).bool(), torch.zeros(4, 4)):
        assert torch.equal(
            alone, mha.scaled_dot_product_attention(*inputs, mask, is_causal=True)[0]
        )


# --- the scale, half types, autocast ---


def test_the_scale_is_the_heads_width_not_the_models():
    # Graylab/DL4Proteins-notebooks#12, omihub777/ViT-CIFAR#11: d_model 64, 4 heads → 1/sqrt(16)
    query, key, value = make_inputs((2, 4), 5, 5, 16, 16)
    output, _ = mha.scaled_dot_product_attention(query, key, value)
    assert_close(output, F.scaled_dot_product_attention(query, key, value))
    assert_close(
        output, mha.scaled_dot_product_attention(query, key, value, scale=0.25)[0]
    )
    assert not torch.allclose(
        output, mha.scaled_dot_product_attention(query, key, value, scale=0.125)[0]
    )


@pytest.mark.parametrize("scale", [0.0, 1.0, -0.5, 2])
def test_a_scale_of_ones_own(scale):
    inputs = make_inputs((2,))
    output, weights = mha.scaled_dot_product_attention(*inputs, scale=scale)
    expected = reference(*inputs, scale=scale)
    assert_close(output, expected[0], atol=1e-12, rtol=1e-12)
    assert_close(weights, expected[1], atol=1e-12, rtol=1e-12)


def test_float16_does_not_overflow_where_the_scaled_score_fits():
    query = torch.full((1, 256), 20.0, dtype=torch.float16)
    key = torch.stack([torch.full((256,), 20.0), torch.full((256,), 19.9)]).half()
    product = query @ key.T
    assert (
        product.isinf().any()
    )  # 256 * 20 * 20 = 102400: scaling afterwards would be too late
    output, weights = mha.scaled_dot_product_attention(query, key, key)
    assert weights.isfinite().all() and output.isfinite().all()
    assert weights[0, 0] > weights[0, 1] > 0 or weights[0, 0] == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", MASK_KINDS)
def test_autocast(kind, dtype):
    # pytorch/pytorch#99012 and #161936: a float32 mask beside half-precision scores
    query, key, value = (
        tensor.requires_grad_() for tensor in make_inputs(dtype=torch.float32)
    )
    mask = make_mask(kind, (QUERY, KEY), torch.float32)
    exact, _ = mha.scaled_dot_product_attention(query, key, value, mask, is_causal=True)
    with torch.autocast("cpu", dtype=dtype):
        output, weights = mha.scaled_dot_product_attention(
            query, key, value, mask, is_causal=True
        )
    assert output.dtype == torch.float32
    assert_close(output, exact, atol=5e-2, rtol=5e-2)
    assert (weights[hidden(mask, True, weights.shape)] == 0).all()
    output.sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in (query, key, value))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_around_the_module(dtype):
    module = mha.SingleHeadAttention(8)
    x = torch.randn(2, 5, 8, generator=seeded())
    exact, _ = module(x, is_causal=True)
    with torch.autocast("cpu", dtype=dtype):
        output, _ = module(x, torch.zeros(5, 5), is_causal=True)
    assert output.dtype == dtype
    assert_close(output.float(), exact, atol=5e-2, rtol=5e-2)


# --- dropout ---


def test_no_dropout_is_deterministic_and_draws_no_random_numbers():
    # pytorch/pytorch#124464, pytorch/torchtune#1791
    inputs = make_inputs()
    state = torch.get_rng_state()
    first, second = (mha.scaled_dot_product_attention(*inputs)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("kind", MASK_KINDS)
def test_weights_are_returned_before_dropout(kind):
    # pytorch/pytorch#42929, facebookresearch/fairseq#351: one key and dropout 0.2 gave a weight of 1.25
    inputs = make_inputs((), 40, 50)
    mask = make_mask(kind, (40, 50))
    plain, weights = mha.scaled_dot_product_attention(*inputs, mask, is_causal=True)
    torch.manual_seed(0)
    dropped, weights_too = mha.scaled_dot_product_attention(
        *inputs, mask, is_causal=True, dropout_p=0.4
    )
    assert torch.equal(weights, weights_too)
    assert not torch.allclose(dropped, plain)
    assert dropped.isfinite().all()
    torch.manual_seed(0)
    assert_close(dropped, F.dropout(weights, 0.4) @ inputs[2])


def test_dropout_drops_weights_and_scales_up_the_rest():
    value = torch.eye(400)
    torch.manual_seed(0)
    output, _ = mha.scaled_dot_product_attention(
        torch.zeros(400, 4), torch.zeros(400, 4), value, dropout_p=0.25
    )
    kept = output > 0
    assert_close(output[kept], torch.full_like(output[kept], 1 / 400 / 0.75))
    assert abs(kept.float().mean().item() - 0.75) < 0.01


@pytest.mark.parametrize("dropout_p", [-0.1, 1.0, 1.5, math.nan, math.inf])
def test_dropout_outside_its_range(dropout_p):
    with pytest.raises(
        ValueError, match=r"dropout_p: expected a probability in \[0, 1\), got"
    ):
        mha.scaled_dot_product_attention(*make_inputs(), dropout_p=dropout_p)


# --- shapes, layouts, lengths ---


@pytest.mark.parametrize("kind", MASK_KINDS)
def test_non_contiguous_inputs_give_the_same_values(kind):
    inputs = make_inputs()
    mask = make_mask(kind, (BATCH, HEADS, QUERY, KEY))
    strided = [
        tensor.transpose(-2, -1).contiguous().transpose(-2, -1) for tensor in inputs
    ]
    strided += [torch.stack([tensor, tensor], dim=-1)[..., 0] for tensor in inputs]
    for query, key, value in (strided[:3], strided[3:]):
        assert not query.is_contiguous() and not key.is_contiguous()
        wide = None if mask is None else torch.stack([mask, mask], dim=-1)[..., 0]
        ours = mha.scaled_dot_product_attention(query, key, value, wide)
        for got, expected in zip(
            ours, mha.scaled_dot_product_attention(*inputs, mask), strict=True
        ):
            assert_close(got, expected, atol=1e-14, rtol=1e-12)


@pytest.mark.parametrize("kind", MASK_KINDS)
def test_the_callers_tensors_are_left_alone(kind):
    tensors = make_inputs(dtype=torch.float32)
    mask = make_mask(kind, (QUERY, KEY), torch.float32)
    tensors += [] if mask is None else [mask]
    copies = [tensor.clone() for tensor in tensors]
    versions = [tensor._version for tensor in tensors]
    output, weights = mha.scaled_dot_product_attention(
        *tensors, is_causal=True, dropout_p=0.1
    )
    output.add_(1.0)
    weights.mul_(2.0)  # nor does the result share memory with an input
    assert [tensor._version for tensor in tensors] == versions
    assert all(
        torch.equal(tensor, copy) for tensor, copy in zip(tensors, copies, strict=True)
    )


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kind", MASK_KINDS)
@pytest.mark.parametrize(
    ("batch", "query_len", "key_len"),
    [
        ((2,), 0, 3),
        ((2,), 3, 0),
        ((2,), 0, 0),
        ((0,), 3, 4),
        ((2, 0), 3, 4),
        ((), 0, 0),
    ],
)
def test_lengths_of_zero(batch, query_len, key_len, kind, is_causal):
    # pytorch/pytorch#81077
    inputs = [
        tensor.requires_grad_() for tensor in make_inputs(batch, query_len, key_len)
    ]
    mask = make_mask("bias" if kind == "bias" else "none", (query_len, key_len))
    if kind == "bool":
        mask = torch.ones(query_len, key_len).bool()
    elif kind == "minus infinity":
        mask = torch.full((query_len, key_len), -math.inf)
    output, weights = mha.scaled_dot_product_attention(
        *inputs, mask, is_causal=is_causal
    )
    assert output.shape == (*batch, query_len, D_V) and weights.shape == (
        *batch,
        query_len,
        key_len,
    )
    assert not output.any()
    output.sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in inputs)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3), (2, 3, 1, 2)], ids=str)
def test_any_number_of_batch_axes_and_one_matrix_of_weights_for_each(batch):
    # pytorch/pytorch#34537: per head, not averaged; #122959: items do not meet
    query, key, value = (tensor.requires_grad_() for tensor in make_inputs(batch))
    output, weights = mha.scaled_dot_product_attention(query, key, value)
    assert output.shape == (*batch, QUERY, D_V) and weights.shape == (
        *batch,
        QUERY,
        KEY,
    )
    if batch:
        gradients = torch.autograd.grad(output[0].sum(), (query, key, value))
        assert all(
            not gradient[1:].any() and gradient[0].any() for gradient in gradients
        )


@pytest.mark.parametrize(
    ("shapes", "name"),
    [
        (((3, 4), (5, 6), (5, 4)), "key"),  # widths
        (((3, 4), (5, 4), (6, 4)), "value"),  # lengths
        (((2, 3, 4), (4, 5, 4), (4, 5, 4)), "key"),  # batch sizes: no broadcasting
        (((1, 3, 4), (4, 5, 4), (4, 5, 4)), "key"),  # pytorch/pytorch#122959
        (((4, 3, 4), (4, 5, 4), (1, 5, 4)), "value"),
        (
            ((2, 4, 3, 4), (2, 1, 5, 4), (2, 1, 5, 4)),
            "key",
        ),  # four query heads, one key head
        (((2, 3, 4), (5, 4), (5, 4)), "key"),
        (((4,), (5, 4), (5, 4)), "query"),
        (((3, 4), (4,), (4,)), "key"),
        (((3, 4), (5, 4), (5,)), "value"),
        (((3, 0), (5, 0), (5, 4)), "query"),
        (((), (), ()), "query"),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit(shapes, name):
    # rasbt/LLMs-from-scratch#857: equal sizes hide it
    with pytest.raises(ValueError) as error:
        mha.scaled_dot_product_attention(*map(torch.zeros, shapes))
    assert str(error.value).startswith(f"{name}: expected")
    assert str(shapes[["query", "key", "value"].index(name)]) in str(error.value)


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize(
    "wrong",
    [torch.int64, torch.bool, torch.complex64, torch.float64, torch.float16],
    ids=str,
)
def test_dtypes_that_do_not_fit(position, wrong):
    tensors = make_inputs(dtype=torch.float32)
    tensors[position] = tensors[position].to(wrong)
    with pytest.raises(TypeError, match=r"(query|key|value): expected .*got"):
        mha.scaled_dot_product_attention(*tensors)


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_arguments_that_are_no_tensors(name):
    arguments = dict(zip(("query", "key", "value"), make_inputs(()), strict=True))
    arguments[name] = arguments[name].tolist()
    with pytest.raises(TypeError, match=rf"{name}: expected a torch\.Tensor, got list"):
        mha.scaled_dot_product_attention(**arguments)


def test_options_are_keywords():
    # A fifth positional argument means dropout in torch's function and must not mean is_causal here.
    with pytest.raises(TypeError):
        mha.scaled_dot_product_attention(*make_inputs(), None, True)


def test_the_output_lies_in_the_convex_hull_of_the_values():
    query, key, value = make_inputs()
    output, weights = mha.scaled_dot_product_attention(query * 10, key, value)
    assert (weights >= 0).all()
    assert (output <= value.amax(dim=-2, keepdim=True) + 1e-12).all()
    assert (output >= value.amin(dim=-2, keepdim=True) - 1e-12).all()


def test_permuting_the_keys_with_their_values_changes_nothing():
    query, key, value = make_inputs()
    order = torch.randperm(KEY, generator=seeded(3))
    output, weights = mha.scaled_dot_product_attention(query, key, value)
    permuted, permuted_weights = mha.scaled_dot_product_attention(
        query, key[..., order, :], value[..., order, :]
    )
    assert_close(permuted, output)
    assert_close(permuted_weights, weights[..., order])


# --- the module ---


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("d_k", "d_v"), [(None, None), (3, None), (None, 2), (3, 2)])
def test_the_module_is_three_projections_and_the_function(d_k, d_v, bias):
    module = mha.SingleHeadAttention(5, d_k, d_v, bias).double()
    d_k = d_k or 5
    d_v = d_v or d_k
    assert {
        name: tuple(p.shape)
        for name, p in module.named_parameters()
        if "weight" in name
    } == {
        "W_q.weight": (d_k, 5),
        "W_k.weight": (d_k, 5),
        "W_v.weight": (d_v, 5),
    }
    assert sum("bias" in name for name, _ in module.named_parameters()) == 3 * bias
    x = torch.randn(2, 4, 5, generator=seeded(), dtype=torch.float64)
    q, k, v = (
        x @ layer.weight.T + (layer.bias if bias else 0.0)
        for layer in (module.W_q, module.W_k, module.W_v)
    )
    allowed = make_mask("bool", (2, 4, 4))
    for mask, is_causal in itertools.product((None, allowed), (False, True)):
        output, weights = module(x, mask, is_causal=is_causal)
        expected = reference(q, k, v, mask, is_causal)
        assert_close(output, expected[0], atol=1e-12, rtol=1e-12)
        assert_close(weights, expected[1], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("kind", MASK_KINDS)
def test_the_module_gives_one_answer_in_every_mode(kind):
    # the fast path in eval differs from training: pytorch/pytorch#190486, #97409
    module = mha.SingleHeadAttention(8)
    x = torch.randn(1, 6, 8, generator=seeded())
    mask = make_mask(kind, (6, 6), torch.float32)
    results = []
    for training, mode in itertools.product((True, False), MODES.values()):
        module.train(training)
        with mode():
            results.append(module(x, mask)[0])
    assert all(torch.equal(results[0], other) for other in results)


@pytest.mark.parametrize("kind", ["bool", "minus infinity"])
def test_every_parameters_gradient_is_finite(kind):
    # pytorch/pytorch#41508, lucidrains/nGPT-pytorch#11: band and padding leave padded queries without a key
    module = mha.SingleHeadAttention(8)
    x = torch.randn(1, 6, 8, generator=seeded(), requires_grad=True)
    positions = torch.arange(6)
    band = (positions[:, None] - positions[None]).abs() < 2
    allowed = band & (positions < 3)
    assert not allowed[4:].any()
    mask = (
        allowed
        if kind == "bool"
        else torch.zeros(6, 6).masked_fill(~allowed, -math.inf)
    )
    module(x, mask)[0][:, :3].square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())
    assert x.grad.isfinite().all() and x.grad.any()


@pytest.mark.parametrize(
    "shape", [(0, 5), (3, 0, 5), (0, 4, 5), (4, 5), (2, 3, 4, 5)], ids=str
)
def test_the_module_takes_any_batch_axes_and_length_zero(shape):
    module = mha.SingleHeadAttention(5, 3, 2)
    output, weights = module(torch.zeros(shape), is_causal=True)
    assert output.shape == (*shape[:-1], 2) and weights.shape == (
        *shape[:-1],
        shape[-2],
    )


def test_the_state_dict_holds_parameters_only_and_depends_on_no_length():
    # devalab/molgpt#18: a causal buffer makes checkpoints unloadable
    module = mha.SingleHeadAttention(5)
    module(torch.zeros(1, 9, 5), is_causal=True)
    assert set(module.state_dict()) == {
        f"W_{p}.{kind}" for p in "qkv" for kind in ("weight", "bias")
    }
    assert not list(module.buffers())
    mha.SingleHeadAttention(5).load_state_dict(module.state_dict())


@pytest.mark.parametrize(
    "arguments", [(0,), (4, 0), (4, 4, 0), (-1,), (4, -2)], ids=str
)
def test_widths_below_one(arguments):
    with pytest.raises(
        ValueError, match=r"d_(model|k|v): expected at least 1, got (0|-1|-2)"
    ):
        mha.SingleHeadAttention(*arguments)


@pytest.mark.parametrize("arguments", [(4.0,), ("4",), (True,), (4, 2.0)], ids=str)
def test_widths_that_are_no_whole_numbers(arguments):
    with pytest.raises(TypeError, match=r"d_(model|k): expected an int, got"):
        mha.SingleHeadAttention(*arguments)


@pytest.mark.parametrize("shape", [(5,), (), (3, 4), (2, 5, 4)], ids=str)
def test_the_module_names_both_shapes(shape):
    with pytest.raises(ValueError) as error:
        mha.SingleHeadAttention(5)(torch.zeros(shape))
    assert str(tuple(shape)) in str(error.value) and "(*batch, seq, 5)" in str(
        error.value
    )


# --- compilation and export ---


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kind", MASK_KINDS)
def test_the_function_compiles_as_one_graph(kind, is_causal):
    inputs = [tensor.requires_grad_() for tensor in make_inputs()]
    mask = make_mask(kind, (BATCH, 1, QUERY, KEY))
    torch.compiler.reset()
    compiled = torch.compile(
        mha.scaled_dot_product_attention, fullgraph=True, backend="aot_eager"
    )
    output, weights = compiled(*inputs, mask, is_causal=is_causal)
    expected = mha.scaled_dot_product_attention(*inputs, mask, is_causal=is_causal)
    assert_close((output, weights), expected)
    ours = torch.autograd.grad(output.square().sum(), inputs)
    theirs = torch.autograd.grad(expected[0].square().sum(), inputs)
    assert_close(ours, theirs)


class Function(torch.nn.Module):
    """The function as a module, because only modules can be exported."""

    def __init__(self, is_causal):
        super().__init__()
        self.is_causal = is_causal

    def forward(self, query, key, value, mask=None):
        return mha.scaled_dot_product_attention(
            query, key, value, mask, is_causal=self.is_causal
        )


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kind", MASK_KINDS)
def test_the_function_can_be_exported(kind, is_causal):
    mask = make_mask(kind, (QUERY, KEY))
    arguments = (*make_inputs(), *([] if mask is None else [mask]))
    program = torch.export.export(Function(is_causal), arguments)
    assert_close(program.module()(*arguments), Function(is_causal)(*arguments))


def test_the_module_compiles_and_exports_with_a_length_left_open():
    module = mha.SingleHeadAttention(6, 4, 3)
    x, longer = (torch.randn(2, length, 6, generator=seeded()) for length in (5, 8))
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=True)
    seq = torch.export.Dim("seq", min=2, max=64)
    shapes = {"x": {1: seq}, "mask": None, "is_causal": None}
    program = torch.export.export(
        module, (x,), {"mask": None, "is_causal": True}, dynamic_shapes=shapes
    )
    for tokens in (x, longer):
        expected = module(tokens, is_causal=True)
        assert_close(compiled(tokens, is_causal=True), expected)
        assert_close(program.module()(tokens, mask=None, is_causal=True), expected)
