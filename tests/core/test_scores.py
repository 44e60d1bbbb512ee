import jax
import jax.numpy as jnp
import numpy as np
import pytest

from barter_jax.core import scores
from barter_jax.core.topology import Topology
from barter_jax.core.units import UnitTable
from tests.core import language_model
from tests.helpers import toy_params, toy_table

TOPOLOGY = Topology((3, 1), (4, 5))


@pytest.fixture(scope="module")
def gradients():
    """Parameters, their gradients, and the gradients of gates on every unit's output."""
    params = language_model.init(TOPOLOGY)
    tokens = language_model.random_tokens()
    grads, gates = jax.jit(jax.grad(language_model.loss, argnums=(0, 2)))(
        params, tokens, language_model.ones(TOPOLOGY)
    )
    return params, grads, gates


@pytest.mark.parametrize(("name", "of_gate"), [("gate_abs", np.abs), ("gate_squared", np.square)])
def test_gate_gradients(gradients, name, of_gate):
    params, grads, gates = gradients
    samples = scores.sample(name, language_model.unit_table(2), params, grads)
    for unit in ("heads", "channels"):
        for layer, n in enumerate(TOPOLOGY.of(unit)):
            assert samples[unit][layer].shape == (n,)
            want = of_gate(np.asarray(gates[unit][layer]))
            assert np.all(want > 0)
            np.testing.assert_allclose(samples[unit][layer], want, rtol=2e-4)


def test_samples_by_hand():
    table = UnitTable.from_patterns(
        1, {"channels": {"input": {"up": 1, "bias": 0}, "output": {"down": 0}}}
    )
    params = {
        "up": np.array([[1.0, 2.0], [0.0, 1.0]]),
        "bias": np.array([0.0, 5.0]),
        "down": np.array([[3.0, -4.0], [1.0, 2.0]]),
    }
    grads = {
        "up": np.array([[1.0, -1.0], [2.0, 0.0]]),
        "bias": np.array([3.0, 0.5]),
        "down": np.array([[1.0, 2.0], [-1.0, 0.5]]),
    }
    expected = {
        # w * g: 3 - 8 and -1 + 1
        "gate_squared": [25.0, 0.0],
        "gate_abs": [5.0, 0.0],
        "magnitude": [5.0, np.sqrt(5)],
        "input_gradient": [1 + 4 + 9, 1 + 0 + 0.25],
        "all_gradient": [14 + 1 + 4, 1.25 + 1 + 0.25],
    }
    assert expected.keys() == scores.SAMPLES.keys()
    for name, want in expected.items():
        found = scores.sample(name, table, params, grads)
        np.testing.assert_allclose(found["channels"][0], want, rtol=1e-6, err_msg=name)
        assert found["heads"] == ()


# All but `all_gradient`, whose output part does not follow the share.
@pytest.mark.parametrize("name", sorted(scores.SAMPLES.keys() - {"all_gradient"}))
@pytest.mark.parametrize("share", [0.5, 0.25])
def test_samples_change_with_the_share_as_declared(gradients, name, share):
    """The chain rule, on a clone: output weights times s, so input gradients times s."""
    params, grads, _ = gradients
    table = language_model.unit_table(2)
    clone_params, clone_grads = jax.tree.map(np.asarray, (params, grads))
    for axis in table.axes:
        node = clone_params if axis.role == "output" else clone_grads
        *parents, last = (int(key) if key.isdigit() else key for key in axis.path)
        for key in parents:
            node = node[key]
        node[last] = node[last] * share
    before = scores.sample(name, table, params, grads)
    after = scores.sample(name, table, clone_params, clone_grads)
    power = scores.SAMPLES[name].share_power
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_allclose(new, old * share**power, rtol=1e-4)


def test_bfloat16_is_summed_in_float32():
    table = toy_table(1)
    topology = Topology((1,), (1,))
    params = toy_params(topology, topology, np.random.default_rng(0), jnp.bfloat16)
    samples = scores.sample("gate_abs", table, params, params)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(samples))
    values = params["layers"][0]["out"].astype(np.float32)
    np.testing.assert_allclose(samples["heads"][0], np.sum(values**2), rtol=1e-6)


def test_running_averages_and_their_bias():
    table = toy_table(1)
    topology = Topology((2,), (3,))
    rng = np.random.default_rng(0)
    state = scores.init_unit_state(topology)
    assert scores.corrected(state.pruning, 0, 0.9)["heads"][0].tolist() == [0, 0]
    params = toy_params(topology, topology, rng)
    steps = [toy_params(topology, topology, rng) for _ in range(3)]
    for grads in steps:
        state = scores.observe(
            state, table, params, grads, decay=0.9, pruning="gate_abs", growth="input_gradient"
        )
    assert int(state.observed) == 3
    weights = np.array([0.9**2, 0.9, 1]) * 0.1
    for field, name in (("pruning", "gate_abs"), ("growth", "input_gradient")):
        running = getattr(state, field)
        samples = [scores.sample(name, table, params, grads) for grads in steps]
        for unit in ("heads", "channels"):
            each = np.stack([np.asarray(x[unit][0], np.float64) for x in samples])
            np.testing.assert_allclose(running[unit][0], weights @ each, rtol=1e-5)
            found = scores.corrected(running, state.observed, 0.9)[unit][0]
            np.testing.assert_allclose(found, weights @ each / weights.sum(), rtol=1e-5)
            assert found.dtype == np.float64


def test_a_constant_sample_is_its_own_corrected_average():
    table = toy_table(1)
    topology = Topology((2,), (3,))
    params = toy_params(topology, topology, np.random.default_rng(0))
    state = scores.init_unit_state(topology)
    options = {"decay": 0.99, "pruning": "magnitude", "growth": "all_gradient"}
    for _ in range(2):
        state = scores.observe(state, table, params, params, **options)
    once = scores.sample("magnitude", table, params, params)["heads"][0]
    found = scores.corrected(state.pruning, state.observed, 0.99)["heads"][0]
    np.testing.assert_allclose(found, once, rtol=1e-5)


@pytest.mark.parametrize("pruning", scores.PRUNING_SAMPLES)
@pytest.mark.parametrize("growth", scores.GROWTH_SAMPLES)
def test_padded_units_stay_at_zero(pruning, growth):
    logical, physical = Topology((1,), (2,)), Topology((2,), (4,))
    rng = np.random.default_rng(0)
    params, grads = (toy_params(physical, logical, rng) for _ in range(2))
    state = scores.observe(
        scores.init_unit_state(physical),
        toy_table(1),
        params,
        grads,
        decay=0.9,
        pruning=pruning,
        growth=growth,
    )
    for per_unit in (state.pruning, state.growth):
        assert np.all(np.asarray(per_unit["heads"][0])[1:] == 0)
        assert np.all(np.asarray(per_unit["channels"][0])[2:] == 0)
        assert np.all(np.asarray(per_unit["channels"][0])[:2] > 0)
    assert state.born["heads"][0].tolist() == [scores.FOUNDER] * 2
