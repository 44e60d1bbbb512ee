"""The façade's step, on two matrices and without a model: what moves, what stands, what is zero."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from barter_jax.core.topology import Topology
from barter_jax.core.units import UnitTable
from barter_jax.errors import UserError
from barter_jax.masked import moments, s2vite
from barter_jax.masked.layers import leaves_by_name, mask_tree
from barter_jax.masked.masked import Masked
from tests.helpers import VIT, random_params
from tests.masked import quick

UNITS = UnitTable.from_patterns(
    1,
    {
        "channels": {
            "input": {"fc1/kernel": 1, "fc1/bias": 0},
            "output": {"fc2/kernel": 0},
        }
    },
)
SHAPES = {"fc1/kernel": (6, 8), "fc1/bias": (8,), "fc2/kernel": (8, 5), "norm/scale": (5,)}
MATRICES = ("fc1/kernel", "fc2/kernel")
EVERY, TOTAL = 3, 20
RATE = optax.linear_schedule(0.1, 0.01, TOTAL)
OPTIMIZERS = {
    "adamw": optax.adamw(RATE, weight_decay=0.1),
    "clipped": optax.chain(
        optax.clip_by_global_norm(0.5),
        optax.adamw(
            RATE, mask=lambda p: jax.tree.map_with_path(lambda k, _: k[-1].key != "bias", p)
        ),
    ),
    "sgd": optax.chain(optax.add_decayed_weights(0.1), optax.sgd(RATE, momentum=0.9)),
    "lion": optax.lion(RATE, weight_decay=0.1),
    # Its state has empty nodes for what is masked out.
    "partly": optax.masked(
        optax.adam(RATE),
        lambda p: {"fc1": {"kernel": True, "bias": False}, "fc2": True, "norm": False},
    ),
}


def tree(seed):
    rng = np.random.default_rng(seed)
    result = {}
    for name, shape in SHAPES.items():
        group, leaf = name.split("/")
        result.setdefault(group, {})[leaf] = rng.standard_normal(shape).astype(np.float32)
    return result


def make(method, density=0.5, **fields):
    fields = {"total_steps": TOTAL, "every_steps": EVERY} | fields
    return Masked.for_method(method, units=UNITS, density=density, **fields)


@functools.cache
def compiled(method, optimizer="adamw"):
    """The initial parameters and masks, and the compiled step with a count of its traces."""
    masked, traces = make(method), []

    @quick.jit
    def step(state, params, opt_state, grads, number, key):
        traces.append(number)
        return masked.step(state, params, opt_state, grads, OPTIMIZERS[optimizer], number, key)

    params, state = masked.init(tree(0), jax.random.key(7))
    return params, state, step, traces


def run(method, optimizer="adamw", steps=EVERY):
    """All states from the first on: `[(params, opt_state, state), ...]`."""
    params, state, step, _ = compiled(method, optimizer)
    states = [(params, OPTIMIZERS[optimizer].init(params), state)]
    for number in range(steps):
        params, opt_state, state = states[-1]
        states.append(
            step(state, params, opt_state, tree(number + 1), number, jax.random.key(number))
        )
    return jax.tree.map(np.asarray, states)


def moments_of(opt_state, optimizer):
    """All parameter-shaped arrays of a state, as pairs of the parameter's name and an array."""
    found = []
    names = jax.tree_util.tree_map_with_path(
        lambda path, _: "/".join(key.key for key in path), tree(0)
    )
    optax.tree_utils.tree_map_params(
        OPTIMIZERS[optimizer],
        lambda leaf, name: (
            None if isinstance(leaf, optax.MaskedNode) else found.append((name, np.asarray(leaf)))
        ),
        opt_state,
        names,
        is_leaf=lambda x: isinstance(x, optax.MaskedNode),
    )
    return found


# --- the start -----------------------------------------------------------------------------


@pytest.mark.parametrize("density", [0.1, 0.55, 1.0])
@pytest.mark.parametrize("allocation", ["erk", "uniform"])
def test_the_start_has_the_planned_counts(density, allocation):
    masked = make("rigl", density, allocation=allocation)
    params, state = masked.init(tree(0), jax.random.key(0))
    planned = dict(zip(MATRICES, masked.planned(params), strict=True))
    assert sum(planned.values()) == round(density * 88)
    assert {name: int(m.sum()) for name, m in state.masks.items()} == planned
    given, masked_leaves = leaves_by_name(tree(0)), leaves_by_name(params)
    for name, leaf in masked_leaves.items():
        expected = np.where(state.masks[name], given[name], 0) if name in MATRICES else given[name]
        np.testing.assert_array_equal(leaf, expected)


def test_masks_follow_the_key():
    init = quick.jit(make("set").init)

    def masks(seed):
        return init(tree(0), jax.random.key(seed))[1].masks["fc1/kernel"]

    np.testing.assert_array_equal(masks(0), masks(0))
    assert np.any(masks(0) != masks(1))


@pytest.mark.parametrize("method", ["rigl", "srigl"])
def test_trained_parameters_keep_their_largest_weights(method):
    masked = make(method)
    params, state = masked.init(tree(0), jax.random.key(0), "magnitude")
    for name, count in zip(MATRICES, masked.planned(params), strict=True):
        weights, mask = np.abs(leaves_by_name(tree(0))[name]), np.asarray(state.masks[name])
        columns = [slice(None)] if method == "rigl" else range(weights.shape[1])
        for column in columns:
            w, m = weights[:, column], mask[:, column]
            assert m.sum() == (count if method == "rigl" else count // weights.shape[1])
            assert np.min(w[m]) > np.max(w[~m])


def test_trained_parameters_keep_their_largest_units():
    counts = Topology((2, 3), (4, 5))
    masked = Masked.for_method(
        "s2vite", units=VIT.units(), density=0.5, total_steps=10, counts=counts
    )
    params = random_params(VIT, Topology((6, 6), (12, 12)))
    active = s2vite.active_units(
        masked.init(params, jax.random.key(0), "magnitude")[1].masks, VIT.units()
    )
    for layer in range(2):
        attention, mlp = (params[f"block_{layer}"][part] for part in ("attention", "mlp"))
        norms = {
            "heads": np.abs(attention["out"]["kernel"]).sum((1, 2))
            + sum(np.abs(attention[n]["kernel"]).sum((0, 2)) for n in ("query", "key", "value")),
            "channels": np.abs(mlp["fc1"]["kernel"]).sum(0) + np.abs(mlp["fc2"]["kernel"]).sum(1),
        }
        for unit, norm in norms.items():
            best = set(np.argsort(-norm)[: counts.of(unit)[layer]])
            assert set(np.flatnonzero(active[unit][layer])) == best


def test_an_unknown_selection_is_named():
    with pytest.raises(UserError, match="by random or by magnitude, not by 'taylor'"):
        make("set").init(tree(0), jax.random.key(0), "taylor")


# --- a step between updates ----------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adamw", "clipped"])
def test_a_step_between_updates_is_the_optimizers_with_masked_gradients(optimizer):
    (params, opt_state, state), after = run("rigl", optimizer, steps=1)
    tx = OPTIMIZERS[optimizer]
    sparse = jax.tree.map(np.multiply, tree(1), mask_tree(params, state.masks))
    updates, opt_state = quick.jit(tx.update)(sparse, opt_state, params)
    expected = (optax.apply_updates(params, updates), opt_state, state)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), after, expected
    )


# --- an update -----------------------------------------------------------------------------


def test_a_rigl_update_takes_the_place_of_the_step():
    before, after = run("rigl")[-2:]
    for name in MATRICES:
        old, new = before[2].masks[name], after[2].masks[name]
        assert np.any(old != new) and old.sum() == new.sum()
        was, is_ = leaves_by_name(before[0])[name], leaves_by_name(after[0])[name]
        # What is active before and after has not moved; all else is zero.
        np.testing.assert_array_equal(is_, np.where(old & new, was, 0))
        for (name_, m_was), (_, m_is) in zip(
            moments_of(before[1], "adamw"), moments_of(after[1], "adamw"), strict=True
        ):
            if name_ == name:
                assert np.any(m_was[new & old] != 0)
                np.testing.assert_array_equal(m_is, np.where(old & new, m_was, 0))
    for name in ("fc1/bias", "norm/scale"):
        np.testing.assert_array_equal(
            leaves_by_name(before[0])[name], leaves_by_name(after[0])[name]
        )
    # The learning rate goes on, the bias correction of the moments does not.
    adam, _, rate = after[1]
    assert (adam.count, rate.count) == (EVERY - 1, EVERY)
    assert (before[1][0].count, before[1][2].count) == (EVERY - 1, EVERY - 1)


@pytest.mark.parametrize("method", ["set", "snfs"])
def test_an_update_comes_after_the_step(method):
    before, after = run(method)[-2:]
    params, opt_state, state = before
    tx = OPTIMIZERS["adamw"]
    sparse = jax.tree.map(np.multiply, tree(EVERY), mask_tree(params, state.masks))
    updates, opt_state = quick.jit(tx.update)(sparse, opt_state, params)
    stepped = leaves_by_name(optax.apply_updates(params, updates))
    new = leaves_by_name(after[0])
    for name, leaf in stepped.items():
        both = state.masks[name] & after[2].masks[name] if name in MATRICES else True
        np.testing.assert_allclose(new[name], np.where(both, leaf, 0), rtol=1e-5, atol=1e-7)
    assert sum(np.sum(m) for m in after[2].masks.values()) == 44
    assert any(np.any(after[2].masks[n] != state.masks[n]) for n in MATRICES)
    assert after[1][0].count == after[1][2].count == EVERY


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [
        ("set", "adamw"),
        ("snfs", "adamw"),
        ("rigl", "clipped"),
        ("rigl", "sgd"),
        ("srigl", "lion"),
        ("set", "partly"),
    ],
)
def test_what_is_masked_is_zero_after_every_step(method, optimizer):
    """Weights and moments; newly grown ones too, in the step that grows them. Traced once."""
    states = run(method, optimizer, steps=TOTAL)
    assert len(compiled(method, optimizer)[3]) == 1
    total = sum(m.sum() for m in states[0][2].masks.values())
    changes = 0
    for done, (before, after) in enumerate(itertools.pairwise(states), start=1):
        masks = after[2].masks
        pairs = [*leaves_by_name(after[0]).items(), *moments_of(after[1], optimizer)]
        for name, leaf in pairs:
            if name in MATRICES:
                assert np.all(leaf[~masks[name] | ~before[2].masks[name]] == 0), name
        count = sum(m.sum() for m in masks.values())
        # The fan-in of SRigL's ablated neurons goes to the others but for its rounding.
        assert count == total or (method == "srigl" and abs(count - total) < 13)
        changed = any(np.any(masks[n] != before[2].masks[n]) for n in MATRICES)
        assert not changed or done % EVERY == 0
        changes += changed
    assert changes >= 2


def test_snfs_averages_the_dense_gradients_of_every_step():
    states = run("snfs", steps=EVERY)
    expected = np.zeros((6, 8))
    for number in range(EVERY):
        expected = 0.9 * expected + 0.1 * tree(number + 1)["fc1"]["kernel"]
        np.testing.assert_allclose(
            states[number + 1][2].ema["fc1/kernel"], expected, rtol=1e-5, atol=1e-6
        )
    assert run("rigl", steps=1)[0][2].ema == {}


def test_set_draws_by_the_key():
    params, state, step, _ = compiled("set")
    opt_state = OPTIMIZERS["adamw"].init(params)

    def grown(seed):
        arguments = (state, params, opt_state, tree(1), EVERY - 1, jax.random.key(seed))
        return np.asarray(step(*arguments)[2].masks["fc1/kernel"])

    np.testing.assert_array_equal(grown(0), grown(0))
    assert np.any(grown(0) != grown(1))


# --- the optimizer's state -----------------------------------------------------------------


def test_schedules_are_found_where_they_are():
    tx = optax.chain(
        optax.clip_by_global_norm(1.0), optax.masked(optax.adamw(RATE), {"w": True, "b": True})
    )
    state = moments.advance_schedules(tx.init({"w": jnp.ones(2), "b": jnp.ones(1)}))
    adam, _, rate = state[1].inner_state
    assert (adam.count, rate.count) == (0, 1)
    plain = optax.adamw(0.1).init({"w": jnp.ones(2)})
    jax.tree.map(np.testing.assert_array_equal, moments.advance_schedules(plain), plain)


def test_states_of_other_shapes_are_refused():
    params, state, _, _ = compiled("set")
    tx = optax.adafactor(1e-3, min_dim_size_to_factor=2)
    with pytest.raises(UserError, match="state has shape .* use adamw, sgd or lion"):
        jax.eval_shape(
            lambda p: make("set").step(
                state, p, tx.init(p), tree(1), tx, jnp.int32(0), jax.random.key(0)
            ),
            params,
        )


# --- S2ViTE --------------------------------------------------------------------------------

ATTENDING = UnitTable.from_patterns(
    1,
    {
        "heads": {
            "input": {f"attention/{name}/kernel": 1 for name in ("query", "key", "value")},
            "output": {"attention/out/kernel": 0},
        },
        "channels": {
            "input": {"mlp/fc1/kernel": 1, "mlp/fc1/bias": 0},
            "output": {"mlp/fc2/kernel": 0},
        },
    },
)


def units_tree(seed):
    rng = np.random.default_rng(seed)
    shapes = {
        "attention": {n: {"kernel": (3, 5, 2)} for n in ("query", "key", "value")}
        | {"out": {"kernel": (5, 2, 3)}},
        "mlp": {"fc1": {"kernel": (3, 7), "bias": (7,)}, "fc2": {"kernel": (7, 3)}},
    }
    return jax.tree.map(
        lambda s: rng.standard_normal(s).astype(np.float32),
        shapes,
        is_leaf=lambda s: isinstance(s, tuple),
    )


@pytest.mark.parametrize("variant", s2vite.VARIANTS)
def test_s2vite_replaces_units_by_its_scores(variant):
    masked = Masked.for_method(
        "s2vite",
        units=ATTENDING,
        density=0.5,
        total_steps=10,
        every_steps=1,
        drop_fraction=0.5,
        drop_end=0.5,
        counts=Topology((3,), (4,)),
        variant=variant,
    )
    params, state = masked.init(units_tree(0), jax.random.key(3))
    grads, scores = units_tree(1), np.float32([0.5, 0.1, 0.3, 0.2, 0.4])
    # So that the step itself moves nothing.
    tx = optax.sgd(0.0)
    arguments = (state, params, tx.init(params), grads)
    after, _, new = quick.jit(
        lambda *a: masked.step(*a, tx, jnp.int32(0), jax.random.key(0), lambda: (scores,))
    )(*arguments)

    params = jax.tree.map(np.asarray, params)
    was, found = (s2vite.active_units(s.masks, ATTENDING) for s in (state, new))
    mlp, of_mlp = params["mlp"], grads["mlp"]
    keep = {
        "heads": scores,
        "channels": np.abs(mlp["fc1"]["kernel"]).sum(0) + np.abs(mlp["fc2"]["kernel"]).sum(1),
    }
    growth = {
        "heads": sum(
            np.abs(grads["attention"][n]["kernel"]).sum((0, 2)) for n in ("query", "key", "value")
        ),
        "channels": np.abs(of_mlp["fc1"]["kernel"]).sum(0) + np.abs(of_mlp["fc2"]["kernel"]).sum(1),
    }
    for unit in ("heads", "channels"):
        active = np.flatnonzero(was[unit][0])
        # Two go: half of three, rounded up, and half of four.
        kept = set(active[np.argsort(keep[unit][active])[2:]])
        others = [i for i in range(len(keep[unit])) if i not in kept]
        grown = sorted(others, key=lambda i: -growth[unit][i])[:2]
        assert set(np.flatnonzero(found[unit][0])) == kept | set(grown)
        assert set(np.flatnonzero(found[unit][0])) != set(active)
    both = np.asarray(was["channels"][0] & found["channels"][0])
    np.testing.assert_array_equal(after["mlp"]["fc1"]["kernel"], mlp["fc1"]["kernel"] * both)
    # What stays of a channel that is off, and what is back when it comes on again.
    column = mlp["fc2"]["kernel"] * (both[:, None] if variant == "as_released" else 1)
    np.testing.assert_array_equal(after["mlp"]["fc2"]["kernel"], column)


@pytest.mark.parametrize(
    "counts", [Topology((7, 1), (4, 4)), Topology((0, 1), (4, 4)), Topology((1,), (4,))]
)
def test_counts_must_fit_the_model(counts):
    masked = Masked.for_method(
        "s2vite", units=VIT.units(), density=0.5, total_steps=10, counts=counts
    )
    params = random_params(VIT, Topology((6, 6), (12, 12)))
    with pytest.raises(UserError, match=r"s2vite cannot keep \(.* heads of the \(6, 6\)"):
        masked.init(params, jax.random.key(0))


def test_s2vite_needs_scores():
    counts = Topology((2, 2), (4, 4))
    masked = Masked.for_method(
        "s2vite", units=VIT.units(), density=0.5, total_steps=10, counts=counts
    )
    with pytest.raises(ValueError, match="s2vite needs head_scores"):
        masked.step(None, {}, {}, {}, optax.sgd(1.0), jnp.int32(0), jax.random.key(0))
