"""The bound on the shapes of a run holds whatever the scores are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barter_jax.core import policy
from barter_jax.core.schedule import PlannedUpdate, plan_updates
from barter_jax.core.shapes import may_carry, shapes_at_most
from barter_jax.core.surgery import next_topology
from barter_jax.core.topology import UNITS, Budget, Topology, pad


def bound(initial, amounts, caps=99, bucket=(1, 1), waste=0.0, min_units=1):
    """Of updates that move `amounts` [(heads, channels), ...]; `caps` for every layer."""
    schedule = [PlannedUpdate(10 * i, *amount) for i, amount in enumerate(amounts, 1)]
    return shapes_at_most(
        initial,
        schedule,
        caps=Topology(*((caps,) * len(initial.of(unit)) for unit in UNITS)),
        min_units=min_units,
        bucket=Budget(*bucket),
        waste=waste,
    )


ONE, FIVE = [(0, 1)], [(0, 5)]


@pytest.mark.parametrize(
    ("expected", "channels", "amounts", "choices"),
    [
        (1, (9, 9), [], {}),
        (2, (9, 9), ONE, {}),
        (3, (9, 9), ONE + ONE, {}),
        (2, (9, 9), [(0, 0), (0, 1), (0, 0)], {}),  # two of three move nothing
        (4, (2, 2), [(0, 1), (0, 0), (0, 1)], {}),  # unless there are units left over
        (2, (9, 9), [(0, 0), (0, 1), (0, 0), (3, 0)], {}),  # there are no heads
        # 10 in 16: six more units fit in, and without two of them 8 would do.
        (1, (10, 10), ONE, {"bucket": (1, 8)}),
        (2, (10, 10), ONE + ONE, {"bucket": (1, 8)}),
        (5, (10, 10), 5 * ONE, {"bucket": (1, 8)}),
        # With a half to waste, 7 stay in 16: then it takes eight to grow beyond.
        (1, (9, 9), 7 * ONE, {"bucket": (1, 8), "waste": 0.6, "min_units": 7}),
        (2, (9, 9), 8 * ONE, {"bucket": (1, 8), "waste": 0.6, "min_units": 7}),
        (2, (9, 9), [(0, 4), (0, 4)], {"bucket": (1, 8), "waste": 0.6, "min_units": 7}),
        # A bucket for all that a layer can have.
        (1, (9, 9), FIVE * 9, {"bucket": (1, 16), "caps": 16}),
    ],
)
def test_bounds(expected, channels, amounts, choices):
    assert bound(Topology((), channels), amounts, **choices) == expected


def test_heads_and_channels_change_at_one_time():
    start = Topology((4, 4), (40, 40))
    assert bound(start, [(1, 5), (0, 5), (1, 0), (0, 0)], caps=99) == 4
    # Only the update with a head.
    assert bound(start, [(0, 5), (1, 5), (0, 5)], bucket=(1, 64)) == 2


@pytest.mark.parametrize(
    ("expected", "channels", "caps", "min_units"),
    [
        (False, (5, 5, 5), 10, 1),
        (True, (5, 5, 5), 9, 1),  # a layer has room for four
        (True, (4, 6, 6), 11, 1),  # or four parents
        (False, (5, 5, 5), 10, 2),
        (True, (5, 5, 5), 10, 3),  # or the others four to spare
    ],
)
def test_units_may_be_left_over(expected, channels, caps, min_units):
    schedule = [PlannedUpdate(10, 0, 3), PlannedUpdate(20, 0, 2)]
    limits = Topology((), (caps,) * 3)
    assert may_carry("channels", Topology((), channels), schedule, limits, min_units) is expected


@st.composite
def runs(draw):
    layers = draw(st.integers(2, 4))
    min_units = draw(st.integers(1, 2))
    caps = Topology(*((draw(st.integers(6, 12)),) * layers for _ in UNITS))
    initial = Topology(
        *(
            tuple(draw(st.integers(min_units, min(8, caps.of(unit)[0]))) for _ in range(layers))
            for unit in UNITS
        )
    )
    transfers = Budget(draw(st.integers(0, 3)), draw(st.integers(0, 12)))
    schedule = plan_updates(100, draw(st.integers(1, 8)), 0.1, 0.9, transfers)
    bucket = Budget(draw(st.integers(1, 3)), draw(st.integers(1, 6)))
    choices = dict(bucket=bucket, waste=draw(st.sampled_from([0.0, 0.15, 0.3, 0.5])))
    return initial, schedule, {"caps": caps, "min_units": min_units, **choices}


@given(run=runs(), min_age=st.integers(0, 3), seed=st.integers(0, 2**20))
@settings(max_examples=300)
def test_no_run_comes_to_more(run, min_age, seed):
    """Updates as they are made, with random scores and ages, what cannot move being carried."""
    initial, schedule, choices = run
    rng = np.random.default_rng(seed)
    topology, carried = initial, dict.fromkeys(UNITS, 0)
    physical = pad(topology, choices["bucket"])
    # Update at which each unit was cloned; founders were long before.
    born = {unit: [np.full(n, -99) for n in topology.of(unit)] for unit in UNITS}
    shapes = {physical}
    always_move = [
        unit
        for unit in UNITS
        if not may_carry(unit, initial, schedule, choices["caps"], choices["min_units"])
    ]
    for now, update in enumerate(schedule):
        plans = []
        for unit in UNITS:
            carried[unit] += update.amount(unit)
            plan = policy.decide(
                policy.RULES[str(rng.choice(["barter", "random_pair"]))],
                unit,
                carried[unit],
                pruning=[rng.random(n) for n in topology.of(unit)],
                growth=[rng.random(n) for n in topology.of(unit)],
                ages=[now - b for b in born[unit]],
                caps=choices["caps"].of(unit),
                min_units=choices["min_units"],
                min_age=min_age,
                priority="mean",
                rng=rng,
            )
            if plan is None:
                continue
            plans.append(plan)
            carried[unit] -= plan.amount
            for layer, _ in plan.donors:
                gone = {i for donor, i in plan.donors if donor == layer}
                if len(born[unit][layer]) == topology.of(unit)[layer]:
                    born[unit][layer] = np.delete(born[unit][layer], sorted(gone))
            born[unit][plan.receiver] = np.append(
                born[unit][plan.receiver], np.full(plan.amount, now)
            )
        assert not any(carried[unit] for unit in always_move)
        topology = next_topology(topology, plans)
        assert [len(b) for b in born["channels"]] == list(topology.channels)
        physical = pad(topology, choices["bucket"], physical, choices["waste"])
        shapes.add(physical)
    assert len(shapes) <= shapes_at_most(initial, schedule, **choices)
