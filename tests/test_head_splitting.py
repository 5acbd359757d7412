"""Splitting and joining heads: values small enough to see, the wrong versions beside them, the counts."""

import copy
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

import mha
from mha.head_splitting import AttentionCost


def numbers(*shape):
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)


# --- split ---


def test_split_gives_each_head_its_columns_of_every_token():
    # hyunwoongko/transformer#15, harvardnlp/annotated-transformer#17
    heads = mha.split_heads(numbers(1, 4, 6), 3)
    assert heads.shape == (1, 3, 4, 2)
    assert heads[0, 0].tolist() == [[0, 1], [6, 7], [12, 13], [18, 19]]
    assert heads[0, 2].tolist() == [[4, 5], [10, 11], [16, 17], [22, 23]]
    wrong = numbers(1, 4, 6).view(
        1, 3, 4, 2
    )  # the right shape, and two tokens in one row of a head
    assert wrong.shape == heads.shape
    assert wrong[0, 0].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("num_heads", [1, 2, 3, 6])
@pytest.mark.parametrize("batch", [(), (2,), (2, 5)], ids=str)
def test_split_is_a_slice_of_the_last_axis(batch, num_heads):
    x = torch.randn(*batch, 7, 6, generator=torch.Generator().manual_seed(0))
    heads = mha.split_heads(x, num_heads)
    d_k = 6 // num_heads
    assert heads.shape == (*batch, num_heads, 7, d_k)
    for head in range(num_heads):
        assert torch.equal(
            heads[..., head, :, :], x[..., head * d_k : (head + 1) * d_k]
        )


def test_split_keeps_tokens_apart():
    x = numbers(1, 5, 6)
    changed = x.clone()
    changed[0, 3] += 100
    different = (mha.split_heads(x, 3) != mha.split_heads(changed, 3)).any(dim=-1)[
        0
    ]  # (heads, seq)
    assert different.tolist() == [[False, False, False, True, False]] * 3


@pytest.mark.parametrize("num_heads", [2, 3])
def test_split_copies_nothing_and_takes_any_memory_layout(num_heads):
    x = numbers(2, 6, 5).transpose(1, 2)  # (2, 5, 6), not contiguous
    assert not x.is_contiguous()
    heads = mha.split_heads(x, num_heads)
    assert heads.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert torch.equal(heads, mha.split_heads(x.contiguous(), num_heads))
    strided = numbers(2, 5, 12)[..., ::2]
    assert torch.equal(
        mha.split_heads(strided, num_heads),
        mha.split_heads(strided.contiguous(), num_heads),
    )


# --- combine ---


def test_combine_lays_the_heads_side_by_side():
    # jsbaan/transformer-from-scratch#6 (its training test passed all the same), xieenze/Trans2Seg#4
    heads = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]]])
    assert mha.combine_heads(heads).tolist() == [[[1, 2, 5, 6], [3, 4, 7, 8]]]
    wrong = heads.reshape(1, 2, 4)  # the right shape without the transpose back
    assert wrong.tolist() == [[[1, 2, 3, 4], [5, 6, 7, 8]]]


def test_a_view_after_the_transpose_is_an_error_of_torch_and_not_of_ours():
    heads = mha.split_heads(numbers(1, 4, 6), 3)
    with pytest.raises(RuntimeError, match="view"):
        heads.transpose(-3, -2).transpose(-2, -1).view(1, 4, 6)
    assert torch.equal(mha.combine_heads(heads), numbers(1, 4, 6))


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    batch=st.lists(st.integers(0, 3), max_size=3),
    seq=st.integers(0, 7),
    num_heads=st.integers(1, 7),
    d_k=st.integers(0, 5),
    transposed=st.booleans(),
)
def test_combine_is_the_inverse_of_split(batch, seq, num_heads, d_k, transposed):
    x = numbers(*batch, seq, num_heads * d_k)
    if transposed:
        x = numbers(*batch, num_heads * d_k, seq).transpose(-2, -1)
    heads = mha.split_heads(x, num_heads)
    assert heads.shape == (*batch, num_heads, seq, d_k)
    assert torch.equal(mha.combine_heads(heads), x)
    assert torch.equal(
        mha.split_heads(mha.combine_heads(heads.contiguous()), num_heads), heads
    )


@pytest.mark.parametrize("shape", [(0, 4, 6), (2, 0, 6), (0, 6), (0, 0, 6)], ids=str)
def test_lengths_of_zero(shape):
    heads = mha.split_heads(torch.zeros(shape), 3)
    assert heads.shape == (*shape[:-2], 3, shape[-2], 2)
    assert mha.combine_heads(heads).shape == shape


def test_gradients_pass_through_unchanged():
    x = numbers(2, 5, 6).double().requires_grad_()
    upstream = torch.randn(
        2, 5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    mha.combine_heads(mha.split_heads(x, 3)).backward(upstream)
    assert torch.equal(x.grad, upstream)


@pytest.mark.parametrize(("width", "num_heads"), [(10, 3), (4, 8), (512, 7)])
def test_split_refuses_a_width_that_does_not_divide(width, num_heads):
    # facebookresearch/detr#499, pytorch/pytorch#28719: the message must hold both numbers
    with pytest.raises(ValueError, match=rf"width={width} and num_heads={num_heads}"):
        mha.split_heads(torch.zeros(1, 2, width), num_heads)


@pytest.mark.parametrize("num_heads", [0, -1])
def test_split_refuses_fewer_than_one_head(num_heads):
    with pytest.raises(
        ValueError, match=rf"num_heads: expected at least 1, got {num_heads}"
    ):
        mha.split_heads(torch.zeros(1, 2, 4), num_heads)


@pytest.mark.parametrize("num_heads", [2.0, "2", None, True])
def test_split_refuses_a_number_of_heads_that_is_no_int(num_heads):
    with pytest.raises(TypeError, match="num_heads: expected an int"):
        mha.split_heads(torch.zeros(1, 2, 4), num_heads)


def test_too_few_axes():
    with pytest.raises(
        ValueError, match=r"x: expected shape .*heads \* d_k.*got shape \(4,\)"
    ):
        mha.split_heads(torch.zeros(4), 2)
    with pytest.raises(
        ValueError, match=r"x: expected shape .*heads, seq, d_v.*got shape \(4, 4\)"
    ):
        mha.combine_heads(torch.zeros(4, 4))


def test_split_and_combine_compile_and_export_with_lengths_left_open():
    class RoundTrip(nn.Module):
        def forward(self, x):
            return mha.combine_heads(mha.split_heads(x, 3) * 2.0)

    torch.compiler.reset()
    compiled = torch.compile(
        RoundTrip(), fullgraph=True, backend="aot_eager", dynamic=True
    )
    axes = {
        0: torch.export.Dim("batch", min=2, max=64),
        1: torch.export.Dim("seq", min=2, max=64),
    }
    program = torch.export.export(
        RoundTrip(), (numbers(2, 4, 6),), dynamic_shapes={"x": axes}
    )
    for x in (numbers(2, 4, 6), numbers(3, 5, 6)):
        assert torch.equal(compiled(x), x * 2)
        assert torch.equal(program.module()(x), x * 2)


# --- the three tests that together catch a wrong split ---


def self_attention(x, split, combine, num_heads=2):
    heads = split(x, num_heads)
    output, _ = mha.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    return combine(output)


def split_without_transpose(x, num_heads):
    batch, seq, width = x.shape
    return x.view(batch, num_heads, seq, width // num_heads)


def combine_without_transpose(x):
    batch, heads, seq, d_v = x.shape
    return x.reshape(batch, seq, heads * d_v)


def test_a_consistently_wrong_split_passes_shapes_and_causality_and_fails_reach():
    x = torch.randn(1, 6, 8, generator=torch.Generator().manual_seed(0))
    lower = torch.ones(6, 6).tril().bool()
    right = mha.influence(
        lambda t: self_attention(t, mha.split_heads, mha.combine_heads), x
    )
    assert torch.equal(right, lower)
    wrong = mha.influence(
        lambda t: self_attention(t, split_without_transpose, combine_without_transpose),
        x,
    )
    assert not (wrong & ~lower).any()  # nothing leaks from the future
    assert not wrong[5, 0] and not torch.equal(
        wrong, lower
    )  # and the last token never hears of the first
    mixed = mha.influence(
        lambda t: self_attention(t, mha.split_heads, combine_without_transpose), x
    )
    assert (mixed & ~lower).any()


def test_every_wrong_split_differs_from_a_loop_over_heads():
    x = torch.randn(1, 6, 8, generator=torch.Generator().manual_seed(0))
    loop = torch.cat(
        [
            mha.scaled_dot_product_attention(h, h, h, is_causal=True)[0]
            for h in x.split(4, -1)
        ],
        dim=-1,
    )
    assert_close(self_attention(x, mha.split_heads, mha.combine_heads), loop)
    splits = (mha.split_heads, split_without_transpose)
    combines = (mha.combine_heads, combine_without_transpose)
    for split, combine in list(itertools.product(splits, combines))[1:]:
        assert not torch.allclose(self_attention(x, split, combine), loop, atol=0.05)


# --- influence ---


@pytest.mark.parametrize("seed", range(5))
def test_influence_finds_a_known_table_of_dependencies(seed):
    generator = torch.Generator().manual_seed(seed)
    table = (
        torch.rand(4, 6, generator=generator) > 0.5
    )  # output, input: not square, not symmetric
    x = torch.randn(3, 6, 5, generator=generator)
    copy_of_x = x.clone()
    assert torch.equal(
        mha.influence(lambda t: torch.einsum("oi,bid->bod", table.float(), t), x), table
    )
    assert torch.equal(x, copy_of_x) and x._version == 0


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda t: t, torch.eye(4)),
        (lambda t: t.flip(1), torch.eye(4).flip(0)),
        (lambda t: t.cumsum(dim=1), torch.ones(4, 4).tril()),
        (lambda t: t[:, 1:], torch.eye(4)[1:]),
        (lambda t: t.sum(dim=-1), torch.eye(4)),  # no width left
        (lambda t: t[..., None, None] + 0.0, torch.eye(4)),  # further axes
        (lambda t: torch.zeros(2, 3, 1), torch.zeros(3, 4)),
        (
            lambda t: torch.nn.functional.layer_norm(t, (3,)),
            torch.eye(4),
        ),  # a constant shift would be invisible
    ],
    ids=[
        "identity",
        "reverse",
        "sums",
        "shorter",
        "no width",
        "more axes",
        "constant",
        "layer norm",
    ],
)
def test_influence_of_simple_functions(function, expected):
    x = torch.randn(
        2, 4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True
    )
    found = mha.influence(function, x)
    assert found.dtype == torch.bool and torch.equal(found, expected.bool())


def test_influence_sees_a_token_that_matters_in_one_item_of_the_batch_only():
    def second_item_only(t):
        return torch.stack([torch.zeros_like(t[0]), t[1]])

    assert torch.equal(
        mha.influence(second_item_only, numbers(2, 3, 2)), torch.eye(3).bool()
    )


def test_influence_sees_a_change_to_nan():
    # A comparison with NaN is false: a leak that ends in NaN must not look like no leak.
    def spreads_nan(t):
        return t + torch.where(t[:, :1].abs().sum() > 0.5, torch.nan, 0.0)

    found = mha.influence(spreads_nan, torch.zeros(1, 3, 2))
    assert found[:, 0].all()
    always = mha.influence(
        lambda t: torch.full_like(t, torch.nan), torch.zeros(1, 3, 2)
    )
    assert not always.any()


def test_influence_calls_in_no_grad_and_survives_a_function_that_writes_into_its_argument():
    x = numbers(1, 3, 2)

    def doubles_in_place(t):
        assert not torch.is_grad_enabled()
        return t.mul_(2.0)

    assert torch.equal(mha.influence(doubles_in_place, x), torch.eye(3).bool())
    assert torch.equal(x, numbers(1, 3, 2))


# --- matrices and counts ---


@pytest.mark.parametrize("num_heads", [1, 2, 3])
def test_per_head_matrices_are_column_blocks_of_the_wide_one(num_heads):
    # rasbt/LLMs-from-scratch#857: equal widths hide a transposed matrix
    torch.manual_seed(0)
    projection = nn.Linear(5, 6, bias=False).double()
    x = torch.randn(2, 7, 5, dtype=torch.float64)
    matrices = mha.per_head_matrices(projection, num_heads)
    d_k = 6 // num_heads
    assert matrices.shape == (num_heads, 5, d_k)
    wide = projection.weight.T  # (d_model, heads * d_k): the formulas' orientation
    assert torch.equal(torch.cat(list(matrices), dim=1), wide)
    heads = mha.split_heads(projection(x), num_heads)
    for head in range(num_heads):
        columns = (x @ wide)[..., head * d_k : (head + 1) * d_k]
        assert_close(x @ matrices[head], columns)
        assert_close(heads[:, head], columns)
    matrices.sum().backward()
    assert torch.equal(projection.weight.grad, torch.ones(6, 5, dtype=torch.float64))


def test_per_head_matrices_refuse_what_does_not_divide():
    with pytest.raises(ValueError, match=r"out_features=6 and num_heads=4"):
        mha.per_head_matrices(nn.Linear(8, 6), 4)
    with pytest.raises(ValueError, match="num_heads"):
        mha.per_head_matrices(nn.Linear(8, 6), 0)


def test_count_parameters_counts_a_shared_one_once():
    assert mha.count_parameters(nn.Linear(3, 4)) == 16
    assert mha.count_parameters(nn.Linear(3, 4, bias=False)) == 12
    assert mha.count_parameters(nn.Identity()) == 0
    layer = nn.Linear(4, 4)
    assert mha.count_parameters(nn.ModuleList([layer, layer])) == 20
    assert mha.count_parameters(nn.ModuleList([layer, copy.deepcopy(layer)])) == 40
    tied = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    tied[1].weight = tied[0].weight
    assert mha.count_parameters(tied) == 24
    assert (
        mha.count_parameters(nn.BatchNorm1d(3)) == 6
    )  # running statistics are not learned
    assert isinstance(mha.count_parameters(layer), int)


def measured_cost(seq, d_model, num_heads, d_k):
    """Run multi-head attention as a loop over heads and let torch count."""
    matrices = [torch.zeros(d_model, d_k) for _ in range(3 * num_heads)]
    W_o = torch.zeros(num_heads * d_k, d_model)
    x = torch.zeros(seq, d_model)
    score_elements = 0
    with FlopCounterMode(display=False) as counter:
        outputs = []
        for head in range(num_heads):
            query, key, value = (x @ W for W in matrices[3 * head : 3 * head + 3])
            scores = query @ key.T
            score_elements += scores.numel()
            outputs.append(scores.softmax(dim=-1) @ value)
        torch.cat(outputs, dim=-1) @ W_o
    return AttentionCost(
        sum(W.numel() for W in matrices) + W_o.numel(),
        counter.get_total_flops(),
        score_elements,
    )


@pytest.mark.parametrize("num_heads", [1, 2, 4, 8])
@pytest.mark.parametrize("d_k", [None, 3])
def test_attention_cost_is_what_torch_counts(num_heads, d_k):
    seq, d_model = 5, 8
    cost = mha.attention_cost(seq, d_model, num_heads, d_k)
    assert cost == measured_cost(seq, d_model, num_heads, d_k or d_model // num_heads)
    if d_k is None:
        assert cost.matmul_flops == 8 * seq * d_model**2 + 4 * seq**2 * d_model
        assert cost.parameters == 4 * d_model**2
    assert cost.score_elements == num_heads * seq**2


def test_parameters_and_flops_grow_with_heads_only_where_d_k_is_fixed():
    costs = {h: mha.attention_cost(128, 512, h) for h in (1, 2, 4, 8, 16)}
    assert len({cost[:2] for cost in costs.values()}) == 1
    assert [
        cost.score_elements // costs[1].score_elements for cost in costs.values()
    ] == [1, 2, 4, 8, 16]
    fixed = {h: mha.attention_cost(128, 512, h, d_k=64) for h in (1, 2, 4, 8, 16)}
    assert all(cost.parameters == h * fixed[1].parameters for h, cost in fixed.items())
    assert all(
        cost.matmul_flops == h * fixed[1].matmul_flops for h, cost in fixed.items()
    )
    assert fixed[8] == costs[8]
    assert mha.attention_cost(128, 512, 8).parameters == mha.count_parameters(
        nn.MultiheadAttention(512, 8, bias=False)
    )


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((0, 8, 2), "seq"),
        ((4, 0, 2), "d_model"),
        ((4, 8, 0), "num_heads"),
        ((4, 8, 0, 2), "num_heads"),
        ((4, 8, 2, 0), "d_k"),
        ((4, 8, 3), "d_model"),
        ((-1, 8, 2), "seq"),
    ],
    ids=str,
)
def test_attention_cost_refuses_impossible_numbers(arguments, name):
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        mha.attention_cost(*arguments)
