"""One plan through parameters, optimizer state and unit state at once.

What must come out is computed unit by unit from `Exchange.descent`, which the tests work out by
themselves.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barter_jax.core import scores, surgery
from barter_jax.core.barter import Barter, Decision, Progress
from barter_jax.core.policy import Plan
from barter_jax.core.scores import FOUNDER, UnitState
from barter_jax.core.topology import UNITS, Budget, Topology
from tests.helpers import (
    Exchange,
    exchanges,
    leaves_by_path,
    toy_params,
    toy_table,
    unit_leaf_key,
)

STEP = 7


def is_bias(params):
    return jax.tree_util.tree_map_with_path(lambda path, _: "bias" in path[-1].key, params)


def two_optimizers(params):
    return jax.tree.map(lambda bias: "sgd" if bias else "adam", is_bias(params))


# Each with the degree in the gradient of its accumulators.
ADAM = {"mu": 1, "nu": 2}
OPTIMIZERS = {
    "adamw": (optax.adamw(1e-3), ADAM),
    "masked": (optax.chain(optax.masked(optax.adam(1e-3), is_bias), optax.scale(-1)), ADAM),
    "multi_steps": (
        optax.MultiSteps(optax.adamw(1e-3), 2).gradient_transformation(),
        ADAM | {"acc_grads": 1},
    ),
    "injected": (optax.inject_hyperparams(optax.adamw)(learning_rate=1e-3), ADAM),
    "clipped_sgd": (
        optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1e-2, momentum=0.9)),
        {"trace": 1},
    ),
    "lion": (optax.lion(1e-3), {"mu": 1}),
    "multi_transform": (
        optax.multi_transform(
            {"adam": optax.adam(1e-3), "sgd": optax.sgd(1e-2, momentum=0.9)}, two_optimizers
        ),
        ADAM | {"trace": 1},
    ),
    "amsgrad": (optax.amsgrad(1e-3), ADAM | {"nu_max": 2}),
}


def parameter_of(key: str, params) -> str | None:
    """The parameter that a leaf of an optimizer state belongs to, by the end of its path."""
    return next((own for own in leaves_by_path(params) if key.endswith(own)), None)


def filled_state(tx, params, rng):
    """A state as after some training: random values wherever the parameter is not zero."""
    by_path = leaves_by_path(params)

    def fill(path, leaf):
        own = parameter_of(jax.tree_util.keystr(path), params)
        if own is None:
            return np.asarray(rng.integers(1, 99)).astype(leaf.dtype)
        values = np.abs(rng.standard_normal(leaf.shape)) * (by_path[own] != 0)
        return values.astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(fill, jax.eval_shape(tx.init, params))


def filled_unit_state(exchange: Exchange, rng) -> UnitState:
    def per_unit(draw, dtype):
        def leaf(unit, layer):
            values = np.zeros(exchange.physical_before.of(unit)[layer], dtype)
            used = exchange.before.of(unit)[layer]
            values[:used] = draw(used)
            return values

        return {
            unit: tuple(leaf(unit, layer) for layer in range(len(exchange.before.of(unit))))
            for unit in UNITS
        }

    return UnitState(
        pruning=per_unit(rng.random, np.float32),
        growth=per_unit(rng.random, np.float32),
        born=per_unit(lambda n: rng.choice([FOUNDER, 3, 5], n), np.int32),
        observed=np.int32(11),
    )


def operate(exchange, params, opt_state, unit_state, tx, **choices):
    layers = len(exchange.before.heads)
    barter = Barter(
        units=toy_table(layers),
        schedule=(),
        caps=Topology((99,) * layers, (99,) * layers),
        bucket=exchange.bucket,
        share=exchange.share,
        **choices,
    )
    before = Progress(exchange.before, physical=exchange.physical_before)
    after = Progress(exchange.after, physical=exchange.physical_after)
    decision = Decision(STEP, exchange.plans, before, after)
    return barter.apply(decision, params, opt_state, unit_state, tx)


def check_leaf(old, new, axis, exchange, power=0.0, fresh=False):
    """Checks one resized leaf unit by unit.

    Args:
      power: units with share s must have been multiplied by s ** power.
      fresh: clones must be zero.
    """
    descent = exchange.descent(axis.unit, axis.layer)
    physical = exchange.physical_after.of(axis.unit)[axis.layer]
    assert new.dtype == old.dtype
    assert new.shape[axis.axis] == physical
    if len(descent) == exchange.before.of(axis.unit)[axis.layer] == sum(s for _, s, _ in descent):
        if new.shape == old.shape:
            assert new is old, f"{axis.name} was touched for nothing"
    old, new = (np.moveaxis(np.asarray(x), axis.axis, 0) for x in (old, new))
    for i, (source, share, clone) in enumerate(descent):
        if fresh and clone:
            assert not np.any(new[i])
        elif share == 1 or power == 0:
            np.testing.assert_array_equal(new[i], old[source])
        else:
            np.testing.assert_allclose(
                new[i].astype(np.float64),
                old[source].astype(np.float64) * share**power,
                rtol=1e-6 if new.dtype == np.float32 else 1e-2,
            )
    assert not np.any(new[len(descent) :])


# What the names of `moments` mean: the power for input leaves of degree 1, whether clones restart.
MOMENTS = {"scaled": (1, False), "copy": (0, False), "reset": (1, True)}


@pytest.mark.parametrize("name", OPTIMIZERS)
@given(exchange=exchanges(), moments=st.sampled_from(list(MOMENTS)), seed=st.integers(0, 2**20))
@settings(max_examples=20)
def test_everything_follows_the_plan(name, exchange, moments, seed):
    tx, degrees = OPTIMIZERS[name]
    rng = np.random.default_rng(seed)
    layers = len(exchange.before.heads)
    table = {unit_leaf_key_of_lists(axis): axis for axis in toy_table(layers).axes}
    params = toy_params(exchange.physical_before, exchange.before, rng)
    opt_state = filled_state(tx, params, rng)
    unit_state = filled_unit_state(exchange, rng)
    new_params, new_opt_state, new_unit_state = operate(
        exchange, params, opt_state, unit_state, tx, noise=0.0, moments=moments
    )

    assert toy_table(layers).measure(new_params) == exchange.physical_after
    old_leaves = leaves_by_path(params)
    for key, new in leaves_by_path(new_params).items():
        if key in table:
            check_leaf(
                old_leaves[key], new, table[key], exchange, power=table[key].role == "output"
            )
        else:
            assert new is old_leaves[key]

    expected = jax.eval_shape(tx.init, new_params)
    assert jax.tree.structure(new_opt_state) == jax.tree.structure(expected)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), new_opt_state) == jax.tree.map(
        lambda x: (x.shape, x.dtype), expected
    )
    old_leaves, seen = leaves_by_path(opt_state), set()
    input_power, fresh = MOMENTS[moments]
    for key, new in leaves_by_path(new_opt_state).items():
        own = parameter_of(key, params)
        if own not in table:
            assert new is old_leaves[key]
            continue
        field = key.removesuffix(own).rpartition(".")[2].partition("[")[0]
        seen.add(field)
        power = input_power * degrees[field] if table[own].role == "input" else 0
        check_leaf(old_leaves[key], new, table[own], exchange, power, fresh)
    assert seen == set(degrees)

    assert new_unit_state.observed is unit_state.observed
    check_unit_state(unit_state, new_unit_state, exchange, powers=(2, 2))


def unit_leaf_key_of_lists(axis) -> str:
    """Like `unit_leaf_key` for `toy_params`, where the layers stand in a list."""
    return unit_leaf_key(axis).replace(f"'{axis.layer}'", str(axis.layer))


def check_unit_state(old, new, exchange, powers):
    class Scores:
        axis, role = 0, "output"

        def __init__(self, unit, layer):
            self.unit, self.layer, self.name = unit, layer, f"{unit} of layer {layer}"

    for unit in UNITS:
        for layer in range(len(exchange.before.of(unit))):
            here = Scores(unit, layer)
            for field, power in zip(("pruning", "growth"), powers, strict=True):
                check_leaf(
                    getattr(old, field)[unit][layer],
                    getattr(new, field)[unit][layer],
                    here,
                    exchange,
                    power,
                )
            descent = exchange.descent(unit, layer)
            born = [STEP if clone else old.born[unit][layer][i] for i, _, clone in descent]
            np.testing.assert_array_equal(new.born[unit][layer][: len(descent)], born)
            assert len(new.born[unit][layer]) == exchange.physical_after.of(unit)[layer]


TWO_LAYERS = Exchange(
    Topology((3, 2), (2, 4)),
    (
        Plan("heads", 0, ((1, 0),), (1,)),
        Plan("channels", 0, ((1, 3), (1, 0), (1, 1)), (1, 0, 1)),
    ),
    Budget(2, 3),
    0.5,
)


@pytest.mark.parametrize(
    ("pruning", "growth", "powers"),
    [("gate_abs", "gate_abs", (1, 1)), ("magnitude", "all_gradient", (1, 2))],
)
def test_scores_follow_their_own_rule(pruning, growth, powers):
    rng = np.random.default_rng(0)
    exchange = TWO_LAYERS
    params = toy_params(exchange.physical_before, exchange.before, rng)
    state = filled_unit_state(exchange, rng)
    tx = optax.sgd(1.0)
    new = operate(exchange, params, tx.init(params), state, tx, pruning=pruning, growth=growth)[2]
    check_unit_state(state, new, exchange, powers)


@pytest.mark.parametrize(
    ("share", "parents", "shares"),
    [
        (0.5, (1,), (1, 1 / 2, 1, 1 / 2)),
        (0.25, (1,), (1, 3 / 4, 1, 1 / 4)),
        (0.5, (2, 2), (1, 1, 1 / 3, 1 / 3, 1 / 3)),
        (0.5, (2, 0, 2), (1 / 2, 1, 1 / 3, 1 / 3, 1 / 2, 1 / 3)),
        # Parent and two clones in proportion 0.8 : 0.2 : 0.2.
        (0.2, (0, 0), (2 / 3, 1, 1, 1 / 6, 1 / 6)),
    ],
)
def test_shares_by_hand(share, parents, shares):
    donors = tuple((1, i) for i in range(len(parents)))
    maps = surgery.index_maps(Topology((), (3, 4)), [Plan("channels", 0, donors, parents)], share)
    receiver, donor = maps["channels", 0], maps["channels", 1]
    assert receiver.sources == (0, 1, 2, *parents)
    assert receiver.shares == pytest.approx(shares)
    assert receiver.clones == len(parents)
    assert donor.sources == tuple(range(len(parents), 4))
    assert set(donor.shares) == {1.0}
    assert set(maps) == {("channels", 0), ("channels", 1)}


@given(exchange=exchanges(), noise=st.sampled_from([0.1, 1.0]), seed=st.integers(0, 2**20))
@settings(max_examples=60)
def test_noise_cancels_and_is_bounded(exchange, noise, seed):
    rng = np.random.default_rng(seed)
    table = toy_table(len(exchange.before.heads))
    params = toy_params(exchange.before, exchange.before, rng)
    maps = surgery.index_maps(exchange.before, exchange.plans, exchange.share)

    def resized(amplitude, seed=(0,)):
        return surgery.resize(
            params,
            table,
            exchange.before,
            exchange.after,
            maps,
            surgery.parameters(amplitude),
            seed,
        )

    exact, noisy = leaves_by_path(resized(0.0)), leaves_by_path(resized(noise))
    again, other = leaves_by_path(resized(noise)), leaves_by_path(resized(noise, (1,)))
    old = leaves_by_path(params)
    clones = [axis for axis in table.axes if ((axis.unit, axis.layer) in maps)]
    for axis in clones:
        key = unit_leaf_key_of_lists(axis)
        np.testing.assert_array_equal(noisy[key], again[key])
        if axis.role == "output":
            np.testing.assert_array_equal(noisy[key], exact[key])
            continue
        first, zero, second = (
            np.moveaxis(x[key], axis.axis, 0).astype(np.float64) for x in (noisy, exact, other)
        )
        change = first - zero
        descent = exchange.descent(axis.unit, axis.layer)
        for parent in {source for source, _, clone in descent if clone}:
            family = [i for i, (source, _, _) in enumerate(descent) if source == parent]
            weighted = sum(descent[i][1] * change[i] for i in family)
            np.testing.assert_allclose(weighted, 0, atol=1e-5 * max(1, noise))
            values = np.moveaxis(old[key], axis.axis, 0)[parent]
            sigma = np.sqrt(np.mean(np.square(values, dtype=np.float64)))
            for i in family:
                # A clone's own noise is at most twice the amplitude, a parent's one for each clone.
                assert np.abs(change[i]).max() <= 2 * (len(family) - 1) * noise * sigma * 6
                assert np.any(first[i] != zero[i]), "the clone is not told from its parent"
                assert np.any(first[i] != second[i]), "the seed does not matter"
        for i, (_, share, clone) in enumerate(descent):
            if share == 1 and not clone:
                np.testing.assert_array_equal(first[i], zero[i])


def test_noise_has_the_amplitude_asked_for():
    layers, width = 2, 4000
    params = {
        "layers": [
            {"up": np.full((width, 2), 3.0), "up_bias": np.ones(2), "down": np.ones((1, 2))}
            for _ in range(layers)
        ]
    }
    table = type(toy_table(2))(
        tuple(axis for axis in toy_table(layers).axes if axis.unit == "channels")
    )
    topology = Topology((), (2, 2))
    maps = surgery.index_maps(topology, [Plan("channels", 1, ((0, 0),), (1,))])
    new = surgery.resize(
        params, table, topology, Topology((), (1, 3)), maps, surgery.parameters(0.1)
    )
    up = new["layers"][1]["up"]
    assert np.std(up[:, 1] - 3) == pytest.approx(0.1 * 3, rel=0.05)
    np.testing.assert_allclose(up[:, 1] - 3, 3 - up[:, 2], atol=1e-12)


def test_bfloat16_leaves():
    rng = np.random.default_rng(0)
    exchange = TWO_LAYERS
    params = jax.tree.map(
        jnp.asarray, toy_params(exchange.physical_before, exchange.before, rng, jnp.bfloat16)
    )
    tx = optax.adamw(1e-3)
    opt_state = filled_state(tx, params, rng)
    for noise in (0.0, 0.1):
        new_params, new_opt_state, _ = operate(
            exchange, params, opt_state, filled_unit_state(exchange, rng), tx, noise=noise
        )
        new, old = leaves_by_path(new_params), leaves_by_path(params)
        moments, old_moments = leaves_by_path(new_opt_state[0].mu), leaves_by_path(opt_state[0].mu)
        for axis in toy_table(2).axes:
            key = unit_leaf_key_of_lists(axis)
            assert new[key].dtype == jnp.bfloat16
            is_input = axis.role == "input"
            check_leaf(old_moments[key], moments[key], axis, exchange, power=is_input)
            if not (noise and is_input):
                check_leaf(old[key], new[key], axis, exchange, power=not is_input)


@given(exchange=exchanges(), seed=st.integers(0, 2**20))
def test_padding_there_and_back(exchange, seed):
    rng = np.random.default_rng(seed)
    tx = optax.adamw(1e-3)
    unpadded = Exchange(exchange.before, (), Budget(1, 1), 0.5)
    params = toy_params(exchange.before, exchange.before, rng)
    start = params, filled_state(tx, params, rng), filled_unit_state(unpadded, rng)
    barter = Barter(
        units=toy_table(len(exchange.before.heads)),
        schedule=(),
        caps=exchange.before,
        bucket=exchange.bucket,
    )
    there = barter.repad(*start, tx, exchange.before, exchange.physical_before)
    assert barter.units.measure(there[0]) == exchange.physical_before
    for unit in UNITS:
        lengths = tuple(len(x) for x in there[2].pruning[unit])
        assert lengths == exchange.physical_before.of(unit)
    back = barter.repad(*there, tx, exchange.before, exchange.before)
    assert jax.tree.structure(back) == jax.tree.structure(start)
    for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(start), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("plans", "message"),
    [
        ([Plan("heads", 0, ((1, 2),), (0,))], "unit 2 of the heads of layer 1"),
        ([Plan("heads", 0, ((2, 0),), (0,))], "unit 0 of the heads of layer 2"),
        ([Plan("heads", 0, ((1, 0),), (3,))], "unit 3 of the heads of layer 0"),
        ([Plan("heads", 0, ((1, 0),), (-1,))], "unit -1 of the heads of layer 0"),
        (
            [Plan("heads", 0, ((1, 0),), (0,)), Plan("heads", 1, ((0, 0),), (0,))],
            "two plans for heads",
        ),
    ],
)
def test_wrong_plans_are_refused(plans, message):
    with pytest.raises(ValueError, match=message):
        surgery.index_maps(Topology((3, 2), (4, 4)), plans)


@pytest.mark.parametrize("share", [0, 1, -0.5])
def test_wrong_shares_are_refused(share):
    with pytest.raises(ValueError, match="share must be between 0 and 1"):
        surgery.index_maps(Topology((3, 2), ()), [], share)


def test_units_that_do_not_fit_are_refused():
    params = toy_params(Topology((2,), (3,)), Topology((2,), (3,)), np.random.default_rng(0))
    with pytest.raises(ValueError, match="3 units do not fit in 2"):
        surgery.resize(params, toy_table(1), Topology((2,), (3,)), Topology((2,), (2,)), {})


def test_unknown_moments_are_refused():
    with pytest.raises(ValueError, match="'scaled', 'copy' or 'reset', not 'halved'"):
        surgery.moments(1.0, "halved")


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"b": np.zeros(3, np.float32)}, "structure"),
        ({"a": np.zeros(4, np.float32)}, r"\['a'\] is float32\[4\], expected float32\[3\]"),
        ({"a": np.zeros(3, np.float16)}, r"\['a'\] is float16\[3\], expected float32\[3\]"),
    ],
)
def test_check_matches_names_the_difference(tree, message):
    with pytest.raises(ValueError, match=f"state: .*{message}"):
        surgery.check_matches(tree, {"a": np.zeros(3, np.float32)}, "state")


def test_every_sample_is_offered():
    assert scores.SAMPLES.keys() == set(scores.PRUNING_SAMPLES) | set(scores.GROWTH_SAMPLES)
