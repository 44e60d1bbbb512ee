import collections

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barter_jax.core import policy
from barter_jax.core.policy import RULES, Plan
from barter_jax.core.surgery import next_topology
from barter_jax.core.topology import Topology, violations


def decide(rule="barter", amount=2, seed=0, **changes):
    """A decision on three layers of heads; `changes` replace arguments."""
    arguments = {
        "pruning": [[3, 1, 7], [5, 2], [4, 0.5, 6]],
        "growth": [[1, 2, 3], [9, 8], [4, 2, 3]],
        "ages": None,
        "caps": (6, 6, 6),
        "min_units": 1,
        "min_age": 1,
        "priority": "mean",
    } | changes
    arguments["pruning"] = [np.asarray(x, float) for x in arguments["pruning"]]
    arguments["growth"] = [np.asarray(x, float) for x in arguments["growth"]]
    if arguments["ages"] is None:
        arguments["ages"] = [np.ones(len(x), int) for x in arguments["growth"]]
    rng = np.random.default_rng(seed)
    return policy.decide(RULES[rule], "heads", amount, rng=rng, **arguments)


ALIKE = [[1, 1], [1, 1], [1, 1]]
HAND_MADE = {
    "highest mean receives, lowest scores elsewhere give, highest growth is cloned": (
        {"amount": 1},
        Plan("heads", 1, ((2, 1),), (0,)),
    ),
    "donors from several layers, in order of score": (
        {"amount": 2},
        Plan("heads", 1, ((2, 1), (0, 1)), (0, 1)),
    ),
    "no more parents than units": ({"amount": 5}, Plan("heads", 1, ((2, 1), (0, 1)), (0, 1))),
    "without the highest the next one receives, and the highest may give": (
        {"amount": 2, "passed_over": 1},
        Plan("heads", 2, ((0, 1), (1, 1)), (0, 2)),
    ),
    "nobody is left to receive": (
        {"amount": 2, "passed_over": 1, "caps": (3, 6, 3)},
        None,
    ),
    "priority by maximum": (
        {"amount": 1, "priority": "max", "growth": [[0, 0, 10], [9, 8], [4, 2, 3]]},
        Plan("heads", 0, ((2, 1),), (2,)),
    ),
    "the same by mean": (
        {"amount": 1, "growth": [[0, 0, 10], [9, 8], [4, 2, 3]]},
        Plan("heads", 1, ((2, 1),), (0,)),
    ),
    "top four of five": (
        {
            "amount": 1,
            "priority": "top4_mean",
            "pruning": [[1] * 5, [1, 2]],
            # Means 4.0 and 4.5, top fours 5.0 and 4.5.
            "growth": [[5, 5, 0, 5, 5], [4.5, 4.5]],
            "caps": (6, 6),
        },
        Plan("heads", 0, ((1, 0),), (0,)),
    ),
    "all alike: ties by layer, then index": (
        {"amount": 2, "pruning": ALIKE, "growth": ALIKE},
        Plan("heads", 0, ((1, 0), (2, 0)), (0, 1)),
    ),
    "ties of donors within a layer": (
        {
            "amount": 2,
            "pruning": [[1, 1], [9, 9], [2, 1, 1, 1]],
            "growth": [*ALIKE[:2], [0] * 4],
            "min_units": 2,
        },
        Plan("heads", 0, ((2, 1), (2, 2)), (0, 1)),
    ),
    "min_units: no layer has a unit to spare": ({"amount": 2, "min_units": 3}, None),
    "min_units: a layer gives only what it can spare": (
        {"amount": 2, "min_units": 2, "pruning": [[3, 1, 2], [5, 2], [40, 50, 60]]},
        Plan("heads", 1, ((0, 1), (2, 0)), (0, 1)),
    ),
    "a full layer cannot receive: the next best does": (
        {"amount": 1, "caps": (6, 2, 6)},
        Plan("heads", 2, ((0, 1),), (0,)),
    ),
    "a nearly full layer receives what fits": (
        {"amount": 2, "caps": (6, 3, 6)},
        Plan("heads", 1, ((2, 1),), (0,)),
    ),
    "the young neither give nor are cloned": (
        {"amount": 2, "min_age": 2, "ages": [[2, 1, 2], [1, 2], [2, 1, 2]]},
        Plan("heads", 1, ((0, 0),), (1,)),
    ),
    "a layer of the young cannot receive": (
        {"amount": 1, "min_age": 2, "ages": [[2, 2, 2], [1, 1], [2, 2, 2]]},
        Plan("heads", 2, ((0, 1),), (0,)),
    ),
    "all young": ({"min_age": 2}, None),
    "all full": ({"caps": (3, 2, 3)}, None),
    "nothing to move": ({"amount": 0}, None),
    "static": ({"rule": "static"}, None),
}


@pytest.mark.parametrize(("changes", "expected"), HAND_MADE.values(), ids=HAND_MADE.keys())
def test_hand_made_decisions(changes, expected):
    assert decide(**changes) == expected


@pytest.mark.parametrize("scores", ["pruning", "growth"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite(scores, value):
    changes = {scores: [[3, 1, 7], [5, 2], [4, value, 6]]}
    with pytest.raises(FloatingPointError, match=f"{scores} scores of the heads of layer 2"):
        decide(**changes)


# --- the ablations -------------------------------------------------------------------------

TRIALS = 400


def test_random_receiver():
    plans = [decide("random_receiver", 1, seed) for seed in range(TRIALS)]
    receivers = collections.Counter(plan.receiver for plan in plans)
    assert set(receivers) == {0, 1, 2}
    assert all(abs(n - TRIALS / 3) < 50 for n in receivers.values())
    # Donors and parents are chosen as ever.
    lowest = {0: (2, 1), 1: (2, 1), 2: (0, 1)}
    best = {0: 2, 1: 0, 2: 0}
    for plan in plans:
        assert plan.donors == (lowest[plan.receiver],)
        assert plan.parents == (best[plan.receiver],)


def test_random_receiver_is_eligible():
    plans = [decide("random_receiver", 1, seed, caps=(3, 6, 6)) for seed in range(30)]
    assert {plan.receiver for plan in plans} == {1, 2}


def test_random_donor():
    plans = [decide("random_donor", 1, seed) for seed in range(TRIALS)]
    assert {(plan.receiver, plan.parents) for plan in plans} == {(1, (0,))}
    donors = collections.Counter(plan.donors[0] for plan in plans)
    assert set(donors) == {(0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (2, 2)}
    assert all(abs(n - TRIALS / 6) < 35 for n in donors.values())


def test_random_donor_is_eligible():
    ages = [[1, 0, 1], [1, 1], [0, 1, 0]]
    plans = [decide("random_donor", 2, seed, ages=ages, min_units=2) for seed in range(60)]
    assert {plan.donors[0][0] for plan in plans} == {0, 2}
    for plan in plans:
        # One from each layer, for neither has two to spare; never a young one.
        assert sorted(plan.donors) in ([(0, 0), (2, 1)], [(0, 2), (2, 1)])


def test_random_pair():
    plans = [decide("random_pair", 1, seed) for seed in range(TRIALS)]
    receivers = collections.Counter(plan.receiver for plan in plans)
    assert all(abs(receivers[layer] - TRIALS / 3) < 50 for layer in range(3))
    assert len({(plan.receiver, plan.donors) for plan in plans}) == 5 + 6 + 5


@pytest.mark.parametrize("rule", RULES)
def test_a_seed_decides_the_same_again(rule):
    first = [decide(rule, 2, seed) for seed in range(20)]
    assert first == [decide(rule, 2, seed) for seed in range(20)]
    if rule not in ("barter", "static"):
        assert len(set(first)) >= 3


# --- any decision --------------------------------------------------------------------------


@st.composite
def situations(draw):
    layers = draw(st.integers(1, 5))
    min_units = draw(st.integers(1, 3))
    caps = tuple(min_units + draw(st.integers(0, 5)) for _ in range(layers))
    counts = tuple(draw(st.integers(min_units, cap)) for cap in caps)
    # Few values: many ties.
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    pruning, growth = ([rng.integers(0, 4, n).astype(float) for n in counts] for _ in range(2))
    ages = [rng.integers(0, 3, n) for n in counts]
    min_age = draw(st.integers(0, 2))
    return counts, caps, min_units, min_age, pruning, growth, ages


@given(
    situation=situations(),
    rule=st.sampled_from(list(RULES)),
    amount=st.integers(0, 9),
    priority=st.sampled_from(list(policy.PRIORITIES)),
)
@settings(max_examples=400)
def test_any_plan_keeps_the_invariants(situation, rule, amount, priority):
    counts, caps, min_units, min_age, pruning, growth, ages = situation
    plan = decide(
        rule,
        amount,
        pruning=pruning,
        growth=growth,
        ages=ages,
        caps=caps,
        min_units=min_units,
        min_age=min_age,
        priority=priority,
    )
    if plan is None:
        if rule != "static" and amount:
            # Then truly nothing can move.
            for receiver in range(len(counts)):
                room = counts[receiver] < caps[receiver] and max(ages[receiver]) >= min_age
                gives = any(
                    n > min_units and max(ages[layer]) >= min_age
                    for layer, n in enumerate(counts)
                    if layer != receiver
                )
                assert not (room and gives)
        return
    assert rule != "static"
    assert 1 <= plan.amount <= amount
    before = Topology(counts, ())
    after = next_topology(before, [plan])
    assert violations(after, before.budget, Topology(caps, ()), min_units) == []
    assert len(set(plan.parents)) == plan.amount
    for layer, i in [*plan.donors, *((plan.receiver, i) for i in plan.parents)]:
        assert ages[layer][i] >= min_age
    # The parents are the best of their layer.
    cloned = min(growth[plan.receiver][i] for i in plan.parents)
    for i, score in enumerate(growth[plan.receiver]):
        if i not in plan.parents and ages[plan.receiver][i] >= min_age:
            assert score <= cloned


@pytest.mark.parametrize(
    ("donors", "parents", "message"),
    [
        (((0, 1),), (0, 1), "1 donors for 2 parents"),
        (((1, 0),), (0,), "donor lies in the receiving layer"),
        (((0, 1), (0, 1)), (0, 1), "pruned twice"),
    ],
)
def test_plans_refuse_nonsense(donors, parents, message):
    with pytest.raises(ValueError, match=message):
        Plan("heads", 1, donors, parents)
