"""What the document works out of measurements, and how it reads as tables."""

import json

import pytest

from barter_jax.benchmarking import document, segments, table
from barter_jax.benchmarking.cases import Case
from barter_jax.benchmarking.segments import Segment
from tests.benchmarking import made


def made_document(measured):
    doc = document.document(measured, made.ENVIRONMENT, made.SETTINGS)
    assert json.loads(json.dumps(doc)) == doc
    return doc


@pytest.fixture
def doc():
    return made_document(made.four())


@pytest.fixture
def by_method(doc):
    return {case["method"]: case for case in doc["cases"]}


def test_the_reference_is_the_fastest_dense_case(doc):
    assert doc["reference"] == [
        {"batch_size": 10, "method": "torch_dense", "step_ms": pytest.approx(90)}
    ]
    own = made_document([m for m in made.four() if m.case.method != "torch_dense"])
    assert own["reference"][0]["method"] == "dense"
    assert own["cases"][1]["speedup"] == pytest.approx(110 / 20)


@pytest.mark.parametrize(
    "method, flop_ratio, speedup, realised",
    [
        ("dense", 1, 90 / 110, 90 / 110),
        ("torch_dense", 1, 1, 1),
        ("static", 6, 4.5, 0.75),
        ("barter", 6, 4.5, 0.75),
    ],
)
def test_ratios(by_method, method, flop_ratio, speedup, realised):
    case = by_method[method]
    assert case["flop_ratio"] == pytest.approx(flop_ratio)
    assert case["speedup"] == pytest.approx(speedup)
    assert case["realised"] == pytest.approx(realised)


def test_times(by_method):
    static = by_method["static"]
    assert static["step_ms"] == pytest.approx({"median": 20, "p10": 20, "p90": 24})
    assert static["images_per_second"] == pytest.approx(500)
    assert static["evaluation"]["images_per_second"] == pytest.approx(500)
    assert static["first_step_ms"] == pytest.approx(400)
    # 90/20, 80/20 and 100/25, round by round.
    assert static["speedup_by_round"]["median"] == pytest.approx(4)
    assert static["raw"]["train"] == {
        "steps_per_block": 2,
        "block_seconds": pytest.approx([0.04, 0.04, 0.05]),
    }


def test_memory_is_compared_within_a_framework(by_method):
    static = by_method["static"]["memory"]
    assert static["compiler"] == {
        "peak_bytes": 25,
        "arguments_bytes": 4,
        "outputs_bytes": 3,
        "aliased_bytes": 3,
        "temporaries_bytes": 21,
        "reduction_percent": pytest.approx(75),
    }
    assert static["device"]["reduction_percent"] == pytest.approx(75)
    assert by_method["dense"]["memory"]["compiler"]["reduction_percent"] == 0
    torch = by_method["torch_dense"]["memory"]
    assert torch["compiler"] is None
    assert torch["device"] == {
        "peak_bytes": 5000,
        "exact": True,
        "source": "b",
        "reduction_percent": 0,
    }


def test_updates(by_method):
    """Passes of 18, 20 and 30 ms; two updates each."""
    assert by_method["static"]["updates"] is None
    assert by_method["barter"]["updates"] == {
        "count": 2,
        "moved": {"heads": 1, "channels": 4},
        "per_update_ms": pytest.approx(
            {"policy": 2.5, "surgery": 3, "placing": 4, "switch": 0, "total": 9.5}
        ),
        "schedule_ms": pytest.approx(20),
        "schedule_ms_by_pass": pytest.approx([18, 20, 30]),
        "total_steps": 1000,
        "per_step_ms": pytest.approx(0.02),
        "share_of_schedule": pytest.approx(20 / 20020),
        "schedule_weighted_step_ms": pytest.approx(20.02),
    }


def test_a_schedule_without_updates():
    replay = made.Replay(passes=((), ()), moved=made.Budget(0, 0))
    (case,) = made_document([made.measured("barter", 1.0, replay=replay)])["cases"]
    assert case["updates"]["count"] == 0
    assert case["updates"]["per_update_ms"]["total"] is None
    assert case["updates"]["schedule_weighted_step_ms"] == pytest.approx(100)
    table.render(made_document([made.measured("barter", 1.0, replay=replay)]))


def test_compile_times(by_method):
    assert by_method["barter"]["compile"] == {
        "train": {"trace_and_lower_seconds": 0.5, "cold_seconds": 8.0, "warm_seconds": 0.25},
        "evaluate": {"trace_and_lower_seconds": 0.1, "cold_seconds": 1.0, "warm_seconds": None},
        "compiled_with": "static 0.1, batch 10",
    }
    assert by_method["torch_dense"]["compile"] is None


def test_batch_sizes_have_a_reference_each():
    measured = made.four() + [
        made.measured("dense", batch_size=20),
        made.measured("static", 0.1, 20, step_ms=(50.0, 50.0, 50.0), flops=100),
    ]
    doc = made_document(measured)
    assert [r["method"] for r in doc["reference"]] == ["torch_dense", "dense"]
    assert doc["cases"][-1]["speedup"] == pytest.approx(2)
    text = table.render(doc)
    assert "static 0.1 b20" in text and "batch 20; speed-up over dense" in text


def test_without_a_dense_case():
    (case,) = made_document([made.measured("static", 0.1, flops=100)])["cases"]
    assert case["flop_ratio"] == 6
    assert [case["speedup"], case["realised"], case["speedup_by_round"]] == [None] * 3
    assert case["memory"]["compiler"]["reduction_percent"] is None
    assert "no dense case" in table.render(made_document([made.measured("static", 0.1)]))


# --- segments ---------------------------------------------------------------------------------


def test_segments():
    """10 steps of an epoch of 50: five times as many seconds, without compiling."""

    def segment(case, step, update):
        seconds = {"step": step, "data": 0.1, "update": update, "compile": 9.0, "evaluation": 1.0}
        return Segment(case, 10, 50, 1 if update else 0, seconds)

    rows = segments.document(
        [segment(Case("dense", None, 8), 3.9, 0.0), segment(Case("barter", 0.1, 8), 0.3, 0.1)]
    )
    assert [row["seconds_per_epoch"] for row in rows] == pytest.approx([20, 2.5])
    assert [row["speedup"] for row in rows] == pytest.approx([1, 8])
    assert rows[1]["per_epoch"] == pytest.approx({"step": 1.5, "data": 0.5, "update": 0.5})
    assert rows[1]["seconds"]["compile"] == 9
    (alone,) = segments.document([segment(Case("barter", 0.1, 8), 0.3, 0.1)])
    assert alone["speedup"] is None
    text = table.render(made_document(made.four()) | {"segments": rows})
    assert "8.00x" in text


# --- tables -----------------------------------------------------------------------------------


def test_the_tables(doc):
    lines = table.render(doc).splitlines()
    assert max(map(len, lines)) <= 120
    assert "Some GPU" in lines[0]
    assert "speed-up over torch_dense" in lines[2]
    static = next(line.split() for line in lines if line.startswith("static 0.1"))
    assert static[2:10] == ["20.00", "20.00", "-", "24.00", "500", "1e-07", "1/6.00", "4.50x"]
    barter = [line for line in lines if line.startswith("barter 0.1")]
    assert len(barter) == 3, "steps, memory and updates"
    assert "<" in barter[1], "its device peak is only a bound"
    assert "20.02" in barter[2]


def test_long_numbers_stay_within_120_columns():
    large = made.CompilerMemory(10**12, 10**11, 10**11, 10**12)
    measured = [
        made.measured(
            "random_receiver",
            0.123,
            65536,
            step_ms=(12345.678, 22345.678, 32345.678),
            flops=7_089_840_000,
            dense_flops=98_089_840_000,
            compiler=large,
            device=made.DevicePeak(10**12, False, "a"),
            replay=made.four()[-1].replay,
        ),
        made.measured(
            "dense",
            None,
            65536,
            step_ms=(123456.7,) * 3,
            flops=98_089_840_000,
            dense_flops=98_089_840_000,
            compiler=large,
        ),
        made.measured("dense", None, 32768),
    ]
    assert max(map(len, table.render(made_document(measured)).splitlines())) <= 120


@pytest.mark.parametrize(
    "value, text", [(0.9376, "0.94"), (99.994, "99.99"), (345.123, "345.1"), (12345.6, "12346")]
)
def test_milliseconds(value, text):
    assert table.ms(value) == text


@pytest.mark.parametrize(
    "bytes_, text",
    [(None, "-"), (2**20, "1.0 MiB"), (2**30, "1.000 GiB"), (5 * 2**28, "1.250 GiB")],
)
def test_sizes(bytes_, text):
    assert table.size(bytes_) == text
