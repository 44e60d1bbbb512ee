"""Compiled steps: bounded, freed, and none compiled twice."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from barter_jax import blueprint as blueprint_lib
from barter_jax.core.topology import Topology
from barter_jax.training import loop, optimizer
from barter_jax.training import state as state_lib
from barter_jax.training.compiled import compile_entry
from barter_jax.training.distributed import Placement
from barter_jax.training.executables import Entry, ExecutableTable, compile_ahead
from barter_jax.training.inputs import Inputs
from tests.training import events, tiny


def toy_entry(physical: Topology) -> Entry:
    n = physical.channels[0]
    shape = jax.ShapeDtypeStruct((n,), np.float32)
    return Entry(
        compile_ahead(lambda x: 2 * x, (shape,), name="toy_train"),
        compile_ahead(lambda x: x + n, (shape,), name="toy_eval"),
    )


def shape(n: int) -> Topology:
    return Topology((1,), (n,))


def live() -> int:
    gc.collect()
    return len(jax.local_devices()[0].client.live_executables())


def test_a_known_shape_is_not_compiled_again():
    table = ExecutableTable(toy_entry, 4)
    lap = [shape(3), shape(5), shape(7)]
    arrays = [jnp.ones(topology.channels[0]) for topology in lap]
    for _ in range(2):
        with events.compilations() as compiled:
            for topology, x in zip(lap, arrays, strict=True):
                entry = table.get(topology)
                np.testing.assert_array_equal(entry.train(x), 2 * np.ones(len(x)))
                np.testing.assert_array_equal(entry.evaluate(x), np.ones(len(x)) + len(x))
    # The second lap.
    assert compiled == []
    assert (len(table), table.compiled) == (3, 3)
    assert table.compile_seconds > 0


def test_compiling_ahead_is_the_only_compilation():
    argument = jnp.ones(11)
    with events.compilations() as compiled:
        entry = toy_entry(shape(11))
    assert len(compiled) == 2
    with events.compilations() as compiled:
        entry.train(argument)
    assert compiled == []


def test_the_least_recently_used_goes_first():
    table = ExecutableTable(toy_entry, 2)
    table.get(shape(3))
    table.get(shape(5))
    table.get(shape(3))
    table.get(shape(7))
    assert [shape(n) in table for n in (3, 5, 7)] == [True, False, True]
    table.get(shape(5))
    assert [shape(n) in table for n in (3, 5, 7)] == [False, True, True]
    assert (len(table), table.compiled) == (2, 4)


def test_what_is_dropped_is_freed():
    table = ExecutableTable(toy_entry, 2)
    start = live()
    for n in range(20, 23):
        table.get(shape(n))
    assert live() == start + 4
    for n in range(23, 30):
        table.get(shape(n))
        assert len(table) == 2
    assert live() == start + 4
    single = ExecutableTable(toy_entry, 1)
    entry = single.get(shape(31))
    before = live()
    single.get(shape(33))
    assert live() == before
    with pytest.raises(TypeError):
        entry.train(jnp.ones(31))


def test_freeing_one_leaves_the_others_alone():
    table = ExecutableTable(toy_entry, 2)
    table.get(shape(3))
    kept = table.get(shape(5))
    table.get(shape(7))
    np.testing.assert_array_equal(kept.train(jnp.ones(5)), 2 * np.ones(5))


def test_a_table_has_room_for_one_at_least():
    with pytest.raises(ValueError, match="room for one"):
        ExecutableTable(toy_entry, 0)


def test_an_entry_may_be_compiled_elsewhere_and_put():
    table = ExecutableTable(lambda _: pytest.fail("it is there already"), 1)
    entry = toy_entry(shape(3))
    table.put(shape(3), entry)
    assert table.get(shape(3)) is entry


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """Small operations outside of the steps have been compiled by an earlier run."""
    directory = tmp_path_factory.mktemp("warm")
    tiny.train(tiny.config(), directory)
    return tiny.outcome(tiny.config(), directory)


def test_a_run_compiles_two_steps_a_shape_and_nothing_else(warm, tmp_path, monkeypatch):
    """What is compiled before which step, where the table has room for one shape."""
    original = Inputs.prepare
    by_step: dict[int, int] = {}
    with events.compilations() as compiled:

        def prepare(self, step, batch):
            # The update that opens a step is over by now.
            by_step[step] = len(compiled)
            return original(self, step, batch)

        monkeypatch.setattr(Inputs, "prepare", prepare)
        # Not by `tiny.train`, which remembers what was compiled.
        config = tiny.config(executables__capacity=1)
        loop.train(config, tmp_path, False)
    since = {step: by_step[step] - by_step[step - 1] for step in range(1, tiny.STEPS)}
    # The preparation of the first batch; after step 4 that of the first evaluation; after step 5
    # the learning rate of the first log line; at steps 3 and 8 the two steps of a new shape.
    assert since == {step: {1: 1, 4: 1, 5: 1, 3: 2, 8: 2}.get(step, 0) for step in since}
    tiny.assert_same(tiny.outcome(config, tmp_path), warm)


def test_a_second_lap_over_real_shapes_compiles_nothing():
    config = tiny.config()
    plan = tiny.blueprint(config)
    barter = blueprint_lib.make_barter(config, plan)
    tx = optimizer.make(config.optimizer, plan.total_steps)
    placement = Placement({})
    table = ExecutableTable(
        lambda physical: compile_entry(
            physical, config=config, blueprint=plan, barter=barter, tx=tx, placement=placement
        ),
        2,
    )
    state, progress = state_lib.initial(plan, barter, tx, 0)
    state = jax.tree.map(np.array, state)  # The steps below take the buffers they are given.
    logical = progress.topology
    wider = Topology(logical.heads, (12, 12))
    images = placement.shard(np.zeros((16, 8, 8, 3), np.float32))
    targets = placement.shard(np.full((16, 10), 0.1, np.float32))
    key = placement.replicate(jax.random.key(0))
    losses = []
    for _ in range(2):
        losses.clear()
        with events.compilations() as compiled:
            for physical in (logical, wider, logical):
                padded = state_lib.repad(state, barter, tx, logical, physical)
                entry = table.get(physical)
                _, values = entry.train(placement.replicate(padded), images, targets, key)
                losses.append(float(values["loss"]))
    assert compiled == []
    assert table.compiled == 2
    assert losses[0] == losses[2]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
