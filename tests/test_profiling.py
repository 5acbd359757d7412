"""Which kernel runs, and how many bytes a call needs."""

import gc
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import mha
from mha.profiling import (
    attention_backend,
    bytes_moved,
    device_of,
    operator_count,
    peak_memory,
)

N = 100
X = torch.arange(float(N))


def heads(length, width=4):
    """Return a query, key or value."""
    return torch.rand(1, 2, length, width)


def fused(query, key, value):
    return F.scaled_dot_product_attention(query, key, value)


def under(*backends):
    """Return PyTorch's attention with no other backend than these."""

    def function(query, key, value):
        with sdpa_kernel(list(backends)):
            return fused(query, key, value)

    return function


def test_device_of():
    assert device_of((X,)) == device_of([X, X.long()]) == torch.device("cpu")
    assert device_of([X.to("meta")] * 2) == torch.device("meta")


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ((), ValueError, "^inputs: expected tensors on one device, got no tensor$"),
        ((X, X.to("meta")), ValueError, "^inputs: .* got cpu, meta$"),
        ((X.to("meta"), X, X), ValueError, "^inputs: .* got cpu, meta$"),
        ((None,), TypeError, r"^inputs\[0\]: expected a torch\.Tensor, got NoneType$"),
        ((X, 2), TypeError, r"^inputs\[1\]: expected a torch\.Tensor, got int$"),
        ((X, X.to("meta"), []), TypeError, r"^inputs\[2\]: .* got list$"),
    ],
)
def test_device_of_what_has_none(inputs, error, message):
    with pytest.raises(error, match=message):
        device_of(inputs)
    with pytest.raises(error, match=message):
        peak_memory(lambda *inputs: X, *inputs)


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_fused_kernel_is_named(is_causal):
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    assert attention_backend(attend, *[heads(8)] * 3) == "flash"
    assert attention_backend(under(SDPBackend.FLASH_ATTENTION), *[heads(8)] * 3) == (
        "flash"
    )


def test_the_readable_path_has_no_fused_kernel():
    q = heads(8)
    assert attention_backend(mha.scaled_dot_product_attention, q, q, q) == "math"
    attend = mha.MultiHeadAttention(8, 2)
    x = torch.rand(1, 5, 8)
    assert attention_backend(attend, x) == "math"
    assert attention_backend(lambda x: attend(x, need_weights=False), x) == "flash"


def test_values_of_another_width_have_no_fused_kernel():
    # Dao-AILab/flash-attention#762: forced, it is an error; left to itself, PyTorch computes the table.
    q, v = heads(8), heads(8, width=6)
    assert attention_backend(fused, q, q, v) == "math"
    with (
        pytest.warns(UserWarning),
        pytest.raises(RuntimeError, match="No available kernel"),
    ):
        attention_backend(under(SDPBackend.FLASH_ATTENTION), q, q, v)
    assert attention_backend(fused, q, q, q) == "flash"  # nothing stays behind


def test_a_forced_backend_is_found():
    q = heads(8)
    assert attention_backend(under(SDPBackend.MATH), q, q, q) == "math"
    both = under(SDPBackend.MATH, SDPBackend.FLASH_ATTENTION)
    assert attention_backend(both, q, q, q) == "flash"


def test_no_attention_at_all():
    assert attention_backend(lambda x: x + 1, X) == "math"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_scaled_dot_product_flash_attention", "flash"),
        ("_scaled_dot_product_flash_attention_for_cpu", "flash"),
        ("_scaled_dot_product_efficient_attention", "efficient"),
        ("_scaled_dot_product_cudnn_attention", "cudnn"),
        ("_scaled_dot_product_attention_math", "math"),
        ("_efficientzerotensor", "math"),  # a name that only resembles one
    ],
)
def test_every_fused_kernel_of_a_gpu_has_its_name(name, expected):
    # The meta device has them all, and the dispatcher sees the same names as on a GPU.
    q = heads(8).half().to("meta")
    kernel = getattr(torch.ops.aten, name)
    given = {
        "_efficientzerotensor": ([2],),
        "_scaled_dot_product_efficient_attention": (q, q, q, None, False),
        "_scaled_dot_product_cudnn_attention": (q, q, q, None, False),
    }.get(name, (q, q, q))
    assert attention_backend(lambda q: kernel(*given), q) == expected


def test_one_call_without_gradients():
    seen = []

    def function(*inputs):
        seen.append((inputs, torch.is_grad_enabled()))
        return X

    attention_backend(function, X, X)
    peak_memory(function, X, X)
    assert len(seen) == 2
    for inputs, grad in seen:
        assert len(inputs) == 2 and all(tensor is X for tensor in inputs)
        assert not grad
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    "measure", [attention_backend, peak_memory, bytes_moved, operator_count]
)
def test_an_error_inside_leaves_nothing_behind(measure):
    def broken(x):
        raise KeyError(x.shape)

    with pytest.raises(KeyError):
        measure(broken, X)
    assert torch.is_grad_enabled()
    assert peak_memory(lambda x: x + 1, X) == 4 * N
    assert bytes_moved(lambda x: x + 1, X) == 8 * N


W = torch.rand(10, 10)
OUT = torch.empty(N)
LINEAR = nn.Linear(10, 10)


@pytest.mark.parametrize(
    ("function", "tensors"),
    [
        (lambda x: x, 0),
        (lambda x: None, 0),
        (lambda x: x + 1, 1),
        (lambda x: (x + 1) + (x + 2), 3),
        (lambda x: ((x + 1) + 2) + 3, 2),
        (lambda x: (((x + 1) + 2) + 3) + 4, 2),
        (lambda x: [x + 1, x + 2, x + 3, x + 4], 4),
        (lambda x: {"a": x + 1, "b": (x + 2,)}, 2),
        (lambda x: [(x + i).sum() for i in range(5)], 1.05),
        (lambda x: torch.cat([x, x]) + 1, 4),
        (lambda x: (x + 1, (torch.cat([x, x]), 0)[1]), 3),
        (lambda x: (x + 1).double(), 3),
        (lambda x: x > 3, 0.25),
        (lambda x: torch.zeros(N) + torch.arange(N), 4),  # int64 and two float32
        (lambda x: torch.sort(x), 3),
        (lambda x: x.new_zeros(0), 0),
    ],
)
def test_bytes_at_the_worst_moment(function, tensors):
    assert peak_memory(function, X) == round(tensors * 4 * N)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int8])
def test_bytes_of_other_types(dtype):
    found = peak_memory(lambda x: (x + 1) + (x + 2), X.to(dtype))
    assert found == 3 * N * dtype.itemsize


@pytest.mark.parametrize(
    ("function", "tensors"),
    [
        (lambda x: x.clone().add_(1).mul_(2).neg_(), 1),
        (lambda x: x.clone().view(10, 10).t()[1:].add_(1), 1),
        (lambda x: x.clone().chunk(4), 1),
        (lambda x: x.clone()[::2].unsqueeze(0).expand(7, -1), 1),
        (lambda x: x[:1].clone().expand(1000), 0.01),
        (lambda x: torch.relu_(x.clone()), 1),
        (lambda x: torch.add(x, 1, out=OUT), 0),
    ],
)
def test_views_and_work_in_place_add_nothing(function, tensors):
    assert peak_memory(function, X) == round(tensors * 4 * N)


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x: x.view(10, 10), 0),
        (lambda x: x.view(10, 10).t()[2:, 3], 0),
        (lambda x: x.detach(), 0),
        (lambda x: x.add_(0), 0),
        (lambda x: LINEAR.weight.t(), 0),
        (lambda x: W[1:].reshape(-1), 0),
        (lambda x: F.linear(x.view(10, 10), LINEAR.weight, LINEAR.bias), N),
        (lambda x: LINEAR(x.view(10, 10)), N),
        (lambda x: x.view(10, 10) @ W.t(), N),
    ],
)
@pytest.mark.parametrize("view", [False, True])
def test_what_was_there_before_is_not_counted(function, count, view):
    x = torch.rand(3, N)[1] if view else torch.rand(N)
    assert peak_memory(function, x) == 4 * count


def test_each_call_starts_from_zero():
    kept = []
    for _ in range(3):
        assert peak_memory(lambda x: kept.append(x + 1), X) == 4 * N
    assert peak_memory(lambda x: (x + 1) + (x + 2), X) == 12 * N
    kept.clear()
    gc.collect()
    assert peak_memory(lambda x: x + 1, X) == 4 * N
    assert peak_memory(lambda x: x, X) == 0


def test_a_call_inside_another():
    found = []

    def inner(x):
        return (x + 1) + (x + 2)

    def outer(x):
        y = x + 1
        found.append(peak_memory(inner, y))
        return y + 1

    assert peak_memory(outer, X) == 16 * N  # y, and the three inside
    assert found == [12 * N]


def test_kept_outputs_count_and_dropped_ones_do_not():
    def keep(x):
        return [x + i for i in range(6)]

    def drop(x):
        for i in range(6):
            y = x + i
            del y

    assert peak_memory(keep, X) == 6 * 4 * N
    assert peak_memory(drop, X) == 4 * N
    kept = []
    assert peak_memory(lambda x: kept.extend(keep(x)), X) == 6 * 4 * N


def test_the_peak_stays_when_memory_is_freed():
    def function(x):
        y = [x + 1, x + 2, x + 3]
        y.clear()
        return x + 1

    assert peak_memory(function, X) == 12 * N


def test_what_autograd_keeps_counts():
    def function(x):
        with torch.enable_grad():
            return x.detach().requires_grad_().exp().exp()

    def without(x):
        return x.exp().exp().exp()

    assert peak_memory(function, X) == 8 * N
    assert peak_memory(without, X) == 8 * N

    def deep(x):
        with torch.enable_grad():
            return x.detach().requires_grad_().exp().exp().exp()

    assert peak_memory(deep, X) == 12 * N  # each exp keeps its result


def test_the_table_grows_with_the_square_of_the_length():
    def readable(length):
        return peak_memory(mha.scaled_dot_product_attention, *[heads(length)] * 3)

    def fast(length):
        return peak_memory(fused, *[heads(length)] * 3)

    assert fast(64) / fast(32) == 2
    table = 2 * 64 * 64 * 4
    assert fast(64) < table / 4 and readable(64) >= table
    assert 3.6 < readable(64) / readable(32) <= 4
    assert peak_memory(under(SDPBackend.MATH), *[heads(64)] * 3) >= table


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    @property
    def device(self):
        return torch.device("cuda", 1)


def test_a_gpu_is_asked_for_its_own_peak(monkeypatch):
    log, gpu = [], {"now": 1000, "peak": 9000}  # an older call needed 9000

    def noting(name, result=lambda: None):
        def function(device=None):
            log.append((name, device))
            return result()

        monkeypatch.setattr(torch.cuda, name, function)

    noting("synchronize")
    noting("memory_allocated", lambda: gpu["now"])
    noting("max_memory_allocated", lambda: gpu["peak"])
    noting("reset_peak_memory_stats", lambda: gpu.update(peak=gpu["now"]))

    def function(x):
        log.append(("call", torch.is_grad_enabled()))
        gpu.update(now=1200, peak=1700)

    assert peak_memory(function, X.as_subclass(OnGpu)) == 700
    device = torch.device("cuda", 1)
    assert {entry for name, entry in log if name != "call"} == {device}
    names = [name for name, _ in log]
    call = names.index("call")
    assert log[call] == ("call", False)
    assert names[0] == "synchronize" and names[call + 1] == "synchronize"
    assert set(names[:call]) == {
        "synchronize",
        "memory_allocated",
        "reset_peak_memory_stats",
    }
    assert names[-1] == "max_memory_allocated"


def test_memory_that_is_used_again_counts_again():
    # A tensor that was there before dies, and a new one may get its place.
    def call(x):
        made = []
        for _ in range(50):
            before = torch.from_numpy(np.ones(100, "f"))
            total = before.sum()
            del before, total
            made.append(x + 1)
        return made

    assert peak_memory(call, torch.rand(100)) == 50 * 400


ROWS = torch.rand(3, 4)
BATCH = torch.rand(2, 3, 4)


@pytest.mark.parametrize(
    ("function", "numbers"),
    [
        (lambda x: x + 1, 2 * N),
        (lambda x: x + x.flip(0), 2 * N + 3 * N),
        (lambda x: x * 2 + 1, 2 * N + 2 * N),
        (lambda x: x.sum(), N + 1),
        (lambda x: x.clone(), 2 * N),
        (lambda x: torch.softmax(x, dim=0), 2 * N),
        (lambda x: torch.cat([x, x, x]), 6 * N),
        (lambda x: torch.sort(x), N + N + 2 * N),  # the order is of int64
        (lambda x: x > 3, N + N / 4),
        (lambda x: x.bfloat16(), N + N / 2),
        (lambda x: x.view(10, 10) @ W, 3 * 100),
        (lambda x: F.linear(x.view(10, 10), W), 3 * 100),
        (lambda x: LINEAR(x.view(10, 10)), 3 * 100 + 10),
        (lambda x: x[:12].view(4, 3) @ ROWS, 4 * 3 + 3 * 4 + 4 * 4),
        (lambda x: x[:4] @ ROWS.t(), 4 + 4 * 3 + 3),
        (lambda x: BATCH @ BATCH.mT, 2 * (3 * 4 + 4 * 3 + 3 * 3)),
        (lambda x: BATCH[None] @ BATCH[None].mT, 2 * (3 * 4 + 4 * 3 + 3 * 3)),
    ],
)
def test_bytes_of_all_operators(function, numbers):
    assert bytes_moved(function, X) == 4 * numbers


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x,
        lambda x: None,
        lambda x: x.view(10, 10).t()[1:, None],
        lambda x: x.reshape(4, 25).transpose(0, 1).unsqueeze(0).squeeze(0),
        lambda x: x.expand(7, N).detach(),
        lambda x: (x.chunk(3), x.split(10), x.unbind()),
        lambda x: x.contiguous().float(),
    ],
)
def test_views_cost_nothing(function):
    assert bytes_moved(function, X) == operator_count(function, X) == 0


@pytest.mark.parametrize(
    ("function", "numbers"),
    [
        (lambda x: x.expand(5, N) + 1, N + 5 * N),
        (lambda x: x[:, None].expand(N, 5) + 1, N + 5 * N),
        (lambda x: x[:10].expand(5, 10) + 1, 10 + 50),  # although more lies behind it
        (lambda x: x[:1].expand(N) + x, 1 + N + N),
        (lambda x: x[::2] + 1, 50 + 50),
        (lambda x: x[:0].expand(5, 0) + 1, 0),
        (lambda x: x[:1].expand(0) + 1, 0),
        (lambda x: x.expand(5, N).contiguous(), N + 5 * N),
    ],
)
def test_what_is_broadcast_is_read_once(function, numbers):
    assert bytes_moved(function, X) == 4 * numbers


def test_work_in_place_reads_and_writes():
    # 4 bytes a number: read, written; the other one is read.
    assert bytes_moved(lambda x: x.add_(1), X.clone()) == 8 * N
    assert bytes_moved(lambda x: x.add_(X), X.clone()) == 12 * N
    assert bytes_moved(lambda x: x[:10].mul_(2), X.clone()) == 80
    assert bytes_moved(lambda x: x.t_(), W.clone()) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int8])
def test_bytes_moved_of_other_types(dtype):
    assert bytes_moved(lambda x: x + 1, X.to(dtype)) == 2 * N * dtype.itemsize
    q, v = (torch.ones(1, 2, 8, 4, dtype=dtype) for _ in range(2))
    assert bytes_moved(torch.matmul, q, v.mT) == 2 * (32 + 32 + 64) * dtype.itemsize


def test_only_the_readable_path_moves_its_table():
    def moved(function, length):
        return bytes_moved(function, *[heads(length)] * 3)

    # Queries are scaled; the table is written, read and written by softmax, and read.
    readable, each = mha.scaled_dot_product_attention, 2 * 64 * 4
    table = 2 * 64 * 64
    assert moved(readable, 64) == 4 * (2 * each + 2 * each + 2 * each + 4 * table)
    # Queries, keys, values, output, and one number a query for going backward.
    assert moved(fused, 64) == 4 * (4 * each + 2 * 64)
    assert moved(fused, 128) == 2 * moved(fused, 64)
    growth = [moved(readable, 2 * n) / moved(readable, n) for n in (16, 64, 256)]
    assert 2 < growth[0] < growth[1] < growth[2] < 4 < 1.05 * growth[2]


def test_the_module_moves_more_if_its_weights_are_wanted():
    module, x = mha.MultiHeadAttention(8, 2), torch.rand(1, 64, 8)
    with_weights = bytes_moved(module, x)
    without = bytes_moved(lambda x: module(x, need_weights=False), x)
    assert with_weights - without > 4 * 4 * 2 * 64 * 64 - 4 * 8 * 64 * 8
    assert without == 4 * (4 * (2 * 512 + 64 + 8) + 4 * 512 + 128)


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x: x + 1, 1),
        (lambda x: (x + 1).view(10, 10) * 2, 2),
        (lambda x: LINEAR(x.view(10, 10)), 1),
        (lambda x: BATCH @ BATCH.mT, 1),
        (lambda x: BATCH[None] @ BATCH[None].mT, 1),
        (lambda x: [x + i for i in range(9)], 9),
        (lambda x: x.clone().add_(1), 2),
    ],
)
def test_operators_are_counted(function, count):
    assert operator_count(function, X) == count


def test_one_operator_takes_the_place_of_the_readable_ones():
    q = heads(8)
    assert operator_count(fused, q, q, q) == 1
    # A scaling, two products and the softmax.
    assert operator_count(mha.scaled_dot_product_attention, q, q, q) == 4


@pytest.mark.parametrize("measure", [bytes_moved, operator_count])
def test_work_of_one_call_without_gradients(measure):
    seen = []

    def function(*inputs):
        seen.append((inputs, torch.is_grad_enabled()))
        return X

    assert measure(function) == measure(function, X, OUT) == 0
    assert [len(inputs) for inputs, _ in seen] == [0, 2]
    assert seen[1][0][0] is X and seen[1][0][1] is OUT
    assert not any(grad for _, grad in seen)
    assert torch.is_grad_enabled()


def test_going_backward_moves_bytes_as_well():
    def both(x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            x.exp().backward(torch.ones(N))

    # exp, its gradient's ones, and their product with what exp has kept.
    assert bytes_moved(both, X) == 4 * (2 * N + N + 3 * N)


def test_inference_mode_hides_nothing():
    # There PyTorch hands composed operators, such as attention, over as a whole.
    def attend(q):
        return F.scaled_dot_product_attention(q, q, q)

    q = torch.randn(1, 2, 8, 4)
    measures = attention_backend, operator_count, bytes_moved, peak_memory
    outside = [measure(attend, q) for measure in measures]
    assert outside[0] == "flash"
    with torch.inference_mode():
        assert [measure(attend, q) for measure in measures] == outside
        inside = torch.randn(1, 2, 8, 4)
    assert [measure(attend, inside) for measure in measures] == outside


def test_pytorchs_own_fast_path_is_named():
    module = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(1, 4, 8)
    assert attention_backend(lambda x: module(x, x, x), x) == "native"


def test_nothing_is_left_on_tensors_that_live_on():
    weight = torch.randn(4, 4)
    count = len(weakref.finalize._registry)
    for _ in range(5):
        peak_memory(lambda x: x @ weight, torch.ones(2, 4))
    assert len(weakref.finalize._registry) <= count
