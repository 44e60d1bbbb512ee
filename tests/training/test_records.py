"""Clock, console lines, JSON lines, documents and the work directory."""

import json
import logging
import time

import pytest

from barter_jax.core.topology import Topology
from barter_jax.errors import UserError
from barter_jax.training import console, workdir
from barter_jax.training.clock import KINDS, Clock
from barter_jax.training.writers import JsonLines, TensorBoard, write_atomically, write_json
from tests.training import tiny

# --- clock -------------------------------------------------------------------------------------


@pytest.fixture
def now(monkeypatch):
    """A clock that is set by hand."""
    at = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: at[0])
    return at


def test_seconds_are_charged_to_what_they_went_into(now):
    clock = Clock({"compile": 5.0, "gone": 7.0})
    now[0] += 1
    with clock.charge("data"):
        now[0] += 2
    now[0] += 4
    with pytest.raises(RuntimeError), clock.charge("compile"):
        now[0] += 8
        raise RuntimeError
    now[0] += 16
    seconds = clock.seconds()
    assert seconds == {**dict.fromkeys(KINDS, 0.0), "step": 21.0, "data": 2.0, "compile": 13.0}
    assert sum(seconds.values()) == 31 + 5
    assert clock.seconds() == seconds
    now[0] += 32
    clock.book("start")
    now[0] += 64
    assert clock.seconds() == {**seconds, "start": 32.0, "step": 21.0 + 64}
    seconds = clock.seconds()
    seconds["step"] = 0
    assert clock.seconds()["step"] == 21 + 64


# --- console -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "0s"),
        (0.6, "1s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (61, "1m01s"),
        (185, "3m05s"),
        (3599.6, "1h00m"),
        (3600, "1h00m"),
        (3725, "1h02m"),
        (100_000, "27h46m"),
    ],
)
def test_durations(seconds, text):
    assert console.duration(seconds) == text


def test_counts_of_each_layer():
    assert console.counts(Topology((1, 2), (58, 59))) == "heads 1 2  channels 58 59"


VALUES = {"loss": 1.23456, "accuracy": 0.5, "images_per_second": 1234.5}


def test_lines_where_there_is_no_terminal(monkeypatch):
    said = []
    monkeypatch.setattr(
        logging.getLogger("barter_jax"), "info", lambda form, *args: said.append(form % args)
    )
    lines = console.Console(total=30, done=10, terminal=False)
    lines.advance()
    lines.train(20, VALUES, Topology((1,), (5,)), 60.2)
    lines.say("100% done")
    lines.close()
    assert said == [
        "step 20/30  loss 1.2346  acc 0.5000  1234 img/s  heads 1  channels 5  1m00s left",
        "100% done",
    ]


def test_a_bar_on_a_terminal(capsys):
    bar = console.Console(total=4, done=2, terminal=True)
    bar.advance()
    bar.train(3, VALUES, Topology((1,), (5,)), 1.0)
    bar.say("a line")
    bar.close()
    out, err = capsys.readouterr()
    assert out == ""
    assert "3/4" in err and "loss 1.2346" in err and "a line\n" in err


# --- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rest", ["", '{"step": 3, "loss"', '{"st', "3", "null", '{"loss": 1}\n', "\x00\x00", "\n\n"]
)
def test_lines_are_cut_back_and_a_torn_one_is_dropped(rest, tmp_path):
    path = tmp_path / "metrics.jsonl"
    whole = [json.dumps({"step": step, "split": "train"}) for step in (1, 2, 3)]
    path.write_text("\n".join(whole) + "\n" + rest)
    lines = JsonLines(path, lambda row: row["step"] <= 2)
    lines.write({"step": 5})
    # Written at once, not when closed.
    assert path.read_text().splitlines() == [*whole[:2], '{"step": 5}']
    lines.close()
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_last_line_without_its_end_is_completed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}')
    lines = JsonLines(path, lambda row: True)
    lines.write({"step": 3})
    lines.close()
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3}\n'


def test_a_file_is_replaced_in_one_piece(tmp_path, monkeypatch):
    path = tmp_path / "document.json"
    write_json(path, {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError):
        write_atomically(path, "new")
    assert json.loads(path.read_text()) == {"a": 1}


def test_tensorboard_is_written_only_where_it_is_wanted(tmp_path):
    for enabled in (False, True):
        board = TensorBoard(tmp_path / str(enabled), enabled, 1)
        board.write(1, "train", {"loss": 0.5})
        board.close()
    assert not (tmp_path / "False").exists()
    (events,) = (tmp_path / "True").iterdir()
    assert b"train/loss" in events.read_bytes()


# --- the work directory ------------------------------------------------------------------------


def test_a_claimed_directory_says_what_it_holds(tmp_path):
    config = tiny.config(train__steps=7)
    with workdir.claimed(tmp_path / "deep" / "run", config, False):
        found = json.loads((tmp_path / "deep" / "run" / "config.json").read_text())
        assert found["config"] == workdir.as_json(config)
        assert found["config"]["train"]["steps"] == 7
        assert found["config"]["seed"] == 0
        assert {"python", "jax", "flax", "optax", "numpy"} <= set(found["versions"])
        with (
            pytest.raises(UserError, match="another process"),
            workdir.claimed(tmp_path / "deep" / "run", config, True),
        ):
            pass
    with workdir.claimed(tmp_path / "deep" / "run", config, False):
        pass


def test_differing_fields_are_named():
    mine = workdir.as_json(tiny.config())
    theirs = workdir.as_json(
        tiny.config(optimizer__beta1=0.5, bucket__heads=3, data__threads=7, log__every_steps=1)
    )
    del theirs["scores"]["decay"]
    theirs["model"]["extra"] = 1
    assert workdir.differences(mine, mine) == []
    assert workdir.differences(theirs, mine) == [
        "optimizer.beta1 is 0.5 there and 0.9 here",
        "scores.decay is None there and 0.99 here",
        "model.extra is 1 there and None here",
    ]


def test_overwriting_removes_the_run_and_nothing_else(tmp_path):
    for name in workdir.OWNED:
        if "." in name:
            (tmp_path / name).write_text("old")
        else:
            (tmp_path / name).mkdir()
            (tmp_path / name / "file").write_text("old")
    (tmp_path / "notes.txt").write_text("mine")
    with workdir.claimed(tmp_path, tiny.config(), True):
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            ".lock",
            "config.json",
            "notes.txt",
        ]
