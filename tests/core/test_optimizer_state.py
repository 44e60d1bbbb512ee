from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from barter_jax.core import optimizer_state
from barter_jax.core.optimizer_state import UnsupportedOptimizerError
from barter_jax.core.topology import Topology
from tests.helpers import leaves_by_path, toy_params, toy_table

TOPOLOGY = Topology((2, 2), (3, 3))
TABLE = toy_table(2)


def params():
    return toy_params(TOPOLOGY, TOPOLOGY, np.random.default_rng(0))


def test_labels_name_parameter_and_field():
    tx = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.masked(optax.adam(1e-3), lambda p: p | {"embedding": False, "layers": True}),
    )
    labels = optimizer_state.label_state(tx, params())
    assert jax.tree.structure(labels) == jax.tree.structure(jax.eval_shape(tx.init, params()))
    by_path = leaves_by_path(labels)
    for moment in ("mu", "nu"):
        label = by_path[f"[1].inner_state[0].{moment}['layers'][1]['up']"]
        assert label.path == ("layers", "1", "up")
        assert label.field == f"ScaleByAdamState.{moment}"
    assert by_path["[1].inner_state[0].count"].path is None
    assert not any("embedding" in path for path in by_path)


def big_params():
    """Large enough for Adafactor to factor its second moments."""
    topology = Topology((128, 128), (200, 200))
    return toy_params(topology, topology, np.random.default_rng(0))


def stranger():
    """A transform whose state holds an array that belongs to no parameter."""
    return optax.GradientTransformation(
        lambda params: {"history": np.zeros(5)},
        lambda updates, state, params=None: (updates, state),
    )


def odd_power():
    """A transform whose state scales with the gradient to the power 1.5."""

    class State(NamedTuple):
        odd: dict

    return optax.GradientTransformation(
        lambda params: State(jax.tree.map(jnp.zeros_like, params)),
        lambda updates, state, params=None: (
            updates,
            State(jax.tree.map(lambda o, g: o + jnp.abs(g) ** 1.5, state.odd, updates)),
        ),
    )


REFUSED = {
    "adafactor": (optax.adafactor(1e-3), "scaled", r"FactoredState.v_row has shape \[1\]"),
    "adafactor, copied": (optax.adafactor(1e-3), "copy", "FactoredState.v_row"),
    "noise": (optax.noisy_sgd(1e-2, key=0), "copy", "add noise"),
    "moves zeros": (optax.yogi(1e-3), "scaled", "zero and has zero gradient"),
    "no parameter's": (stranger(), "copy", r"shape \[5\] and belongs to no parameter"),
    "of unknown degree": (
        odd_power(),
        "scaled",
        "State.odd does not scale with the gradient by a whole power.*'copy'",
    ),
    "of unknown degree, reset": (odd_power(), "reset", "State.odd"),
    "copy of parameters": (
        optax.contrib.schedule_free_sgd(1e-2),
        "copy",
        "holds a copy of the parameters",
    ),
    "not labelled by optax": (optax.sm3(1e-2), "scaled", "optax cannot tell"),
}


@pytest.mark.parametrize(("tx", "moments", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_by_name(tx, moments, message):
    with pytest.raises(UnsupportedOptimizerError, match=message):
        optimizer_state.check_optimizer(tx, params(), TABLE, moments)


def test_factored_second_moments_are_refused():
    tx = optax.adafactor(1e-3, min_dim_size_to_factor=2)
    with pytest.raises(UnsupportedOptimizerError, match=r"v_row .* for the parameter "):
        optimizer_state.check_optimizer(tx, big_params(), TABLE, "scaled")


@pytest.mark.parametrize(
    ("tx", "moments"),
    [
        (odd_power(), "copy"),
        (optax.adamw(1e-3), "scaled"),
        (optax.adamw(1e-3), "reset"),
        (optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)), "scaled"),
        (optax.MultiSteps(optax.lion(1e-3), 2).gradient_transformation(), "scaled"),
        (optax.sgd(1e-2), "scaled"),
        # Unknown degrees matter for units only.
        (
            optax.multi_transform(
                {"units": optax.sgd(1e-2), "rest": odd_power()},
                {"embedding": "rest", "layers": "units"},
            ),
            "scaled",
        ),
    ],
)
def test_accepted(tx, moments):
    optimizer_state.check_optimizer(tx, params(), TABLE, moments)


DEGREES = {
    "adam": optax.adam(1e-3),
    "adamw": optax.adamw(1e-3),
    "amsgrad": optax.amsgrad(1e-3),
    "nadam": optax.nadam(1e-3),
    "radam": optax.radam(1e-3),
    "adamax": optax.adamax(1e-3),
    "adabelief": optax.adabelief(1e-3, eps_root=0.0),
    "lamb": optax.lamb(1e-3),
    "lion": optax.lion(1e-3),
    "sgd": optax.sgd(1e-3, momentum=0.9),
    "nesterov": optax.sgd(1e-3, momentum=0.9, nesterov=True),
    "rmsprop": optax.rmsprop(1e-3),
    "rmsprop, centered": optax.rmsprop(1e-3, centered=True),
    "rmsprop, momentum": optax.rmsprop(1e-3, momentum=0.9),
    "adagrad": optax.adagrad(1e-3, initial_accumulator_value=0.0),
    "adadelta": optax.adadelta(1e-3),
    "momentum after adam": optax.chain(optax.scale_by_adam(), optax.trace(0.9)),
    "clipped": optax.chain(optax.clip_by_global_norm(100.0), optax.adamw(1e-3)),
    "averaged": optax.chain(optax.ema(0.9), optax.scale(-1e-3)),
    "accumulated": optax.MultiSteps(optax.adam(1e-3), 2).gradient_transformation(),
}


@pytest.mark.parametrize("name", DEGREES)
def test_degree_in_the_gradient(name):
    """Scaling a unit's gradients scales its accumulators as the label says."""
    tx, start = DEGREES[name], params()
    optimizer_state.check_optimizer(tx, start, TABLE, "scaled")
    rng = np.random.default_rng(1)
    grads = [
        jax.tree.map(lambda x: rng.standard_normal(x.shape).astype(np.float32), start)
        for _ in range(3)
    ]
    update = jax.jit(tx.update)

    def train(scale):
        state = tx.init(start)
        for gradient in grads:
            gradient = jax.tree.map(np.copy, gradient)
            gradient["layers"][0]["up"][:, 1] *= scale
            state = update(gradient, state, start)[1]
        return state

    labels = leaves_by_path(optimizer_state.label_state(tx, start))
    once, scaled = leaves_by_path(train(1.0)), leaves_by_path(train(0.5))
    checked = 0
    for path, label in labels.items():
        if label.path == ("layers", "0", "up"):
            factor = 0.5**label.power
            np.testing.assert_allclose(
                scaled[path][:, 1], once[path][:, 1] * factor, rtol=1e-3, err_msg=label.field
            )
            checked += 1
    assert checked
