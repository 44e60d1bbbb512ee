import dataclasses

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from barter_jax.core.barter import Barter, Progress
from barter_jax.core.schedule import PlannedUpdate
from barter_jax.core.scores import FOUNDER, UnitState
from barter_jax.core.topology import UNITS, Budget, Topology
from tests.helpers import toy_params, toy_table

SCHEDULE = (PlannedUpdate(10, 1, 2), PlannedUpdate(20, 0, 1), PlannedUpdate(30, 1, 2))
START = Topology((2, 2), (3, 4))


def make(**changes) -> Barter:
    fields = {
        "units": toy_table(2),
        "schedule": SCHEDULE,
        "caps": Topology((4, 4), (8, 8)),
        "noise": 0.0,
    }
    return Barter(**(fields | changes))


def state_of(pruning, growth, born=None, observed=5) -> UnitState:
    """A unit state with the given channel scores and two even layers of two heads each."""
    heads = (np.ones(2, np.float32),) * 2

    def per_unit(channels):
        return {"heads": heads, "channels": tuple(np.asarray(x, np.float32) for x in channels)}

    founders = {
        unit: tuple(np.full(len(x), FOUNDER, np.int32) for x in per_unit(pruning)[unit])
        for unit in UNITS
    }
    if born is not None:
        founders["channels"] = tuple(np.asarray(x, np.int32) for x in born)
    return UnitState(per_unit(pruning), per_unit(growth), founders, np.int32(observed))


# Layer 1 grows; layer 0's first channel is the least useful.
USUAL = state_of([[1, 2, 3], [9, 9, 9, 9]], [[1, 1, 1], [2, 3, 5, 4]])


def test_due():
    barter = make()
    assert barter.due(20) == SCHEDULE[1]
    assert barter.due(21) is None
    with pytest.raises(ValueError, match="no topology update is planned at step 21"):
        barter.decide(USUAL, Progress(START), 21)


def test_init():
    params = toy_params(START, START, np.random.default_rng(0))
    progress, state = make().init(params)
    assert progress == Progress(START, Budget(0, 0), Budget(0, 0), START)
    for unit in UNITS:
        assert [len(x) for x in state.pruning[unit]] == list(START.of(unit))
    assert make(bucket=Budget(3, 5)).init(params)[0].physical == Topology((3, 3), (5, 5))


def test_decide_by_hand():
    decision = make().decide(USUAL, Progress(START), 10)
    heads, channels = decision.plans
    assert (heads.receiver, heads.donors, heads.parents) == (0, ((1, 0),), (0,))
    assert (channels.receiver, channels.donors) == (1, ((0, 0), (0, 1)))
    assert channels.parents == (2, 3)
    assert decision.step == 10
    assert decision.before == Progress(START)
    assert decision.after == Progress(Topology((3, 1), (1, 6)), Budget(1, 2), Budget(0, 0))
    assert make().decide(USUAL, Progress(START), 10) == decision


def test_padding_is_not_seen():
    def padded(per_unit, fill):
        return {
            unit: tuple(np.append(x, np.full(2, fill, x.dtype)) for x in layers)
            for unit, layers in per_unit.items()
        }

    state = USUAL._replace(
        pruning=padded(USUAL.pruning, 0), growth=padded(USUAL.growth, 0), born=padded(USUAL.born, 0)
    )
    assert make().decide(state, Progress(START), 10) == make().decide(USUAL, Progress(START), 10)


def test_what_cannot_move_is_carried_to_the_next_update():
    barter = make(caps=Topology((4, 4), (3, 5)))  # layer 1 has room for one channel, layer 0 none
    first = barter.decide(USUAL, Progress(START), 10)
    assert first.plans[1].amount == 1
    assert first.after.moved == Budget(1, 1)
    assert first.after.carried == Budget(0, 1)
    # One planned, one carried; with the cap lifted both can move.
    second = make().decide(
        state_of([[1, 2], [9, 9, 9, 9, 9]], [[7, 7], [2, 3, 5, 4, 1]]), first.after, 20
    )
    assert [plan.unit for plan in second.plans] == ["channels"]
    assert second.plans[0].amount == 2
    assert second.after.moved == Budget(1, 3)
    assert second.after.carried == Budget(0, 0)


def test_carried_units_add_up():
    barter = make(caps=START)  # every layer is full
    progress = Progress(START)
    for update in SCHEDULE:
        decision = barter.decide(USUAL, progress, update.step)
        assert decision.plans == ()
        progress = decision.after
    assert progress == Progress(START, Budget(0, 0), Budget(2, 5))
    assert Progress.from_json(progress.to_json()) == progress


def test_padding_depends_on_what_it_was():
    """Layer 1 receives two channels of layer 0, which keeps its four while one is in use."""
    for waste, channels in ((0.8, (4, 6)), (0.75, (4, 6)), (0.74, (2, 6))):
        barter = make(bucket=Budget(1, 2), waste=waste)
        progress = Progress(START, physical=Topology((2, 2), (4, 4)))
        after = barter.decide(USUAL, progress, 10).after
        assert after.topology.channels == (1, 6)
        assert after.physical.channels == channels, waste
        assert barter.resume(after) == after
        assert Progress.from_json(after.to_json()) == after
    # Another bucket goes on from it with its own.
    assert make(bucket=Budget(2, 5)).resume(after).physical == Topology((4, 2), (5, 10))
    # What tells no padding has none.
    old = {k: v for k, v in after.to_json().items() if k != "physical"}
    assert Progress.from_json(old).physical == after.topology
    assert barter.resume(Progress.from_json(old)).physical == Topology((3, 1), (2, 6))
    with pytest.raises(ValueError, match="1 channels are more than the physical 0"):
        Progress(Topology((), (1, 6)), physical=Topology((), (0, 6)))


def test_foreseen_are_the_decision_and_its_runners_up():
    shapes = make().foresee(USUAL, Progress(START), 10)
    assert shapes == (
        Topology((3, 1), (1, 6)),
        # Layer 0 receives the channels: its own are not pruned then.
        Topology((3, 1), (5, 2)),
        # Layer 1 receives the head.
        Topology((1, 3), (1, 6)),
    )
    # The one that comes is among them, whichever layer the scores favour by then.
    other = state_of([[1, 2, 3], [9, 9, 9, 9]], [[4, 4, 4], [2, 3, 5, 3]])
    assert make().decide(other, Progress(START), 10).after.physical == shapes[1]
    assert make().foresee(other, Progress(START), 10)[:2] == (shapes[1], shapes[0])


def test_shapes_are_foreseen_once_each():
    barter = make(bucket=Budget(4, 8))
    assert barter.foresee(USUAL, Progress(START), 10) == (Topology((4, 4), (8, 8)),)
    barter = make(caps=Topology((4, 2), (3, 8)))  # nobody else has room
    assert barter.foresee(USUAL, Progress(START), 10) == (Topology((3, 1), (1, 6)),)
    assert make(rule="static").foresee(USUAL, Progress(START), 10) == (START,)


@pytest.mark.parametrize("rule", ["random_receiver", "random_pair"])
def test_a_receiver_by_chance_is_foreseen(rule):
    for seed in range(5):
        barter = make(rule=rule, seed=seed)
        decided = barter.decide(USUAL, Progress(START), 10).after.physical
        assert barter.foresee(USUAL, Progress(START), 10) == (decided,)


@pytest.mark.parametrize(
    ("min_age", "young_take_part"), [(0, True), (1, True), (2, False), (3, False)]
)
def test_a_fresh_clone_waits(min_age, young_take_part):
    """Cloned at step 10, looked at in the update of step 20."""
    for born, scores in (
        # The young one is the best parent: the last of layer 1.
        ([[FOUNDER] * 3, [FOUNDER] * 3 + [10]], ([[1, 2, 3], [9] * 4], [[0] * 3, [1, 2, 3, 8]])),
        # The young one is the best donor: the first of layer 0.
        ([[10] + [FOUNDER] * 2, [FOUNDER] * 4], ([[1, 2, 3], [9] * 4], [[0] * 3, [1, 2, 8, 3]])),
    ):
        state = state_of(*scores, born)
        (plan,) = make(min_age=min_age).decide(state, Progress(START), 20).plans
        young = next((x, i) for x, layer in enumerate(born) for i, b in enumerate(layer) if b == 10)
        took_part = young in plan.donors or young in {(plan.receiver, i) for i in plan.parents}
        assert took_part == young_take_part


def test_age_counts_updates():
    state = state_of(
        [[1, 2, 3], [9] * 4], [[0] * 3, [1, 2, 3, 8]], [[FOUNDER] * 3, [FOUNDER] * 3 + [10]]
    )
    (_, plan) = make(min_age=2).decide(state, Progress(START), 30).plans
    assert 3 in plan.parents
    (_, plan) = make(min_age=3).decide(state, Progress(START), 30).plans
    assert 3 not in plan.parents


def test_founders_are_old_enough_at_the_first_update():
    assert make(min_age=7).decide(USUAL, Progress(START), 10).after.moved == Budget(1, 2)


def test_a_clone_is_born_at_its_step():
    params = toy_params(START, START, np.random.default_rng(0))
    tx = optax.sgd(1e-2)
    decision = make().decide(USUAL, Progress(START), 10)
    new = make().apply(decision, params, tx.init(params), USUAL, tx)[2]
    assert new.born["channels"][1].tolist() == [FOUNDER] * 4 + [10, 10]
    assert new.born["heads"][0].tolist() == [FOUNDER, FOUNDER, 10]


def test_diverged_scores_stop_the_run():
    state = state_of([[1, np.nan, 3], [9] * 4], [[1] * 3, [2] * 4])
    with pytest.raises(FloatingPointError, match="pruning scores of the channels of layer 0"):
        make().decide(state, Progress(START), 10)


@pytest.mark.parametrize("rule", ["random_receiver", "random_donor", "random_pair"])
def test_chance_depends_on_seed_and_step(rule):
    def plans(seed):
        barter = make(rule=rule, seed=seed, caps=Topology((4, 4), (99, 99)))
        return barter.decide(USUAL, Progress(START), 10).plans

    first = [plans(seed) for seed in range(12)]
    assert first == [plans(seed) for seed in range(12)]
    assert len(set(first)) > 1


def test_static_moves_nothing():
    decision = make(rule="static").decide(USUAL, Progress(START), 10)
    assert decision.plans == ()
    assert decision.after.topology == START


def test_warm_up():
    barter = make(moments="reset", warmup_steps=4)
    topology = Topology((1, 1), (3, 1))
    updates = toy_params(topology, topology, np.random.default_rng(0))
    state = state_of([[0] * 3, [0]], [[0] * 3, [0]], born=[[FOUNDER, 10, 12], [FOUNDER]])
    state.born["heads"] = (np.array([FOUNDER], np.int32),) * 2
    # The first step after the update at 10 is the one with 10 steps done.
    for step, first, second in ((10, 1 / 4, 0), (12, 3 / 4, 1 / 4), (13, 1, 1 / 2), (99, 1, 1)):
        scaled = barter.warm_up(updates, state, jnp.int32(step))
        factors = np.array([1, first, second])
        old, new = updates["layers"][0], scaled["layers"][0]
        for name in ("up", "up_bias", "down"):
            np.testing.assert_allclose(new[name], old[name] * factors, rtol=1e-6)
        np.testing.assert_array_equal(new["query"], old["query"])
        assert scaled["embedding"] is updates["embedding"]
    assert make(moments="scaled").warm_up(updates, state, jnp.int32(10)) is updates


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": "rigl"}, "rule must be one of barter, static"),
        ({"pruning": "input_gradient"}, "pruning must be one of"),
        ({"growth": "magnitude"}, "growth must be one of"),
        ({"priority": "median"}, "priority must be one of"),
        ({"moments": "halved"}, "moments must be one of scaled, copy, reset"),
        ({"decay": 1.0}, r"decay must be in \[0, 1\), got 1.0"),
        ({"share": 0.0}, "share must be between 0 and 1"),
        ({"noise": -0.1}, "noise must be at least 0"),
        ({"waste": 1.0}, r"waste must be in \[0, 1\), got 1.0"),
        ({"min_units": 0}, "min_units must be at least 1"),
        ({"min_age": -1}, "min_age must be at least 0"),
        ({"warmup_steps": 0}, "warmup_steps must be at least 1"),
    ],
)
def test_choices_are_checked(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


def start(**choices):
    topology = Topology((2, 2), (3, 3))
    params = toy_params(topology, topology, np.random.default_rng(0))
    choices = {"caps": Topology((4, 4), (6, 6)), "schedule": (PlannedUpdate(1, 1, 1),)} | choices
    return params, Barter(units=toy_table(2), **choices)


def test_caps_of_another_number_of_layers_are_refused():
    with pytest.raises(ValueError, match="caps has 3 layers of channels, the unit table 2"):
        start(caps=Topology((4, 4), (6, 6, 6)))


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"caps": Topology((4, 4), (2, 6))}, "layer 0 has 3 channels, more than its cap of 2"),
        ({"min_units": 3}, "layer 0 has 2 heads, fewer than min_units=3"),
    ],
)
def test_parameters_out_of_bounds_are_refused_at_the_start(choices, message):
    params, barter = start(**choices)
    with pytest.raises(ValueError, match=message):
        barter.init(params)


def test_another_optimizers_state_is_refused():
    params, barter = start()
    progress, unit_state = barter.init(params)
    decision = barter.decide(unit_state, progress, 1)
    with pytest.raises(ValueError, match="opt_state is not a state of this optimizer"):
        barter.apply(decision, params, optax.adamw(1e-3).init(params), unit_state, optax.sgd(1e-3))


def test_an_update_without_units_is_due_only_for_what_was_carried():
    params, barter = start(schedule=(PlannedUpdate(1, 0, 0), PlannedUpdate(2, 0, 1)))
    progress, _ = barter.init(params)
    assert barter.due(1) and not barter.due(1, progress)
    assert barter.due(2, progress) and not barter.due(3, progress)
    assert barter.due(1, dataclasses.replace(progress, carried=Budget(1, 0)))


def test_nothing_is_observed_where_no_update_is_planned():
    """A dense or static run pays for no statistics."""
    start = Topology((2, 2), (3, 3))
    params = toy_params(start, start, np.random.default_rng(0))
    idle = Barter(units=toy_table(2), schedule=(), caps=start)
    _, state = idle.init(params)
    assert idle.observe(state, params, params) is state
