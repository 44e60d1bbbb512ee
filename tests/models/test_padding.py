"""Padding is invisible: a padded run and an unpadded run agree, and padding stays zero."""

import jax
import numpy as np
import optax
import pytest

from barter_jax.core.barter import Barter
from barter_jax.core.topology import Budget
from tests.helpers import (
    CCT,
    UNEVEN,
    VIT,
    compiled_optimizer,
    leaves_by_path,
    loss_and_grads,
    random_images,
    random_params,
    unit_leaf_key,
)

STEPS = 5
BUCKET = Budget(4, 8)


def clipped(optimizer):
    return optax.chain(optax.clip_by_global_norm(0.5), optimizer)


# Adam's eps is large because a key bias has no gradient but rounding errors, which Adam would
# otherwise blow up to full steps; Lion would too, so it trains the model without these biases.
RUNS = {
    "vit, adamw": (VIT, clipped(optax.adamw(1e-2, eps=1e-3, weight_decay=0.05))),
    "cct, lion": (CCT, clipped(optax.lion(1e-3, weight_decay=0.05))),
    "cct, sgd": (CCT, clipped(optax.sgd(0.1, momentum=0.9))),
}


def train(config, tx, topology, params):
    """`STEPS` steps with dropout and stochastic depth on; losses, logits and gradients too."""
    images, labels = random_images(4), np.array([0, 3, 1, 1])
    init, update = compiled_optimizer(tx)
    opt_state, history = init(params), []
    for i in range(STEPS):
        key = jax.random.fold_in(jax.random.key(0), i)
        values, grads = loss_and_grads(config, topology)(params, images, labels, key)
        params, opt_state = update(params, opt_state, grads)
        history.append((values, grads))
    return params, opt_state, history


def assert_close(found, want, **tolerance):
    """Compares trees, but for the bias that the pooling's softmax does not see."""
    found, want = leaves_by_path(found), leaves_by_path(want)
    assert found.keys() == want.keys()
    for name in found:
        if not name.endswith("['pooling']['score']['bias']"):
            np.testing.assert_allclose(found[name], want[name], **tolerance, err_msg=name)


@pytest.mark.parametrize(("config", "tx"), RUNS.values(), ids=RUNS.keys())
def test_a_padded_run_is_an_unpadded_one(config, tx):
    assert config.attention_dropout > 0 and config.drop_path > 0
    barter = Barter(units=config.units(), schedule=(), caps=UNEVEN, bucket=BUCKET)
    physical = barter.physical(UNEVEN)
    assert physical != UNEVEN
    params = random_params(config, UNEVEN)
    state = params, compiled_optimizer(tx)[0](params), barter.init(params)[1]
    wide, _, wide_units = barter.repad(*state, tx, UNEVEN, physical)
    assert barter.units.measure(wide) == physical

    new, new_state, history = train(config, tx, UNEVEN, params)
    wide, wide_state, wide_history = train(config, tx, physical, wide)

    for tree in (wide, *(grads for _, grads in wide_history)):
        leaves = leaves_by_path(tree)
        for axis in barter.units.axes:
            leaf = np.moveaxis(np.asarray(leaves[unit_leaf_key(axis)]), axis.axis, 0)
            assert np.all(leaf[UNEVEN.of(axis.unit)[axis.layer] :] == 0), axis.name

    # Loss and logits of every step; the gradients of the first, at equal parameters.
    for (values, _), (wide_values, _) in zip(history, wide_history, strict=True):
        assert_close(wide_values, values, atol=1e-4)
    wide_grads, grads = wide_history[0][1], history[0][1]
    narrow = barter.repad(wide_grads, wide_state, wide_units, tx, UNEVEN, UNEVEN)[0]
    assert_close(narrow, grads, atol=1e-6, rtol=1e-4)
    # Parameters and optimizer state after the last step.
    narrow, narrow_state, _ = barter.repad(wide, wide_state, wide_units, tx, UNEVEN, UNEVEN)
    assert_close(narrow, new, atol=2e-5, rtol=1e-4)
    assert_close(narrow_state, new_state, atol=2e-5, rtol=1e-4)

    start, end = leaves_by_path(params), leaves_by_path(new)
    for axis in barter.units.axes:
        key = unit_leaf_key(axis)
        assert np.abs(end[key] - start[key]).max() > 1e-5, "not trained, so nothing was tested"
