"""Compiling ahead changes when things are compiled, and nothing else."""

import json
import threading

import pytest

from barter_jax.core.schedule import PlannedUpdate
from barter_jax.core.topology import Topology
from barter_jax.training import loop
from barter_jax.training.ahead import CompileAhead, prediction_steps
from barter_jax.training.executables import ExecutableTable
from tests.training import tiny


class FakeEntry:
    """Stands for compiled steps."""

    seconds = 1.0

    def __init__(self, physical):
        self.physical = physical
        self.freed = False
        self.train = self.evaluate = self

    def free(self):
        self.freed = True


def shape(n: int) -> Topology:
    return Topology((1,), (n,))


class Compiler:
    """A compiler that finishes when told to, and remembers on which threads it ran."""

    def __init__(self):
        self.go = threading.Event()
        self.calls = []

    def __call__(self, physical):
        self.calls.append((physical, threading.current_thread().name))
        if threading.current_thread().name.startswith("compile-ahead"):
            assert self.go.wait(10)
        return FakeEntry(physical)


@pytest.fixture
def compiler():
    return Compiler()


@pytest.fixture
def ahead(compiler):
    table = ExecutableTable(compiler, 2)
    ahead = CompileAhead(table, compiler)
    ahead.table = table
    yield ahead
    compiler.go.set()
    ahead.close()


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        ([], {}),
        ([1], {}),
        ([2], {1: 2}),
        ([3, 8], {2: 3, 6: 8, 7: 8}),
        ([100, 200], {50: 100, 80: 100, 150: 200, 180: 200}),
    ],
)
def test_predictions_fall_between_updates(updates, expected):
    assert prediction_steps([PlannedUpdate(step, 1, 1) for step in updates]) == expected


def test_a_requested_shape_is_ready_once_collected(ahead, compiler):
    current, _ = ahead.take(shape(1))
    compiler.go.set()
    ahead.request(shape(2))
    ahead._pending[shape(2)].result(10)
    ahead.collect(shape(1))
    entry, ready = ahead.take(shape(2))
    assert ready and entry.physical == shape(2)
    assert [name.startswith("compile-ahead") for _, name in compiler.calls] == [False, True]
    assert not current.freed
    assert ahead.background_seconds == 1.0


def test_what_nobody_asked_for_is_compiled_here(ahead, compiler):
    entry, ready = ahead.take(shape(5))
    assert not ready and entry.physical == shape(5)
    assert ahead.take(shape(5)) == (entry, True)
    assert len(compiler.calls) == 1


def test_a_shape_under_way_is_waited_for_and_not_compiled_twice(ahead, compiler):
    ahead.request(shape(2))
    while not compiler.calls:
        pass
    threading.Timer(0.05, compiler.go.set).start()
    entry, ready = ahead.take(shape(2))
    assert not ready and entry.physical == shape(2)
    assert len(compiler.calls) == 1


def test_a_new_prediction_replaces_one_that_has_not_begun(ahead, compiler):
    ahead.request(shape(2))
    while not compiler.calls:
        pass
    ahead.request(shape(3))
    ahead.request(shape(4))
    compiler.go.set()
    ahead.take(shape(4))
    assert [physical for physical, _ in compiler.calls] == [shape(2), shape(4)]


def test_the_shape_in_use_is_not_dropped_for_a_prediction(ahead, compiler):
    compiler.go.set()
    other, _ = ahead.take(shape(8))
    current, _ = ahead.take(shape(1))
    ahead.take(shape(8))  # used more recently than the current one
    ahead.request(shape(2))
    ahead._pending[shape(2)].result(10)
    ahead.collect(shape(1))
    assert other.freed and not current.freed
    assert len(ahead.table) == 2


def test_a_failed_background_compile_is_raised(compiler):
    def fail(physical):
        raise RuntimeError("no such instruction")

    ahead = CompileAhead(ExecutableTable(compiler, 2), fail)
    ahead.request(shape(2))
    with pytest.raises(RuntimeError, match="no such instruction"):
        ahead._pool.submit(lambda: None).result(10)
        ahead.collect(shape(1))
    ahead.close()


def test_switched_off_it_never_uses_a_thread(compiler):
    ahead = CompileAhead(ExecutableTable(compiler, 2), compiler, enabled=False)
    ahead.request(shape(2))
    ahead.collect(shape(1))
    assert compiler.calls == []
    assert ahead.take(shape(2))[1] is False
    ahead.close()


def test_a_run_is_bit_equal_with_and_without(tmp_path, monkeypatch):
    """Real compiles, really in the background: every prediction is waited for."""
    plain, looking = tiny.config(executables__ahead=False), tiny.config()
    tiny.train(plain, tmp_path / "plain")
    # So quick a run would not be worth a background compile.
    put = ExecutableTable.put

    def put_quickly(self, physical, entry):
        put(self, physical, entry)
        self.last_compile_seconds = 0.0

    monkeypatch.setattr(ExecutableTable, "put", put_quickly)
    collect = CompileAhead.collect

    def patient(self, current):
        for future in list(self._pending.values()):
            future.result()
        collect(self, current)

    monkeypatch.setattr(CompileAhead, "collect", patient)
    loop.train(looking, tmp_path / "ahead", False)
    tiny.assert_same(
        tiny.outcome(looking, tmp_path / "ahead"), tiny.outcome(plain, tmp_path / "plain")
    )
    rows = [json.loads(x) for x in (tmp_path / "ahead" / "topology.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["compiled_ahead"]], "no prediction came true"
    summary = json.loads((tmp_path / "ahead" / "summary.json").read_text())
    assert summary["compiled"]["background_seconds"] > 0
