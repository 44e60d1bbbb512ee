"""Runners, updates and segments on a tiny model: what they do, not how long it takes."""

import jax
import numpy as np
import pytest

from barter_jax.benchmarking import memory, plans, programs, segments, updates
from barter_jax.benchmarking.cases import Case
from barter_jax.benchmarking.memory import CompilerMemory
from barter_jax.benchmarking.runner import JaxRunner, random_batch, start
from barter_jax.core.schedule import PlannedUpdate
from barter_jax.core.topology import Topology
from barter_jax.errors import RunError, UserError
from tests.training import tiny


def planned(config, *cases):
    return plans.make_all(config, cases, tiny.NUM_CLASSES, tiny.NUM_TRAIN)


@pytest.fixture(scope="module")
def barter():
    """The plan of a case with updates, and its compiled steps."""
    (plan,) = planned(tiny.config(), Case("barter", 0.5, 16))
    return plan, programs.compile_case(plan)


def runner_of(barter):
    plan, entry = barter
    runner = JaxRunner(plan, entry, start(plan))
    runner.place(random_batch(plan))
    return runner


# --- plans ------------------------------------------------------------------------------------


def test_a_plan_is_the_users_config_with_the_case_in_it():
    config = tiny.config(density=0.9, train__steps=7)
    before = config.to_json()
    dense, masked, static = planned(
        config, Case("dense", None, 8), Case("masked", 0.25, 8), Case("static", 0.25, 4)
    )
    assert config.to_json() == before
    assert (dense.config.method, dense.config.density) == ("dense", 0.9)
    assert (masked.config.method, static.config.method) == ("dense", "static")
    assert static.config.train.batch_size == static.config.train.eval_batch_size == 4
    assert static.blueprint.total_steps == 7
    assert dense.physical == masked.physical == dense.blueprint.dims.dense
    assert static.physical.budget.channels < dense.physical.budget.channels
    assert dense.tx is masked.tx, "one optimizer for all runs of a length"


def test_cases_share_a_program_where_masks_statistics_shapes_and_batch_are_the_same():
    names = [("dense", None), ("masked", 0.3), ("masked", 0.5), ("static", 0.5), ("barter", 0.5)]
    cases = [Case(*name, batch) for batch in (8, 16) for name in names]
    found = [plan.program for plan in planned(tiny.config(), *cases)]
    groups = [found.index(program) for program in found]
    assert groups == [0, 1, 1, 3, 4, 5, 6, 6, 8, 9]
    # How many weights a method's masks leave is part of its program.
    cases = [Case(*name, 8) for name in (("rigl", 0.3), ("rigl", 0.5), ("set", 0.5))]
    found = [plan.program for plan in planned(tiny.config(), *cases)]
    assert len(set(found)) == 3


def test_a_masked_method_is_timed_as_it_trains():
    (plan,) = planned(tiny.config(masked__every_steps=2), Case("rigl", 0.5, 8))
    one = runner_of((plan, programs.compile_case(plan)))
    before = jax.device_get(one.state.masks.masks)
    one.train(5)
    after = jax.device_get(one.state.masks.masks)
    assert any(np.any(before[name] != after[name]) for name in before)
    assert {n: int(m.sum()) for n, m in before.items()}.keys() == after.keys()
    one.evaluate(1)
    assert np.isfinite(one.loss)


@pytest.mark.parametrize(
    "overrides, case, fragments",
    [
        ({}, Case("barter", 0.01, 8), ["barter 0.01, batch 8", "use at least"]),
        ({}, Case("static", 0.5, 4096), ["static 0.5, batch 4096", "1366 training images"]),
        ({"optimizer__name": "adafactor"}, Case("dense", None, 8), ["optimizer.name=adafactor"]),
    ],
)
def test_mistakes(overrides, case, fragments):
    with pytest.raises(UserError) as error:
        planned(tiny.config(**overrides), case)
    for fragment in fragments:
        assert fragment in str(error.value)


# --- running ----------------------------------------------------------------------------------


def test_the_state_goes_away_and_comes_back(barter):
    runner = runner_of(barter)
    runner.train(2)
    before = jax.device_get(runner.state)
    assert before.step == 2 and np.isfinite(runner.loss)
    runner.evaluate(2)
    runner.take_away()
    assert runner.state is None
    runner.place(random_batch(runner.plan))
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(runner.state), strict=True):
        np.testing.assert_array_equal(a, b)
    runner.train(1)
    assert int(runner.state.step) == 3


def test_batches_are_random_images_and_smoothed_labels(barter):
    plan, _ = barter
    batch = random_batch(plan)
    assert batch.images.shape == (16, 8, 8, 3) and batch.images.dtype == np.float32
    assert abs(batch.images.mean()) < 0.1 and abs(batch.images.std() - 1) < 0.1
    np.testing.assert_allclose(batch.targets.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(batch.targets.argmax(axis=1), batch.labels)
    assert batch.targets.max() == pytest.approx(0.91)  # a label smoothing of 0.1 over 10 classes
    np.testing.assert_array_equal(random_batch(plan).images, batch.images)


# --- memory -----------------------------------------------------------------------------------


def test_the_compilers_memory_is_that_of_the_step(barter):
    plan, entry = barter
    found = memory.of_compiled(entry.train.compiled)
    state = start(plan).state
    state_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    batch = random_batch(plan)
    given = state_bytes + batch.images.nbytes + batch.targets.nbytes
    assert given <= found.arguments <= given + 1024, "the state, the batch and the key"
    assert state_bytes <= found.outputs <= 1.1 * state_bytes
    assert state_bytes <= found.aliased <= found.outputs, "the state is donated"
    assert found.temporaries > 0


def test_peak():
    assert CompilerMemory(arguments=100, outputs=80, aliased=70, temporaries=500).peak == 610


def test_rough_memory_rises_with_units_and_batch():
    (plan,) = planned(tiny.config(), Case("static", 0.5, 8))
    dims = plan.blueprint.dims
    sizes = [
        memory.rough_bytes(dims, topology, batch)
        for topology, batch in (
            (Topology((1, 1), (4, 4)), 8),
            (Topology((1, 1), (4, 5)), 8),
            (Topology((1, 2), (4, 5)), 8),
            (dims.dense, 8),
            (dims.dense, 9),
        )
    ]
    assert sizes == sorted(set(sizes))


# --- updates ----------------------------------------------------------------------------------


def test_replaying_the_schedule_makes_every_planned_update(barter):
    plan, entry = barter
    runner = runner_of(barter)
    runner.train(3)
    before = jax.device_get(runner.state)
    found = updates.replay(plan, entry, runner.state, runner.progress, passes=2)
    assert len(found.passes) == 2
    assert [len(pass_) for pass_ in found.passes] == [len(plan.blueprint.schedule)] * 2
    assert found.moved == plan.blueprint.transfers
    for update in (update for pass_ in found.passes for update in pass_):
        assert min(update.policy, update.surgery, update.placing, update.switch) > 0
        assert update.total == pytest.approx(
            update.policy + update.surgery + update.placing + update.switch
        )
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(runner.state), strict=True):
        np.testing.assert_array_equal(a, b, "the state is left as it was")
    runner.train(1)


def test_scores_that_are_not_finite_end_the_benchmark(barter):
    plan, entry = barter
    runner = runner_of(barter)
    runner.train(1)
    broken = jax.tree.map(lambda x: x * np.nan, runner.state.units.pruning)
    state = runner.state._replace(units=runner.state.units._replace(pruning=broken))
    with pytest.raises(RunError, match="barter 0.5, batch 16"):
        updates.replay(plan, entry, state, runner.progress)


# --- segments ---------------------------------------------------------------------------------

SCHEDULE = (PlannedUpdate(100, 2, 9), PlannedUpdate(200, 1, 5), PlannedUpdate(300, 0, 2))


@pytest.mark.parametrize(
    "steps, total_steps, count, heads, channels",
    [
        (10, 400, 1, 2, 9),  # 0.075 updates on average, but one at least
        (134, 400, 1, 2, 9),
        (267, 400, 2, 3, 14),
        (400, 400, 3, 3, 16),
    ],
)
def test_a_segment_has_as_many_updates_as_the_run(steps, total_steps, count, heads, channels):
    config = tiny.config()
    before = config.to_json()
    own = segments.segment_config(config, steps, SCHEDULE, total_steps)
    assert config.to_json() == before
    assert own.train.steps == own.train.eval_every_steps == own.checkpoint.every_steps == steps
    assert own.topology.updates == count
    assert (own.topology.total_heads, own.topology.total_channels) == (heads, channels)
    assert not own.executables.ahead and not own.log.tensorboard


def test_a_segment_without_updates_leaves_the_topology_section():
    config = tiny.config(method="static")
    own = segments.segment_config(config, 5, (), 12)
    assert own.topology.to_json() == config.topology.to_json()


def test_which_methods_the_loop_has():
    methods = {"dense": True, "static": True, "barter": True, "random_pair": True,
               "masked": False, "torch_dense": False, "torch_static": False}  # fmt: skip
    for method, has in methods.items():
        assert segments.can_run(Case(method, 0.5, 8)) is has
