"""The command from its flags to its document, and its exit codes."""

import importlib.util
import json
import os
import signal
import statistics
import time

import pytest

from barter_jax.benchmarking.document import DEFINITIONS
from tests.training import commands, tiny
from tests.training.commands import assert_refused

MODULE = "barter_jax.benchmark"
CONFIG = f"--config={tiny.CONFIG_FILE}"
# Code is timed here, but nothing depends on how good it is.
FAST = {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_llvm_disable_expensive_passes=true"}
METHODS = {"dense": None, "masked": 0.5, "static": 0.5, "barter": 0.5}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """All the default methods, and segments of two steps; the document and the files."""
    folder = tmp_path_factory.mktemp("benchmark")
    flags = ["--json", "--repeats=3", "--block=2", "--segment", "--segment_steps=2"]
    flags += [f"--output={folder / 'document.json'}"]
    with commands.started(MODULE, CONFIG, *flags, TMPDIR=str(folder), **FAST) as command:
        done = command.wait(timeout=600)  # it compiles a good deal, and a machine may be busy
    assert done.code == 0, done.stderr
    return done, json.loads(done.stdout), folder


def test_the_document_has_all_cases(result):
    _, doc, _ = result
    assert {case["method"]: case["density"] for case in doc["cases"]} == METHODS
    assert [case["batch_size"] for case in doc["cases"]] == [16] * 4
    assert doc["definitions"] == DEFINITIONS
    environment = doc["environment"]
    assert environment["platform"] == "cpu" and environment["dtype"] == "float32"
    assert environment["cores"] >= 1 and environment["versions"]["jax"]
    assert doc["settings"]["rounds"] == 3


def test_the_ratios_follow_from_the_raw_numbers(result):
    _, doc, _ = result

    def median_ms(raw):
        assert raw["steps_per_block"] == 2 and len(raw["block_seconds"]) == 3
        return statistics.median(1e3 * s / 2 for s in raw["block_seconds"])

    cases = {case["method"]: case for case in doc["cases"]}
    dense = cases["dense"]
    assert doc["reference"] == [
        {"batch_size": 16, "method": "dense", "step_ms": dense["step_ms"]["median"]}
    ]
    for case in cases.values():
        step_ms, gflops = median_ms(case["raw"]["train"]), case["training_gflops_per_image"]
        assert case["step_ms"]["median"] == pytest.approx(step_ms)
        assert case["step_ms"]["p10"] <= step_ms <= case["step_ms"]["p90"]
        assert case["images_per_second"] == pytest.approx(16e3 / step_ms)
        speedup = median_ms(dense["raw"]["train"]) / step_ms
        flop_ratio = dense["training_gflops_per_image"] / gflops
        assert case["speedup"] == pytest.approx(speedup)
        assert case["flop_ratio"] == pytest.approx(flop_ratio)
        assert case["realised"] == pytest.approx(speedup / flop_ratio)
        evaluation_ms = median_ms(case["raw"]["evaluation"])
        assert case["evaluation"]["images_per_second"] == pytest.approx(16e3 / evaluation_ms)
        compiler = case["memory"]["compiler"]
        assert compiler["peak_bytes"] == (
            compiler["arguments_bytes"]
            + compiler["outputs_bytes"]
            - compiler["aliased_bytes"]
            + compiler["temporaries_bytes"]
        )
        assert compiler["reduction_percent"] == pytest.approx(
            100 - 100 * compiler["peak_bytes"] / dense["memory"]["compiler"]["peak_bytes"]
        )
        assert case["memory"]["device"] is None, "a CPU does not count"
        for step in ("train", "evaluate"):
            assert all(seconds > 0 for seconds in case["compile"][step].values())
    assert cases["static"]["flop_ratio"] > 1.5
    assert cases["masked"]["flop_ratio"] == 1
    assert cases["masked"]["details"]["kept_weights"] == (4 * 256 + 2 * 192) * 2 // 2
    assert cases["static"]["memory"]["compiler"]["reduction_percent"] > 10
    assert cases["masked"]["memory"]["compiler"]["reduction_percent"] < 0
    # They differ: BARTER keeps statistics of its units.
    assert all(case["compile"]["compiled_with"] is None for case in cases.values())


def test_the_updates_of_the_schedule(result):
    _, doc, _ = result
    found = {case["method"]: case["updates"] for case in doc["cases"]}
    assert found["dense"] is found["masked"] is found["static"] is None
    updates = found["barter"]
    assert updates["count"] == 2 and updates["moved"] == {"heads": 2, "channels": 5}
    assert updates["total_steps"] == 12
    total = statistics.median(updates["schedule_ms_by_pass"])
    assert updates["schedule_ms"] == pytest.approx(total)
    (step_ms,) = [c["step_ms"]["median"] for c in doc["cases"] if c["method"] == "barter"]
    assert updates["schedule_weighted_step_ms"] == pytest.approx(step_ms + total / 12)


def test_segments_of_the_loop(result):
    _, doc, _ = result
    rows = {row["method"]: row for row in doc["segments"]}
    assert set(rows) == {"dense", "static", "barter"}
    for row in rows.values():
        training = sum(row["seconds"][kind] for kind in ("step", "data", "update"))
        assert row["seconds_per_epoch"] == pytest.approx(training * row["steps_per_epoch"] / 2)
        assert row["steps"] == 2 and row["steps_per_epoch"] == 85
        assert row["speedup"] == pytest.approx(
            rows["dense"]["seconds_per_epoch"] / row["seconds_per_epoch"]
        )
        assert row["seconds"]["compile"] > 0 and row["seconds"]["evaluation"] > 0
    assert rows["barter"]["updates"] == 1 and rows["static"]["updates"] == 0


def test_one_document_progress_and_nothing_left_behind(result):
    done, doc, folder = result
    assert json.loads((folder / "document.json").read_text()) == doc
    assert "compiling 1 of 4: static 0.5, batch 16" in done.stderr
    assert "round 1 of 3, " in done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["document.json"]


def test_a_table_by_default():
    done = commands.run(
        MODULE, CONFIG, "--methods=dense", "--repeats=1", "--warmup=1", "--block=1", **FAST
    )
    assert done.code == 0, done.stderr
    assert any(line.startswith("dense") and "1.00x" in line for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    "flags, fragments",
    [
        (["--methods=dense,riggle"], ["--methods", "rigl", "torch_static"]),
        (["--methods=dense,dense"], ["--methods", "dense twice"]),
        (["--densities=0.5,1.5"], ["--densities", "1.5"]),
        (["--densities=0.01"], ["0.01", "use at least"]),
        (["--batch_sizes=0"], ["--batch_sizes", "at least 1"]),
        (["--batch_sizes=16,16"], ["--batch_sizes", "16 twice"]),
        (["--repeats=0"], ["repeats"]),
        (["--plot=figure.jpg"], ["--plot=figure.jpg", ".png, .svg, .pdf"]),
        (["--output=/nowhere/at/all.json"], ["--output=/nowhere/at/all.json", "cannot be written"]),
        (["--output=/"], ["--output=/", "cannot be written"]),
        (["--segment_steps=3"], ["--segment_steps", "--segment"]),
        (
            [
                "--segment",
                "--config.data.name=cifar",
                "--config.data.num_classes=10",
                "--config.data.num_train=1000",
            ],
            ["--segment", "cifar"],
        ),  # fmt: skip
        (["--config.optimizer.name=adafactor"], ["optimizer.name=adafactor"]),
        (["stray"], ["stray"]),
    ],
    ids=lambda value: value[0] if value[0].startswith("--") else None,
)
def test_mistakes_are_told_before_anything_is_compiled(flags, fragments):
    assert_refused(commands.run(MODULE, CONFIG, *flags), *fragments)


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_torch_is_asked_for_where_it_is_missing():
    done = commands.run(MODULE, CONFIG, "--methods=dense,torch_static")
    assert_refused(done, "--methods", "torch_static", "pip install torch")


@pytest.mark.parametrize(
    ("number", "code", "last"),
    [(signal.SIGINT, 130, "error: interrupted"), (signal.SIGTERM, 143, "stopped by SIGTERM")],
)
def test_interrupted(number, code, last, tmp_path):
    arguments = (MODULE, CONFIG, "--methods=dense", "--repeats=100000")
    with commands.started(*arguments, TMPDIR=str(tmp_path), **FAST) as command:
        deadline = time.monotonic() + 120
        while "round 1 of" not in command.stderr and time.monotonic() < deadline:
            assert command.running, command.stderr
            time.sleep(0.05)
        command.send(number)
        done = command.wait()
    assert done.code == code, done.stderr
    assert done.stderr.splitlines()[-1].endswith(last)
    assert not list(tmp_path.iterdir()), "what was made for the time being is left behind"
    assert done.stdout == ""
