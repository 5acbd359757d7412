"""Timings that can be trusted: what is measured, in which order, and what is left as it was."""

import contextlib
import dataclasses

import pytest
import torch

from mha import timing
from mha.timing import (
    CpuClock,
    CudaClock,
    MpsClock,
    Timing,
    clock_for,
    compare,
    default_device,
)

X = torch.arange(1.0, 5.0)


class FakeClock:
    """Returns chosen seconds, and writes down what happens."""

    def __init__(self, seconds=None, log=None):
        self.seconds = iter(seconds) if seconds is not None else None
        self.log = [] if log is None else log

    def start(self):
        self.log.append("start")

    def stop(self):
        self.log.append("stop")
        return 1.0 if self.seconds is None else next(self.seconds)


def noted(log, name, result=lambda x: x * 2):
    """Return a function that writes down its name."""

    def function(x):
        log.append(name)
        return result(x)

    return function


def test_each_sample_is_of_its_own_function():
    clock = FakeClock([1, 10, 20, 2, 30, 3])  # a b, b a, b a
    found = compare({"a": lambda x: x, "b": lambda x: x}, X, repeats=3, clock=clock)
    assert found == {"a": Timing((1, 2, 3), 2), "b": Timing((10, 20, 30), 2)}
    assert list(found) == ["a", "b"]


@pytest.mark.parametrize(
    ("names", "rounds"),
    [
        ("a", ["a", "a", "a"]),
        ("ab", ["ab", "ba", "ba", "ab", "ab"]),
        ("abc", ["abc", "cba", "bca", "acb", "cab", "bac", "abc"]),
    ],
)
@pytest.mark.parametrize("same_values", [True, False])
def test_calls_take_turns_and_the_clock_stands_around_each(names, rounds, same_values):
    # Whoever begins finds the machine as the last round left it, so each begins as often.
    log = []
    functions = {name: noted(log, name) for name in names}
    options = {"warm_up": 3, "repeats": len(rounds), "same_values": same_values}
    found = compare(functions, X, clock=FakeClock(log=log), **options)
    begin = 3 * len(names)
    assert log[:begin] == sorted(names * 3)
    timed = [step for name in "".join(rounds) for step in ("start", name, "stop")]
    assert log[begin:] == timed
    assert list(found) == list(names)


@pytest.mark.parametrize(("warm_up", "repeats"), [(1, 1), (2, 15), (4, 3)])
def test_warm_up_calls_are_counted_and_left_out(warm_up, repeats):
    log = []
    functions = {name: noted(log, name) for name in "abc"}
    found = compare(
        functions, X, warm_up=warm_up, repeats=repeats, clock=FakeClock(log=log)
    )
    for name in "abc":
        assert log.count(name) == warm_up + repeats
        assert len(found[name].samples) == repeats
        assert found[name].warm_up == warm_up
    assert log.count("start") == log.count("stop") == 3 * repeats


def test_by_default_two_calls_warm_up_and_fifteen_are_timed():
    found = compare({"a": lambda x: x}, X, clock=FakeClock())
    assert found == {"a": Timing((1.0,) * 15, 2)}


def test_a_slow_first_call_is_not_in_the_result(monkeypatch):
    # The clock is the real one; the hands are moved by the calls: the first takes 100 s, every other one 2 s.
    now, calls = [0.0], []
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def function(x):
        now[0] += 2.0 if calls else 100.0
        calls.append(x)
        return x

    found = compare({"a": function}, X, repeats=3, warm_up=1)["a"]
    assert found.samples == (2.0, 2.0, 2.0)


def test_all_inputs_are_handed_over_as_they_are():
    seen = []
    inputs = (X, X[:2], X.long())
    compare({"a": lambda *given: seen.append(given) or X}, *inputs, clock=FakeClock())
    assert len(seen) == 17
    for given in seen:
        assert len(given) == 3
        assert all(a is b for a, b in zip(given, inputs, strict=True))


@pytest.mark.parametrize(
    ("samples", "median", "spread"),
    [
        ((7.0,), 7.0, 0.0),
        ((3.0, 1.0), 2.0, 1.0),
        ((5.0, 1.0, 4.0, 2.0, 3.0), 3.0, 2.0),
        ((4.0, 1.0, 3.0, 2.0), 2.5, 1.5),
        ((1.0, 2.0, 3.0, 4.0, 1000.0), 3.0, 2.0),
        ((2.0,) * 6, 2.0, 0.0),
    ],
)
def test_median_and_spread(samples, median, spread):
    found = Timing(samples, 2)
    assert found.median == median and found.spread == spread


def test_a_timing_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Timing((1.0,), 2).samples = ()


class FakeGpu:
    """A GPU that runs behind: what is asked for takes its milliseconds when somebody waits for it."""

    def __init__(self, monkeypatch):
        self.now, self.queue, self.log = 0.0, [], []
        gpu = self

        class Event:
            def __init__(self, enable_timing=False):
                assert enable_timing

            def record(self, stream):
                assert stream is gpu
                gpu.queue.append(self)

            def synchronize(self):
                gpu.wait()

            def elapsed_time(self, end):
                return end.time - self.time

        def current_stream(device=None):
            self.log.append(device)
            return gpu

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
        monkeypatch.setattr(torch.cuda, "synchronize", self.wait)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)

    def ask(self, milliseconds):
        self.queue.append(milliseconds)

    def wait(self, device=None):
        for entry in self.queue:
            if isinstance(entry, float):
                self.now += entry
            else:
                entry.time = self.now
        self.queue.clear()

    synchronize = wait


def test_the_cuda_clock_gives_seconds_and_waits_on_both_sides(monkeypatch):
    gpu = FakeGpu(monkeypatch)
    clock = CudaClock(torch.device("cuda", 1))
    assert gpu.log == [torch.device("cuda", 1)]
    gpu.ask(5000.0)  # before
    clock.start()
    assert gpu.now == 5000.0
    gpu.ask(250.0)
    gpu.ask(500.0)
    assert clock.stop() == 0.75
    assert gpu.now == 5750.0
    clock.start()
    gpu.ask(1.0)
    assert clock.stop() == 0.001


def test_compare_reads_the_cuda_clock(monkeypatch):
    gpu = FakeGpu(monkeypatch)
    functions = {
        "a": lambda x: gpu.ask(40.0) or x,
        "b": lambda x: gpu.ask(2000.0) or x,
    }
    clock = clock_for("cuda")
    found = compare(functions, X, repeats=3, warm_up=1, clock=clock)
    assert found["a"].samples == pytest.approx((0.04,) * 3)
    assert found["b"].samples == pytest.approx((2.0,) * 3)


def test_the_cpu_clock_reads_the_performance_counter(monkeypatch):
    times = iter([10.0, 12.5, 100.0, 100.25])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    clock = CpuClock()
    clock.start()
    assert clock.stop() == 2.5
    clock.start()
    assert clock.stop() == 0.25


def test_the_mps_clock_synchronises_before_it_reads_on_both_sides(monkeypatch):
    log, now = [], [0.0]

    def wait():  # 3 s of work stand in the queue
        log.append("wait")
        now[0] += 3.0

    def read():
        log.append("read")
        return now[0]

    monkeypatch.setattr(torch.mps, "synchronize", wait)
    monkeypatch.setattr("time.perf_counter", read)
    clock = MpsClock()
    clock.start()
    assert log == ["wait", "read"]
    assert clock.stop() == 3.0
    assert log == ["wait", "read"] * 2


@pytest.fixture
def machine(monkeypatch):
    """Return a function that says what the machine has."""

    def has(cuda=False, mps=False):
        FakeGpu(monkeypatch)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: int(cuda))
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return has


def test_each_device_gets_its_clock(machine):
    machine(cuda=True, mps=True)
    for device in ("cpu", "cpu:0", torch.device("cpu")):
        assert type(clock_for(device)) is CpuClock
    for device in ("cuda", "cuda:0", torch.device("cuda", 0)):
        assert type(clock_for(device)) is CudaClock
    for device in ("mps", "mps:0", torch.device("mps")):
        assert type(clock_for(device)) is MpsClock


@pytest.mark.parametrize(
    ("has", "device", "message"),
    [
        ({}, "cuda", r"device: expected one that is here \(cpu:0\), got cuda"),
        ({}, "cuda:1", r"device: .* \(cpu:0\), got cuda:1"),
        ({}, "mps", r"device: .* \(cpu:0\), got mps"),
        ({"mps": True}, "cuda", r"device: .* \(cpu:0, mps:0\), got cuda"),
        ({"cuda": True}, "mps", r"device: .* \(cpu:0, cuda:0\), got mps"),
        ({"cuda": True}, "cuda:1", r"device: .* \(cpu:0, cuda:0\), got cuda:1"),
        ({"cuda": True}, "meta", r"device: .* \(cpu:0, cuda:0\), got meta"),
        ({}, "xpu", r"device: .* \(cpu:0\), got xpu"),
    ],
)
def test_a_device_that_is_not_here(machine, has, device, message):
    machine(**has)
    with pytest.raises(ValueError, match=message):
        clock_for(device)


@pytest.mark.parametrize(
    ("has", "device"),
    [
        ({}, "cpu"),
        ({"mps": True}, "mps"),
        ({"cuda": True}, "cuda"),
        ({"cuda": True, "mps": True}, "cuda"),
    ],
)
def test_the_default_device_is_a_gpu_if_there_is_one(machine, has, device):
    machine(**has)
    assert default_device() == torch.device(device)
    clock_for(default_device())


def test_the_clock_is_that_of_the_inputs_device(monkeypatch):
    asked = []
    monkeypatch.setattr(
        timing, "clock_for", lambda device: asked.append(device) or FakeClock()
    )
    functions = {"a": lambda x: x}
    compare(functions, X)
    compare(functions, X.to("meta"), same_values=False)
    assert asked == [torch.device("cpu"), torch.device("meta")]


def test_no_clock_for_the_inputs_device():
    with pytest.raises(ValueError, match=r"device: expected .*cpu.*, got meta"):
        compare({"a": lambda x: x}, X.to("meta"))


class Broken(Exception):
    pass


def broken(x):
    torch.rand(1)
    raise Broken


def breaks_later():
    """Return a function whose third call raises: the first that is timed."""
    calls = []

    def function(x):
        calls.append(x)
        return broken(x) if len(calls) == 3 else x

    return function


@pytest.fixture
def threads():
    """Return a number of threads that is not torch's own, and that torch has."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)


def random_numbers(x):
    torch.rand(3)
    return x


@pytest.mark.parametrize(
    "function", [random_numbers, broken, breaks_later()], ids=["ends", "warm", "late"]
)
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_everything_is_left_as_it_was(threads, mode, gradients, function):
    state = torch.get_rng_state()
    with mode():
        before = torch.is_grad_enabled()
        fails = function is not random_numbers
        with pytest.raises(Broken) if fails else contextlib.nullcontext():
            compare(
                {"a": function},
                X,
                clock=FakeClock(),
                threads=2,
                gradients=gradients,
                repeats=1,
            )
        if function is not broken and fails:  # the next setting needs a fresh one
            function.__closure__[0].cell_contents.clear()
        assert torch.is_grad_enabled() == before
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_everything_is_left_as_it_was_when_values_differ(threads):
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match="b: expected"):
        compare({"a": random_numbers, "b": lambda x: x + 1}, X, threads=1)
    assert torch.get_num_threads() == threads
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_gradients_are_recorded_if_asked_for(mode, gradients):
    seen = []
    x = X.clone().requires_grad_()

    def function(x):
        y = x * 2
        seen.append((torch.is_grad_enabled(), y.requires_grad))
        return y

    with mode():
        compare({"a": function}, x, clock=FakeClock(), gradients=gradients)
    assert seen == [(gradients, gradients)] * 17


def test_by_default_no_gradients_are_recorded():
    seen = []
    functions = {"a": lambda x: seen.append(torch.is_grad_enabled()) or x}
    compare(functions, X, clock=FakeClock())
    assert set(seen) == {False}


def test_threads_are_those_that_the_caller_has_unless_given(threads):
    # pytorch#58585: torch.utils.benchmark takes one thread, whatever the caller has.
    seen = []
    functions = {"a": lambda x: seen.append(torch.get_num_threads()) or x}
    compare(functions, X, clock=FakeClock())
    assert seen == [threads] * 17
    for count in (1, 2):
        seen.clear()
        compare(functions, X, clock=FakeClock(), threads=count)
        assert seen == [count] * 17


def check_nothing_is_timed(functions, error, message, *, x=X):
    clock = FakeClock()
    with pytest.raises(error, match=message):
        compare(functions, x, clock=clock)
    assert clock.log == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x: x * 2 + 0.1, r"wrong: .* differ by 0\.1 \(the largest value is 8\)"),
        (lambda x: x * 2.01, r"wrong: .* differ by 0\.04"),
        (lambda x: x * -2, r"wrong: .* differ by 16"),
        (lambda x: x * 0, r"wrong: .* differ by 8"),
        (lambda x: (x * 2).masked_fill(x == 1, torch.nan), r"wrong: .* differ by nan"),
        (lambda x: (x * 2).masked_fill(x == 1, torch.inf), r"wrong: .* differ by inf"),
        (lambda x: x[:3] * 2, r"wrong: .*shape.* \(4,\), got \(3,\)"),
        (lambda x: x[None] * 2, r"wrong: .*shape.* \(4,\), got \(1, 4\)"),
        (lambda x: x[:1] * 2, r"wrong: .*shape.* \(4,\), got \(1,\)"),
        (lambda x: (x * 3, x * 2), r"wrong: .* differ by 4"),
    ],
)
@pytest.mark.parametrize("last", [True, False])
def test_a_wrong_answer_is_not_timed(wrong, message, last):
    functions = {"a": lambda x: x * 2, "b": lambda x: x + x, "wrong": wrong}
    if not last:
        functions["c"] = functions.pop("b")
    check_nothing_is_timed(functions, ValueError, f"^{message}")


def test_each_is_compared_with_the_first_so_that_errors_do_not_add_up():
    functions = {"a": lambda x: x, "b": lambda x: x * 1.0008}
    compare(functions, X, clock=FakeClock())
    functions["c"] = lambda x: x * 1.0016
    check_nothing_is_timed(functions, ValueError, "^c: ")


def test_nan_in_the_first_result_is_no_excuse():
    functions = {"a": lambda x: x / 0 * 0, "b": lambda x: x}
    check_nothing_is_timed(functions, ValueError, "differ by nan")


@pytest.mark.parametrize("result", [None, 1.0, [X], "text", (None, X), ([X], X)])
@pytest.mark.parametrize("place", [0, 1])
def test_a_result_that_is_no_tensor(place, result):
    functions = [("right", lambda x: x)]
    functions.insert(place, ("other", lambda x: result))
    kind = type(result[0] if isinstance(result, tuple) else result).__name__
    message = f"^other: expected a tensor as result, got {kind}$"
    check_nothing_is_timed(dict(functions), TypeError, message)


def test_the_first_entry_of_a_tuple_counts():
    functions = {
        "plain": lambda x: x * 2,
        "with weights": lambda x: (x * 2, x * 7),
        "without": lambda x: (x + x, None),
    }
    assert list(compare(functions, X, clock=FakeClock())) == list(functions)


def test_values_are_compared_whatever_records_gradients():
    x = X.clone().requires_grad_()
    functions = {"a": lambda x: x * 2, "b": lambda x: (x * 2).detach()}
    compare(functions, x, clock=FakeClock(), gradients=True)


@pytest.mark.parametrize(
    ("dtype", "error", "fits"),
    [
        (torch.float32, 0.0005, True),
        (torch.float32, 0.002, False),
        (torch.float64, 0.0005, True),
        (torch.float64, 0.002, False),
        (torch.bfloat16, 0.0079, True),  # the last bit of 1
        (torch.bfloat16, 0.01, True),
        (torch.bfloat16, 0.04, False),
        (torch.float16, 0.01, True),
        (torch.float16, 0.04, False),
    ],
)
@pytest.mark.parametrize("size", [1.0, 100.0, 0.01])
def test_results_may_differ_by_their_rounding(size, dtype, error, fits):
    # Of the largest value: a small entry beside it may be off by as much.
    x = torch.tensor([size, -size / 2, 0.0], dtype=dtype)
    wrong = x + torch.tensor([0.0, 0.0, error * size], dtype=dtype)
    functions = {"a": lambda x: x, "b": lambda x: wrong}
    if fits:
        compare(functions, x, clock=FakeClock())
    else:
        check_nothing_is_timed(functions, ValueError, "^b: ", x=x)


def test_zeros_are_the_same_as_zeros():
    functions = {"a": lambda x: x * 0, "b": lambda x: x - x}
    compare(functions, X, clock=FakeClock())
    functions["c"] = lambda x: x * 0 + 0.001
    check_nothing_is_timed(functions, ValueError, "^c: ")


@pytest.mark.parametrize("other", [lambda x: x + 1, lambda x: x[:2], lambda x: None])
def test_values_are_not_compared_if_they_need_not_be_the_same(other):
    clock = FakeClock()
    functions = {"a": lambda x: x, "b": other}
    found = compare(functions, X, clock=clock, same_values=False)
    assert len(found["b"].samples) == 15
    assert clock.log.count("start") == 30


@pytest.mark.parametrize(
    ("inputs", "options", "error", "message"),
    [
        ((X,), {"repeats": 0}, ValueError, "^repeats: expected at least 1, got 0"),
        ((X,), {"repeats": -1}, ValueError, "^repeats: .*got -1"),
        ((X,), {"repeats": 2.0}, TypeError, r"^repeats: expected an int, got 2\.0"),
        ((X,), {"warm_up": 0}, ValueError, "^warm_up: expected at least 1, got 0"),
        ((X,), {"warm_up": True}, TypeError, "^warm_up: expected an int, got True"),
        ((X,), {"threads": 0}, ValueError, "^threads: expected at least 1, got 0"),
        ((X,), {"threads": 1.5}, TypeError, r"^threads: expected an int, got 1\.5"),
        ((), {}, ValueError, "^inputs: expected .* got no tensor"),
        ((3.0,), {}, TypeError, r"^inputs\[0\]: expected a torch.Tensor, got float"),
        ((X, [X]), {}, TypeError, r"^inputs\[1\]: .*, got list"),
        ((X, X.to("meta")), {}, ValueError, "^inputs: .* one device, got cpu, meta"),
    ],
)
def test_arguments_that_make_no_sense(inputs, options, error, message):
    calls, clock = [], FakeClock()
    with pytest.raises(error, match=message):
        compare({"a": lambda *x: calls.append(x) or X}, *inputs, clock=clock, **options)
    assert clock.log == calls == []


def test_nothing_to_time():
    with pytest.raises(ValueError, match=r"^functions: expected at least one"):
        compare({}, X)


def test_a_cpu_is_timed():
    found = compare({"a": lambda x: x + 1, "b": lambda x: 1 + x}, X, repeats=3)
    for entry in found.values():
        assert len(entry.samples) == 3 and all(s >= 0 for s in entry.samples)
        assert min(entry.samples) <= entry.median <= max(entry.samples) < 60


def test_results_of_any_kind_are_compared():
    inputs = torch.arange(1.0, 5.0)
    for pair in (
        [lambda x: (x / 3).bfloat16(), lambda x: x / 3],  # the coarser type counts
        [lambda x: x[:0], lambda x: x[:0]],
        [lambda x: x.long(), lambda x: x.long()],
    ):
        compare(dict(zip("ab", pair, strict=True)), inputs, repeats=1)
    with pytest.raises(ValueError, match=r"^b: expected the first function's values"):
        compare({"a": lambda x: x.long(), "b": lambda x: x.long() + 1}, inputs)
    with pytest.raises(TypeError, match=r"^a: expected a tensor as result, got tuple"):
        compare({"a": lambda x: ()}, inputs)


def test_a_device_that_does_not_exist():
    with pytest.raises(
        ValueError, match="device: expected cpu, cuda or mps, got 'bogus'"
    ):
        clock_for("bogus")


def test_a_function_that_changes_its_input_is_refused():
    x = X.clone()
    with pytest.raises(ValueError, match=r"^b: expected inputs to stay as they are"):
        compare({"a": lambda x: x * 2, "b": lambda x: x.mul_(2)}, x)
    with torch.inference_mode():  # there nothing is counted
        compare({"a": lambda x: x * 2}, torch.ones(3), repeats=1)


def test_gradients_in_inference_mode_are_refused():
    with (
        torch.inference_mode(),
        pytest.raises(ValueError, match=r"^gradients: expected False in inference"),
    ):
        compare({"a": lambda x: x * 2}, X, gradients=True)


def test_imaginary_parts_are_compared():
    same = {"a": lambda x: torch.complex(x, x), "b": lambda x: torch.complex(x, x)}
    compare(same, X, repeats=1)
    other = same | {"b": lambda x: torch.complex(x, -7 * x)}
    with pytest.raises(ValueError, match=r"^b: expected the first function's values"):
        compare(other, X)


@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_is_equal_to_itself_and_to_nothing_else(special):
    def with_special(x):
        return torch.cat([x, x.new_tensor([special])])

    def without(x):
        return torch.cat([x, x[:1]])

    compare({"a": with_special, "b": with_special}, X, repeats=1)
    for pair in ([with_special, without], [without, with_special]):
        with pytest.raises(ValueError, match=r"^b: expected the first function's"):
            compare(dict(zip("ab", pair, strict=True)), X)
