"""What is recorded of a device: complete, of the form that the schema says, and stored without loss."""

import collections
import copy
import datetime
import itertools
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from jsonschema import Draft202012Validator, ValidationError

from mha import attention_cost, recordings
from mha.recordings import (
    FOLDER,
    SIZES,
    Comparison,
    load_records,
    main,
    record_device,
    write_record,
)

SCHEMA = json.loads(
    Path(__file__).with_name("recording_schema.json").read_text(encoding="utf-8")
)
VALIDATOR = Draft202012Validator(SCHEMA)
COMMITTED = sorted(FOLDER.glob("*.json"))

VARIANTS = {
    "heads": ["loop", "batched", "fused"],
    "length": ["readable", "fused"],
    "dtype": ["float32", "bfloat16", "float16"],
    "backend": ["math", "flash", "efficient", "cudnn"],
    "compile": ["readable", "readable, compiled", "fused", "fused, compiled"],
    "weights": ["without", "with"],
    "training": ["without", "with"],
    "mask": ["is_causal", "mask", "none"],
    "decode": ["cached", "projected again"],
}


@pytest.fixture(scope="session")
def tiny():
    """Return the record of this CPU with the smallest sizes, and the lines that were said."""
    said = []
    with pytest.MonkeyPatch.context() as patch:
        # Compiling takes longer than everything else, and needs a C++ compiler.
        patch.setattr(torch, "compile", lambda function, **options: function)
        patch.setattr(recordings, "SECONDS", 0)
        record = record_device("cpu", sizes=SIZES["tiny"], say=said.append)
    return record, said


@pytest.fixture
def record(tiny):
    return copy.deepcopy(tiny[0])


@pytest.fixture(params=["tiny", *(path.stem for path in COMMITTED)])
def any_record(request, tiny):
    """Return a record, and the sizes it was made with."""
    if request.param == "tiny":
        return tiny[0], SIZES["tiny"]
    record = json.loads((FOLDER / f"{request.param}.json").read_text(encoding="utf-8"))
    return record, SIZES["cpu" if record["kind"] == "cpu" else "gpu"]


def runs_of(record, series):
    return [run for run in record["runs"] if run["series"] == series]


# The schema --------------------------------------------------------------------------------------------


def test_there_is_a_record():
    """An empty folder would let some tests below pass."""
    assert COMMITTED


def test_the_schema_is_one_and_leaves_nothing_open():
    Draft202012Validator.check_schema(SCHEMA)
    objects = [SCHEMA, *SCHEMA["$defs"].values(), SCHEMA["properties"]["peak"]]
    objects.append(SCHEMA["properties"]["peak"]["properties"]["flops_per_second"])
    objects = [entry for entry in objects if entry.get("type") == "object"]
    assert len(objects) == 5
    for entry in objects:
        assert entry["required"] == list(entry["properties"])
        assert entry["additionalProperties"] is False
    assert SCHEMA["$defs"]["series"]["enum"] == list(VARIANTS)


def test_each_record_fits_the_schema(any_record):
    VALIDATOR.validate(any_record[0])


def places(value, path=()):
    """Yield the path to each part of a record; of a list to its first entry."""
    if path:
        yield path
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from places(entry, (*path, name))
    elif isinstance(value, list):
        yield from places(value[0], (*path, 0))


def refused(record):
    """Return the one place where the schema finds something wrong."""
    with pytest.raises(ValidationError):
        VALIDATOR.validate(record)
    (place,) = {tuple(error.absolute_path) for error in VALIDATOR.iter_errors(record)}
    return place


def inside(record, path):
    for name in path[:-1]:
        record = record[name]
    return record, path[-1]


def test_the_schema_refuses_a_missing_field(record):
    fields = [path for path in places(record) if path[-1] != 0]
    assert len(fields) == 9 + 2 + 3 + 14 + 3
    for path in fields:
        changed = copy.deepcopy(record)
        parent, name = inside(changed, path)
        del parent[name]
        assert refused(changed) == path[:-1], path


def test_the_schema_refuses_a_field_too_many(record):
    for path in [(), ("peak",), ("peak", "flops_per_second"), ("runs", 0)]:
        changed = copy.deepcopy(record)
        parent, name = inside(changed, (*path, "other"))
        parent[name] = 1
        assert refused(changed) == path


def test_the_schema_refuses_text_for_numbers_and_numbers_for_text(record):
    for path in places(record):
        changed = copy.deepcopy(record)
        parent, name = inside(changed, path)
        if not isinstance(parent[name], dict | list):
            number = isinstance(parent[name], int | float)
            parent[name] = str(parent[name]) if number else 1
            assert refused(changed) == path


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("runs", 0, "median"), [-1.0, 0, True, None]),
        (("runs", 0, "spread"), [-0.001, None]),
        (("runs", 0, "samples"), [0, 1.5, None]),
        (("runs", 0, "flops"), [0, -1, 0.5]),
        (("runs", 0, "bytes"), [0, -1, 0.5]),
        (("runs", 0, "series"), ["head", "", None]),
        (("runs", 0, "dtype"), ["torch.float32", "float64", None]),
        (("runs", 0, "backend"), ["fused", "", False]),
        (("runs", 0, "variant"), ["", None]),
        (("skipped", 0, "series"), ["lengths", None]),
        (("skipped", 0, "reason"), ["", "two\nlines", "a" * 161, None]),
        (("runs",), [[], {}]),
        (("threads",), [0, -1, 2.5]),
        (("kind",), ["gpu", "CPU", None]),
        (("date",), ["29.11.2026", "2026-13-01", "2026-11-32", "2026-11-29T10:00"]),
        (("torch",), ["", "nightly"]),
        (("peak", "bytes_per_second"), [0, -1.0]),
        (("peak", "flops_per_second", "float16"), [0, -1.0, None]),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_the_schema_refuses_values_that_make_no_sense(record, path, wrong):
    parent, name = inside(record, path)
    for value in wrong:
        parent[name] = value
        assert refused(record) == path, value


# What is recorded --------------------------------------------------------------------------------------


def grid(sizes):
    """Yield series, variant, number of tokens and of heads of everything that is timed."""
    several = {
        "heads": list(itertools.product(sizes.head_lengths, (1, 2, 4, 8, 16, 32))),
        "length": [(length, 8) for length in sizes.lengths],
        "decode": [(length, 8) for length in sizes.lengths],
    }
    for series, variants in VARIANTS.items():
        for place in several.get(series, [(sizes.length, 8)]):
            for variant in variants:
                yield series, variant, *place


def test_every_variant_is_timed_at_every_size_or_said_to_be_skipped(any_record):
    record, sizes = any_record
    expected = list(grid(sizes))
    keys = ("series", "variant", "length", "heads")
    timed = [tuple(run[key] for key in keys) for run in record["runs"]]
    assert len(set(timed)) == len(timed), "something is timed twice"
    assert set(timed) <= set(expected)
    lost = collections.Counter(key[:2] for key in set(expected) - set(timed))
    skipped = [(entry["series"], entry["variant"]) for entry in record["skipped"]]
    assert lost == collections.Counter(skipped)
    assert timed == [key for key in expected if key in set(timed)]  # in this order
    assert {run["series"] for run in record["runs"]} == set(VARIANTS)


def test_a_table_that_is_too_large_is_not_tried(any_record):
    record, sizes = any_record
    tables = {n: 4 * sizes.batch * 8 * n**2 for n in sizes.lengths}
    too_long = [n for n, table in tables.items() if table > sizes.table]
    assert too_long and len(too_long) < len(tables)
    timed = [r["length"] for r in runs_of(record, "length") if r["variant"] != "fused"]
    assert not set(timed) & set(too_long)
    for n in too_long:
        reason = f"weights of {tables[n] / 1e9:.3g} GB at {n} tokens"
        entry = {"series": "length", "variant": "readable", "reason": reason}
        assert entry in record["skipped"]


def test_sizes_and_samples(any_record):
    record, sizes = any_record
    for run in record["runs"]:
        assert run["batch"] == sizes.batch and run["d_model"] == 512
        assert recordings.FEWEST <= run["samples"] <= recordings.MOST


def test_types(any_record):
    record, _ = any_record
    for run in record["runs"]:
        expected = "float32"
        if run["series"] == "dtype":
            expected = run["variant"]
        elif run["series"] == "backend" and record["kind"] != "cpu":
            expected = "float16"
        assert run["dtype"] == expected


def test_flops_are_those_of_the_formula(any_record):
    record, sizes = any_record
    for run in record["runs"]:
        n, d = run["length"], 512
        whole = attention_cost(n, d, run["heads"]).matmul_flops
        # The last token's query and result, its scores, and what it mixes.
        last = 2 * d * d + 2 * n * d + 2 * n * d + 2 * d * d
        expected = {
            "training": 3 * whole,
            "backend": whole - 8 * n * d**2,
            "mask": None,
            "decode": last if run["variant"] == "cached" else last + 4 * n * d**2,
        }.get(run["series"], whole)
        assert run["flops"] == (expected and sizes.batch * expected), run


def test_what_cannot_be_seen_is_null(any_record):
    for run in any_record[0]["runs"]:
        nulls = {name for name, value in run.items() if value is None} - {"flops"}
        compiled = run["variant"].endswith(", compiled")
        assert nulls == ({"bytes", "peak_bytes", "backend"} if compiled else set())


def test_kernels(any_record):
    record, _ = any_record
    for run in record["runs"]:
        if run["series"] == "backend":
            assert run["backend"] == run["variant"]
        elif run["variant"] in ("loop", "batched", "readable", "with"):
            assert run["backend"] == "math"
        elif record["kind"] == "cpu" and run["backend"]:
            assert run["backend"] == "flash"


def test_readable_needs_more_memory_than_fused(any_record):
    record, sizes = any_record
    pairs = collections.defaultdict(dict)
    for run in runs_of(record, "length"):
        pairs[run["length"]][run["variant"]] = run
    both = [pair for pair in pairs.values() if len(pair) == 2]
    assert both
    for pair in both:
        table = 4 * sizes.batch * 8 * pair["fused"]["length"] ** 2
        # At the very least, the table is written and read.
        assert pair["readable"]["bytes"] > pair["fused"]["bytes"] + 2 * table
        if pair["fused"]["length"] >= 256:
            assert pair["readable"]["peak_bytes"] > pair["fused"]["peak_bytes"]


def test_who_recorded(record):
    assert record["kind"] == "cpu" and record["threads"] == torch.get_num_threads()
    assert record["torch"] == torch.__version__
    date = datetime.date.fromisoformat(record["date"])
    assert abs(datetime.date.today() - date) <= datetime.timedelta(days=1)
    assert record["driver"].startswith(platform.system())


def test_progress_is_said(tiny):
    record, said = tiny
    steps = [re.fullmatch(r" *\d+ s  (.+)", line)[1] for line in said]
    at_each = [
        f"{series}, {length} tokens" + f", {heads} heads" * (series == "heads")
        for series, _, length, heads in grid(SIZES["tiny"])
    ]
    at_each = [step for step, _ in itertools.groupby(at_each)]
    assert steps[0] == f"{record['device']}: what it reaches at best"
    assert [step for step, _ in itertools.groupby(steps[1:-2])] == at_each
    assert steps[-2:] == ["what it reaches at best, again", "done"]


# One comparison ----------------------------------------------------------------------------------------

X = torch.ones(1, 4, 512)
PEAK = {
    "flops_per_second": {"float32": 3.0, "bfloat16": 2.0, "float16": 1.0},
    "bytes_per_second": 4.0,
}


@pytest.fixture
def record_calls(monkeypatch):
    """Return a function that records these calls alone, and nothing else."""
    monkeypatch.setattr(recordings, "SECONDS", 0)
    monkeypatch.setattr(recordings, "_peak", lambda device, sizes: PEAK)

    def function(calls, **options):
        comparison = Comparison("weights", calls, X, 4, 8, 1000, **options)
        monkeypatch.setattr(recordings, "_comparisons", lambda *_: iter([comparison]))
        return record_device("cpu", say=lambda line: None)

    return function


def raising(error):
    def call(x):
        raise error

    return call


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("no kernel"), "no kernel"),
        (RuntimeError("\n  no kernel\nfor this\n"), "no kernel"),
        (ValueError("a" * 500), "a" * 160),
        (NotImplementedError(), "NotImplementedError"),
        (torch.OutOfMemoryError("CUDA out of memory.\nTried"), "CUDA out of memory."),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_call_that_raises_is_skipped_and_the_others_are_timed(
    record_calls, place, error, reason
):
    calls = [("a", lambda x: x * 2), ("b", lambda x: x + x)]
    calls.insert(place, ("broken", raising(error)))
    record = record_calls(dict(calls))
    entry = {"series": "weights", "variant": "broken", "reason": reason}
    assert record["skipped"] == [entry]
    assert [run["variant"] for run in record["runs"]] == ["a", "b"]
    VALIDATOR.validate(record)


def test_all_calls_may_raise(record_calls):
    record = record_calls(dict.fromkeys("ab", raising(RuntimeError("no"))))
    assert [entry["variant"] for entry in record["skipped"]] == ["a", "b"]
    assert record["runs"] == []


def test_what_a_run_says(record_calls):
    (run,) = record_calls({"twice": lambda x: x * 2 + 1})["runs"]
    assert run.pop("median") > 0 and run.pop("spread") >= 0
    assert run == {
        "series": "weights",
        "variant": "twice",
        "batch": 1,
        "length": 4,
        "d_model": 512,
        "heads": 8,
        "dtype": "float32",
        "samples": recordings.FEWEST,
        "flops": 1000,
        "bytes": 4 * 4 * 2048,
        "peak_bytes": 2 * 4 * 2048,
        "backend": "math",
    }


def test_quick_calls_are_made_more_often(record_calls, monkeypatch):
    monkeypatch.setattr(recordings, "SECONDS", 1e9)
    (run,) = record_calls({"a": lambda x: x * 2})["runs"]
    assert run["samples"] == recordings.MOST


def test_a_wrong_answer_is_not_recorded_and_the_rest_is(record_calls):
    calls = {"a": lambda x: x, "b": lambda x: x * 2}
    record = record_calls(calls)
    assert record["runs"] == []
    assert [entry["variant"] for entry in record["skipped"]] == ["a", "b"]
    for entry in record["skipped"]:
        assert entry["reason"].startswith("b: expected the first function's values")
    runs = record_calls(calls, unequal=("b",))["runs"]
    assert [run["variant"] for run in runs] == ["a", "b"]


def test_a_limit_is_what_is_reached_at_best_before_or_after(monkeypatch):
    log = []
    peaks = [
        {"flops_per_second": {"a": 1.0, "b": 9.0}, "bytes_per_second": 5.0},
        {"flops_per_second": {"a": 2.0, "b": 8.0}, "bytes_per_second": 4.0},
    ]

    def peak(device, sizes):
        log.append("peak")
        return peaks[log.count("peak") - 1]

    def comparisons(device, sizes, skip):
        log.append("comparisons")
        yield from ()

    monkeypatch.setattr(recordings, "_peak", peak)
    monkeypatch.setattr(recordings, "_comparisons", comparisons)
    record = record_device("cpu", say=lambda line: None)
    assert log == ["peak", "comparisons", "peak"]
    flops = {"a": 2.0, "b": 9.0}
    assert record["peak"] == {"flops_per_second": flops, "bytes_per_second": 5.0}


# Devices -----------------------------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch):
    """Return a function that lets the machine have a GPU, on which nothing is timed."""
    asked = []
    monkeypatch.setattr(recordings, "_peak", lambda device, sizes: PEAK)

    def comparisons(*arguments):
        asked.append(arguments[:2])
        return iter(())

    def has(cuda=False, mps=False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: int(cuda))
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
        return asked

    monkeypatch.setattr(recordings, "_comparisons", comparisons)
    return has


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda", r"^device: expected one that is here \(cpu:0\), got cuda$"),
        (torch.device("cuda", 1), r"^device: .*\(cpu:0\), got cuda:1$"),
        ("mps", r"^device: .*\(cpu:0\), got mps$"),
        ("bogus", r"^device: expected cpu, cuda or mps, got 'bogus'$"),
    ],
)
def test_a_device_that_is_not_here(machine, device, message):
    said, asked = [], machine()
    with pytest.raises(ValueError, match=message):
        record_device(device, say=said.append)
    assert said == asked == []


def test_a_cpu_gets_less_to_do_than_a_gpu(machine):
    asked = machine(mps=True)
    record = record_device("cpu", say=str)
    gpu = record_device(torch.device("mps"), say=str)
    assert asked == [
        (torch.device("cpu"), SIZES["cpu"]),
        (torch.device("mps"), SIZES["gpu"]),
    ]
    assert gpu["kind"] == "mps" and gpu["device"] == f"{record['device']} GPU"


@pytest.mark.parametrize(
    ("answer", "driver"),
    [("580.95.05\n580.95.05\n", "580.95.05"), ("", "unknown"), (None, "unknown")],
)
def test_a_gpu_is_named_with_its_driver(machine, monkeypatch, answer, driver):
    def run(command, **options):
        assert command[0] == "nvidia-smi" and options["timeout"]
        if answer is None:
            raise FileNotFoundError(command[0])
        return subprocess.CompletedProcess(command, 0, answer, "")

    machine(cuda=True)
    monkeypatch.setattr(recordings, "clock_for", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(subprocess, "run", run)
    record = record_device("cuda", say=str)
    assert record["device"] == "NVIDIA H200" and record["kind"] == "cuda"
    assert record["driver"] == f"{driver}, CUDA 13.0"


# Files -------------------------------------------------------------------------------------------------


def test_what_is_written_is_what_is_loaded(record, tmp_path):
    folder = tmp_path / "new" / "folder"
    path = write_record(record, folder)
    assert path.parent == folder
    assert load_records(folder) == [record]
    assert load_records(tmp_path) == []


def test_strange_words_are_written_as_well(record, tmp_path):
    record["device"] = '"peak" {"series": "Größe"}\n'
    record["skipped"][0]["reason"] = '{"series" "runs", "skipped"\\'
    write_record(record, tmp_path)
    assert load_records(tmp_path) == [record]


def test_each_run_has_its_line(record, tmp_path):
    lines = write_record(record, tmp_path).read_text(encoding="utf-8").splitlines()
    starting = [line for line in lines if line.startswith('{"series"')]
    assert len(starting) == len(record["runs"]) + len(record["skipped"])
    assert len(lines) == len(starting) + 4


def test_the_same_device_takes_its_old_place(record, tmp_path):
    old = write_record(record, tmp_path)
    record["date"] = "2031-01-01"
    assert write_record(record, tmp_path) == old
    assert load_records(tmp_path) == [record]


def test_another_number_of_threads_gets_another_file_on_a_cpu_alone(record, tmp_path):
    for kind, files in (("cpu", 2), ("cuda", 1), ("mps", 1)):
        record["kind"] = kind
        folder = tmp_path / kind
        for threads in (2, 16):
            record["threads"] = threads
            write_record(record, folder)
        loaded = load_records(folder)
        assert sorted(entry["threads"] for entry in loaded) == [2, 16][-files:]


def test_gpus_come_first(record, tmp_path):
    for name, kind in [("A", "cpu"), ("Z", "cuda"), ("M", "cpu"), ("P", "mps")]:
        write_record(record | {"device": name, "kind": kind}, tmp_path)
    assert "".join(entry["device"] for entry in load_records(tmp_path)) == "PZAM"


@pytest.mark.parametrize(
    ("device", "kind", "name"),
    [
        ("AMD EPYC", "cpu", "amd_epyc_2_threads"),
        ("Intel(R) Xeon(R) @ 2.20GHz", "cpu", "intel_r_xeon_r_2_20ghz_2_threads"),
        ("NVIDIA H200", "cuda", "nvidia_h200"),
        ("  Tesla/../T4™ ", "cuda", "tesla_t4"),
        ("Größe & Söhne", "cpu", "gr_e_s_hne_2_threads"),
        ("Apple M3 GPU", "mps", "apple_m3_gpu"),
    ],
)
def test_names_of_files(record, tmp_path, device, kind, name):
    changed = record | {"device": device, "kind": kind, "threads": 2}
    path = write_record(changed, tmp_path)
    assert path == tmp_path / f"{name}.json" and path.is_file()
    assert re.fullmatch(r"[a-z0-9_]+", path.stem)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_files_are_as_they_would_be_written(path, tmp_path):
    text = path.read_text(encoding="utf-8")
    written = write_record(json.loads(text), tmp_path)
    assert written.name == path.name
    assert written.read_text(encoding="utf-8") == text


def test_all_committed_records_are_loaded():
    assert len(load_records()) == len(COMMITTED)


# The command -------------------------------------------------------------------------------------------


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "mha.timing", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )


def test_the_commands_help_comes_without_warnings():
    done = command("--help")
    assert done.returncode == 0 and done.stderr == ""
    for option in ("--record", "--device", "--threads", "--folder"):
        assert option in done.stdout


def test_the_command_refuses_a_device_that_is_not_here(tmp_path):
    done = command("--record", "--device", "cuda", "--folder", tmp_path / "new")
    assert done.returncode == 2 and done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(
        r"python -m mha\.timing: error: device: .*\(cpu.*\), got cuda", last
    )
    assert not list(tmp_path.iterdir())


@pytest.fixture
def run_main(monkeypatch, record):
    """Return a function that runs the command in this process, with nothing timed."""
    before, asked = torch.get_num_threads(), []

    def recorded(device, *, say):
        asked.append((device, torch.get_num_threads()))
        say("a line")
        return record

    def function(*arguments):
        monkeypatch.setattr(sys, "argv", ["timing", *map(str, arguments)])
        main()
        return asked

    monkeypatch.setattr(recordings, "record_device", recorded)
    yield function
    torch.set_num_threads(before)


def test_the_command_writes_a_record_and_says_where(
    run_main, record, tmp_path, capsys, monkeypatch
):
    device = torch.device("cpu", 0)
    monkeypatch.setattr(recordings, "default_device", lambda: device)
    asked = run_main("--record", "--folder", tmp_path)
    assert asked == [(device, torch.get_num_threads())]
    (path,) = tmp_path.iterdir()
    assert load_records(tmp_path) == [record]
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[-1]) == ("a line", str(path))


@pytest.mark.parametrize(("spread", "busy"), [(0.1, False), (0.9, True)])
def test_a_busy_machine_is_noticed(run_main, record, tmp_path, capsys, spread, busy):
    for run in record["runs"]:
        run["spread"] = spread * run["median"]
    run_main("--record", "--folder", tmp_path)
    assert ("is this machine busy?" in capsys.readouterr().out) == busy


def test_the_command_takes_a_device_and_threads(run_main, tmp_path):
    options = ["--record", "--folder", tmp_path, "--device", "cpu", "--threads"]
    assert run_main(*options, 1) == [("cpu", 1)]


def test_a_folder_that_cannot_be_written_is_found_before_the_timing(
    run_main, tmp_path, capsys
):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as ending:
        run_main("--record", "--folder", tmp_path / "file")
    assert ending.value.code == 2
    captured = capsys.readouterr()
    assert "folder: expected one that can be written, got" in captured.err
    assert captured.out == ""


def test_what_is_stored_stays_if_the_disk_is_full(tmp_path, record, monkeypatch):
    path = write_record(record, tmp_path)
    before = path.read_text(encoding="utf-8")

    def full(self, text, **options):
        with open(self, "w", encoding="utf-8") as file:
            file.write(text[:20])
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        write_record(record | {"date": "2030-01-01"}, tmp_path)
    assert path.read_text(encoding="utf-8") == before
    assert load_records(tmp_path) == [record]


def test_records_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(
        ValueError, match=r"folder: expected one with records, got .*no"
    ):
        load_records(tmp_path / "no")
    for text in ("{", "{}", "[]", "3"):
        (tmp_path / "broken.json").write_text(text)
        with pytest.raises(ValueError, match=r"broken\.json: expected a record, got"):
            load_records(str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: --record"),
        (
            ["--record", "--threads", "0"],
            f"threads: expected 1 to {os.cpu_count()}, got 0",
        ),
        (
            ["--record", "--threads", "-1"],
            f"threads: expected 1 to {os.cpu_count()}, got -1",
        ),
        (["--record", "--threads", "all"], "invalid int value: 'all'"),
    ],
)
def test_arguments_that_make_no_sense(run_main, tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as ending:
        run_main(*arguments, "--folder", tmp_path / "new")
    assert ending.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
