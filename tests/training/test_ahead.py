"""Compiling ahead changes when things are compiled, and nothing else."""

import json
import threading

import pytest

from barter_jax.core.schedule import PlannedUpdate
from barter_jax.core.topology import Topology
from barter_jax.training import loop
from barter_jax.training.ahead import Background, prediction_steps
from barter_jax.training.executables import ExecutableTable
from barter_jax.training.shapes import Shapes
from tests.training import tiny


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        ([], {}),
        ([1], {}),
        ([2], {1: 2}),
        ([3, 8], {1: 3, 2: 3, 5: 8, 6: 8, 7: 8}),
        (
            [100, 200],
            {25: 100, 50: 100, 80: 100, 95: 100} | {125: 200, 150: 200, 180: 200, 195: 200},
        ),
    ],
)
def test_predictions_fall_between_updates(updates, expected):
    assert prediction_steps([PlannedUpdate(step, 1, 1) for step in updates]) == expected


class FakeEntry:
    """Stands for compiled steps; counts those alive and remembers the most there were at once."""

    seconds = 1.0
    alive = most = 0

    def __init__(self, physical):
        self.physical = physical
        self.freed = False
        # Freed once by each of the two names.
        self.train = self
        self.evaluate = _Nothing()
        FakeEntry.alive += 1
        FakeEntry.most = max(FakeEntry.most, FakeEntry.alive)

    def free(self):
        assert not self.freed
        self.freed = True
        FakeEntry.alive -= 1


class _Nothing:
    def free(self):
        pass


def shape(n: int) -> Topology:
    return Topology((1,), (n,))


class Compiler:
    """A compiler that, in the background, begins and ends when told to; remembers its threads."""

    def __init__(self):
        self.go = threading.Semaphore(0)
        self.began = threading.Semaphore(0)
        self.calls = []
        FakeEntry.alive = FakeEntry.most = 0

    def __call__(self, physical):
        behind = threading.current_thread().name.startswith("compile-ahead")
        self.calls.append((physical, behind))
        if behind:
            self.began.release()
            assert self.go.acquire(timeout=10)
        return FakeEntry(physical)

    @property
    def behind(self):
        """Channels of the shapes begun in the background."""
        return [physical.channels[0] for physical, behind in self.calls if behind]


@pytest.fixture
def compiler():
    return Compiler()


@pytest.fixture
def make(compiler):
    """Makes `Shapes` of updates at steps 100 and 200: looks at 25, 50, 80, 95 and so on."""
    made = []

    def make(capacity=3, compile_=compiler, **changes):
        arguments = {"ahead": True, "seconds_until": lambda step: 1e9} | changes
        schedule = [PlannedUpdate(step, 0, 1) for step in (100, 200)]
        made.append(Shapes(compile_, schedule, capacity=capacity, **arguments))
        return made[-1]

    yield make
    compiler.go.release(100)
    for shapes in made:
        shapes.close()


def finish(shapes, compiler, current):
    """Lets the shape under way come to its end, and collects it."""
    assert compiler.began.acquire(timeout=10)
    compiler.go.release()
    shapes._background._future.exception(timeout=10)
    shapes.collect(current)


def test_a_requested_shape_is_ready_once_collected(make, compiler):
    shapes = make()
    current, _ = shapes.take(shape(1))
    shapes.request([shape(2)], 50)
    shapes.collect(shape(1))
    finish(shapes, compiler, shape(1))
    entry, ready = shapes.take(shape(2))
    assert ready and entry.physical == shape(2)
    assert compiler.calls == [(shape(1), False), (shape(2), True)]
    assert not current.freed
    assert shapes.totals() == {"shapes": 2, "updates_ready": 1, "background_seconds": 1.0}


def test_what_nobody_asked_for_is_compiled_here(make, compiler):
    shapes = make()
    entry, ready = shapes.take(shape(5))
    assert not ready and entry.physical == shape(5)
    assert shapes.take(shape(5)) == (entry, True)
    assert compiler.calls == [(shape(5), False)]


def test_a_shape_under_way_is_waited_for_and_not_compiled_twice(make, compiler):
    shapes = make()
    shapes.request([shape(2)], 50)
    shapes.collect(shape(1))
    assert compiler.began.acquire(timeout=10)
    threading.Timer(0.05, compiler.go.release).start()
    entry, ready = shapes.take(shape(2))
    assert not ready and entry.physical == shape(2)
    assert len(compiler.calls) == 1


def test_a_new_prediction_replaces_one_that_has_not_begun(make, compiler):
    shapes = make()
    shapes.take(shape(1))
    for guess in (2, 3, 4):
        shapes.request([shape(guess)], 50)
        shapes.collect(shape(1))
    finish(shapes, compiler, shape(1))
    finish(shapes, compiler, shape(1))
    assert compiler.behind == [2, 4]


def test_a_prediction_that_has_not_begun_is_dropped_at_the_update(make, compiler):
    shapes = make()
    shapes.take(shape(1))
    shapes.request([shape(2)], 50)
    shapes.collect(shape(1))
    shapes.request([shape(3)], 80)
    shapes.take(shape(4))
    finish(shapes, compiler, shape(4))
    shapes.collect(shape(4))
    assert compiler.behind == [2]
    # What was compiled for nothing may be of use yet.
    assert shapes.take(shape(2))[1]


def test_the_shape_in_use_is_not_dropped_for_a_prediction(make, compiler):
    shapes = make(capacity=2)
    other, _ = shapes.take(shape(8))
    current, _ = shapes.take(shape(1))
    shapes.take(shape(8))  # used more recently than the current one
    shapes.request([shape(2)], 50)
    shapes.collect(shape(1))
    assert other.freed and not current.freed
    finish(shapes, compiler, shape(1))
    assert len(shapes) == 2 and not current.freed


def test_a_failed_background_compile_is_raised(make, compiler):
    def fail(physical):
        raise RuntimeError("no such instruction")

    for needed in (False, True):
        shapes = make(compile_=fail)
        shapes.request([shape(2)], 50)
        shapes.collect(shape(1))
        shapes._background._future.exception(timeout=10)
        with pytest.raises(RuntimeError, match="no such instruction"):
            shapes.take(shape(2)) if needed else shapes.collect(shape(1))


def test_closing_waits_for_what_has_begun_and_drops_the_rest(make, compiler):
    shapes = make()
    shapes.take(shape(1))
    shapes.request([shape(2), shape(3)], 50)
    shapes.collect(shape(1))
    assert compiler.began.acquire(timeout=10)
    closing = threading.Thread(target=shapes.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    compiler.go.release()
    closing.join(10)
    assert not closing.is_alive()
    assert compiler.behind == [2]


@pytest.mark.parametrize("changes", [{"ahead": False}, {"capacity": 1}])
def test_switched_off_or_without_room_it_never_uses_a_thread(changes, make, compiler):
    shapes = make(**changes)
    assert shapes.looks == {}
    shapes.take(shape(1))
    shapes.collect(shape(1))
    assert shapes.take(shape(2))[1] is False
    assert compiler.behind == []


# --- the second guess ----------------------------------------------------------------------------


def test_the_second_guess_comes_after_the_first(make, compiler):
    shapes = make()
    shapes.take(shape(1))
    shapes.request([shape(2), shape(3), shape(4)], 80)
    shapes.collect(shape(1))
    shapes.collect(shape(1))
    assert compiler.behind == [2]
    finish(shapes, compiler, shape(1))
    finish(shapes, compiler, shape(1))
    # A third one is nobody's guess.
    shapes.collect(shape(1))
    assert compiler.behind == [2, 3]
    assert shapes.take(shape(3))[1]


@pytest.mark.parametrize(
    ("step", "deadline"),
    [(25, 50), (50, 80), (80, 95), (95, 100), (150, 180), (180, 195), (195, 200)],
)
def test_the_second_guess_needs_time_before_the_next_look(step, deadline, make, compiler):
    """Twice what the last compile took, which was a second."""
    for seconds, begun in ((1.9, [2]), (2.1, [2, 3])):
        compiler.calls.clear()
        asked = []

        def seconds_until(step, seconds=seconds, asked=asked):
            asked.append(step)
            return seconds

        shapes = make(seconds_until=seconds_until)
        shapes.take(shape(1))
        shapes.request([shape(2), shape(3)], step)
        shapes.collect(shape(1))
        for _ in begun:
            finish(shapes, compiler, shape(1))
        assert compiler.behind == begun
        assert set(asked) == {deadline}


def test_the_second_guess_reckons_with_the_slowest_compile(make, compiler):
    """Others may have been loaded from disk."""
    shapes = make(seconds_until=lambda step: 5.0)
    shapes.take(shape(1))
    shapes._table.slowest_compile_seconds = 3.0
    shapes.take(shape(2))
    shapes.request([shape(1), shape(3)], 50)
    shapes.collect(shape(2))
    assert compiler.behind == []
    assert shapes.worthwhile(100)


def test_a_known_first_guess_leaves_the_time_to_the_second(make, compiler):
    shapes = make()
    shapes.take(shape(2))
    shapes.take(shape(1))
    shapes.request([shape(2), shape(3)], 50)
    shapes.collect(shape(1))
    finish(shapes, compiler, shape(1))
    assert compiler.behind == [3]


@pytest.mark.parametrize("capacity", [2, 3])
def test_the_second_guess_displaces_neither_the_first_nor_the_one_in_use(capacity, make, compiler):
    shapes = make(capacity=capacity)
    shapes.take(shape(9))
    shapes.take(shape(1))
    shapes.request([shape(2), shape(3)], 50)
    shapes.collect(shape(1))
    finish(shapes, compiler, shape(1))
    if capacity == 3:
        finish(shapes, compiler, shape(1))
    shapes.collect(shape(1))
    assert compiler.behind == [2, 3][: capacity - 1]
    assert shapes.take(shape(1))[1] and shapes.take(shape(2))[1]


def test_compiling_ahead_is_worth_half_of_its_time(make):
    for seconds, worth in ((0.4, False), (0.6, True)):
        shapes = make(seconds_until=lambda step, seconds=seconds: seconds)
        shapes.take(shape(1))
        assert shapes.worthwhile(100) is worth


# --- how many are alive ---------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [1, 2, 3, 4])
def test_never_more_are_alive_than_there_is_room_for(capacity, make, compiler):
    """What is being compiled counts too, here and in the background."""
    shapes = make(capacity)
    compiler.go.release(100)
    current = 0
    shapes.take(shape(current))
    for i in range(1, 40):
        if shapes.looks:
            shapes.request([shape(i % 7), shape(i % 5)], 50)
        shapes.collect(shape(current))
        if i % 3 == 0 and shapes._background and shapes._background._future:
            shapes._background._future.result(10)
        if i % 2 == 0:
            current = i % 4
            shapes.take(shape(current))
        assert FakeEntry.alive <= capacity
    shapes.close()
    assert FakeEntry.most <= capacity
    if capacity > 1:
        assert FakeEntry.most == capacity and compiler.behind


# --- a run ----------------------------------------------------------------------------------------


def test_a_run_is_bit_equal_with_and_without(tmp_path, monkeypatch):
    """Real compiles, really in the background: every prediction is waited for."""
    plain, looking = tiny.config(executables__ahead=False), tiny.config()
    tiny.train(plain, tmp_path / "plain")
    # So quick a run would not be worth a background compile.
    put = ExecutableTable.put

    def put_quickly(self, physical, entry):
        put(self, physical, entry)
        self.last_compile_seconds = self.slowest_compile_seconds = 0.0

    monkeypatch.setattr(ExecutableTable, "put", put_quickly)
    collect = Shapes.collect
    begun = []
    begin = Background.begin

    def beginning(self, physical):
        begun.append(physical)
        begin(self, physical)

    def patient(self, current):
        collect(self, current)
        while self._background and self._background.shape:
            self._background._future.result()
            collect(self, current)

    monkeypatch.setattr(Background, "begin", beginning)
    monkeypatch.setattr(Shapes, "collect", patient)
    loop.train(looking, tmp_path / "ahead", False)
    tiny.assert_same(
        tiny.outcome(looking, tmp_path / "ahead"), tiny.outcome(plain, tmp_path / "plain")
    )
    rows = [json.loads(x) for x in (tmp_path / "ahead" / "topology.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["compiled_ahead"]], "no prediction came true"
    summary = json.loads((tmp_path / "ahead" / "summary.json").read_text())
    assert summary["compiled"]["background_seconds"] > 0
    assert len(begun) == len(set(begun)) > 2, "no second guess was compiled"
