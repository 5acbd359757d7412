"""Heads in a loop, as the formulas write them, against one einsum written here."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import mha
from mha import two_heads


def make_matrices(seq, d_model, heads, d_k, d_v, d_out=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (
        (seq, d_model),
        *[(heads, d_model, d_k)] * 2,
        (heads, d_model, d_v),
        (heads * d_v, d_out or d_model),
    )
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes
    ]


def all_heads_at_once(x, W_q, W_k, W_v, W_o):
    q, k, v = (torch.einsum("sm,hmd->hsd", x, W) for W in (W_q, W_k, W_v))
    scores = torch.einsum("hqd,hkd->hqk", q, k)
    exponentials = (scores / math.sqrt(W_q.shape[-1])).exp()
    weights = exponentials / exponentials.sum(dim=-1, keepdim=True)
    outputs = torch.einsum("hqk,hkd->hqd", weights, v)
    heads, _, d_v = outputs.shape
    return (
        q,
        k,
        v,
        scores,
        weights,
        outputs,
        torch.einsum("hqd,hdm->qm", outputs, W_o.view(heads, d_v, -1)),
    )


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    seq=st.integers(0, 5),
    d_model=st.integers(1, 5),
    heads=st.integers(1, 4),
    d_k=st.integers(1, 4),
    d_v=st.integers(1, 4),
    d_out=st.integers(1, 5),
    seed=st.integers(0, 2**16),
)
def test_every_step_equals_the_einsum(seq, d_model, heads, d_k, d_v, d_out, seed):
    matrices = make_matrices(seq, d_model, heads, d_k, d_v, d_out, seed)
    steps = mha.attend_head_by_head(*matrices)
    q, k, v, scores, weights, outputs, output = all_heads_at_once(*matrices)
    expected = {
        "queries": q,
        "keys": k,
        "values": v,
        "scores": scores,
        "weights": weights,
        "head_outputs": outputs,
    }
    for name, tensor in expected.items():
        assert_close(getattr(steps, name), tensor)
    assert_close(steps.output, output)
    assert steps.concatenated.shape == (seq, heads * d_v) and steps.output.shape == (
        seq,
        d_out,
    )
    for head in range(heads):
        assert torch.equal(
            steps.concatenated[:, head * d_v : (head + 1) * d_v],
            steps.head_outputs[head],
        )


def test_one_head_is_single_head_attention():
    x, W_q, W_k, W_v, W_o = make_matrices(5, 4, 1, 3, 2)
    module = mha.SingleHeadAttention(4, 3, 2, bias=False).double()
    with torch.no_grad():
        for layer, W in ((module.W_q, W_q), (module.W_k, W_k), (module.W_v, W_v)):
            layer.weight.copy_(W[0].T)
        output, weights = module(x)
    steps = mha.attend_head_by_head(x, W_q, W_k, W_v, W_o)
    assert_close(steps.head_outputs[0], output)
    assert_close(steps.weights[0], weights)


def test_heads_in_a_loop_equal_split_and_combine():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(6, 6, bias=False).double() for _ in range(4)]
    x = torch.randn(5, 6, dtype=torch.float64)
    q, k, v = (mha.split_heads(layer(x), 3) for layer in layers[:3])
    wide = layers[3](mha.combine_heads(mha.scaled_dot_product_attention(q, k, v)[0]))
    matrices = [mha.per_head_matrices(layer, 3) for layer in layers[:3]]
    assert_close(mha.attend_head_by_head(x, *matrices, layers[3].weight.T).output, wide)


# --- the worked example ---

HEAD_1, HEAD_2 = [0.5, 0.3], [0.1, 0.8]
W_O = [[1, 0, 1, 0], [0, 1, 0, 1], [0, 1, 2, 0], [1, 0, 0, -1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_worked_example(dtype):
    concatenated, output = mha.concat_heads(
        torch.tensor([HEAD_1, HEAD_2], dtype=dtype), torch.tensor(W_O, dtype=dtype)
    )
    assert_close(concatenated, torch.tensor([0.5, 0.3, 0.1, 0.8], dtype=dtype))
    assert_close(output, torch.tensor([1.3, 0.4, 0.7, -0.5], dtype=dtype))


def test_swapping_the_heads_gives_another_result():
    W_o = torch.tensor(W_O, dtype=torch.float64)
    swapped, output = mha.concat_heads(
        torch.tensor([HEAD_2, HEAD_1], dtype=torch.float64), W_o
    )
    assert_close(swapped, torch.tensor([0.1, 0.8, 0.5, 0.3], dtype=torch.float64))
    assert_close(output, torch.tensor([0.4, 1.3, 1.1, 0.5], dtype=torch.float64))


def test_concatenating_then_projecting_is_a_sum_over_the_heads():
    outputs = torch.randn(
        3, 5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    W_o = torch.randn(
        6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    _, output = mha.concat_heads(outputs, W_o)
    assert_close(
        output, sum(outputs[head] @ W_o[2 * head : 2 * head + 2] for head in range(3))
    )


@pytest.mark.parametrize("middle", [(), (5,), (0,), (2, 5)], ids=str)
def test_concat_takes_any_axes_between_heads_and_width(middle):
    outputs = torch.randn(3, *middle, 2, generator=torch.Generator().manual_seed(0))
    concatenated, output = mha.concat_heads(outputs, torch.eye(6))
    assert concatenated.shape == (*middle, 6)
    assert_close(output, concatenated)
    for head in range(3):
        assert torch.equal(concatenated[..., 2 * head : 2 * head + 2], outputs[head])


@pytest.mark.parametrize(
    "shape", [(3, 4), (5, 4), (8, 4), (4,), (1, 4, 4), ()], ids=str
)
def test_a_W_o_that_does_not_fit(shape):
    with pytest.raises(ValueError, match=r"W_o: expected 4 rows") as error:
        mha.concat_heads(torch.zeros(2, 3, 2), torch.zeros(shape))
    assert str(tuple(shape)) in str(error.value)


@pytest.mark.parametrize("shape", [(), (4,), (0, 3, 2)], ids=str)
def test_outputs_that_are_no_heads(shape):
    with pytest.raises(ValueError, match="head_outputs") as error:
        mha.concat_heads(torch.zeros(shape), torch.zeros(4, 4))
    assert str(tuple(shape)) in str(error.value)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"W_k": (3, 4, 2)}, "W_k"),  # another number of heads
        ({"W_v": (1, 4, 2)}, "W_v"),
        ({"W_q": (2, 5, 2)}, "W_q"),  # another width
        ({"W_q": (4, 2)}, "W_q"),  # no heads
        ({"W_v": (2, 4, 2, 1)}, "W_v"),
        ({"W_k": (2, 4, 3)}, "key"),  # queries and keys of different width
        ({"W_o": (5, 4)}, "W_o"),
        ({"x": (1, 3, 4)}, "x"),  # a batch
        ({"x": (4,)}, "x"),
        (
            {"W_q": (0, 4, 2), "W_k": (0, 4, 2), "W_v": (0, 4, 2), "W_o": (0, 4)},
            "W_q",
        ),  # no head at all
        ({"W_q": ()}, "W_q"),
    ],
    ids=str,
)
def test_matrices_that_do_not_fit(changes, name):
    shapes = {
        "x": (3, 4),
        "W_q": (2, 4, 2),
        "W_k": (2, 4, 2),
        "W_v": (2, 4, 2),
        "W_o": (4, 4),
    } | changes
    with pytest.raises(ValueError, match=rf"^{name}: (number of heads: )?expected"):
        mha.attend_head_by_head(
            **{key: torch.zeros(shape) for key, shape in shapes.items()}
        )


def test_the_callers_tensors_are_left_alone():
    matrices = make_matrices(3, 4, 2, 2, 2)
    copies = [tensor.clone() for tensor in matrices]
    mha.attend_head_by_head(*matrices)
    assert all(
        torch.equal(a, b) and a._version == 0
        for a, b in zip(matrices, copies, strict=True)
    )


def test_the_papers_numbers_are_whole_and_small():
    example = two_heads.paper_example()
    assert example.x.shape == (len(example.tokens), 4) and example.W_o.shape == (4, 4)
    for tensor in example[1:]:
        assert torch.equal(tensor, tensor.round()) and tensor.abs().max() <= 2
    steps = mha.attend_head_by_head(*example[1:])
    assert set(steps.scores.flatten().tolist()) == {0.0, 1.0, 2.0}
    *_, output = all_heads_at_once(*(tensor.double() for tensor in example[1:]))
    assert_close(steps.output.double(), output, atol=1e-6, rtol=1e-6)
    # The two heads look at different tokens; else one would do.
    assert (steps.weights[0] - steps.weights[1]).abs().max() > 0.2
