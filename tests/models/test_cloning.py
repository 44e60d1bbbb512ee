"""A topology update changes a real model's function by what it prunes, and by nothing else."""

import jax
import numpy as np
import optax
import pytest

from barter_jax.core.barter import Barter, Decision, Progress
from barter_jax.core.policy import Plan
from barter_jax.core.surgery import next_topology
from barter_jax.core.topology import Topology
from tests.helpers import (
    CCT,
    UNEVEN,
    VIT,
    compiled_optimizer,
    forward,
    leaves_by_path,
    loss_and_grads,
    random_images,
    random_params,
    unit_leaf_key,
)

PLANS = (
    Plan("heads", 0, ((1, 0),), (2,)),
    # One parent gets one clone, another gets two.
    Plan("channels", 1, ((0, 1), (0, 4), (0, 2)), (3, 0, 3)),
)
AFTER = next_topology(UNEVEN, PLANS)
TX = optax.adamw(1e-3)


def operate(config, params, opt_state=None, **choices):
    barter = Barter(units=config.units(), schedule=(), caps=Topology((6, 6), (12, 12)), **choices)
    _, unit_state = barter.init(params)
    decision = Decision(10, PLANS, Progress(UNEVEN), Progress(AFTER))
    if opt_state is None:
        opt_state = compiled_optimizer(TX)[0](params)
    return barter.apply(decision, params, opt_state, unit_state, TX)


def silenced(params):
    """The parameters of before with the donors' outputs at zero."""
    params = jax.tree.map(np.copy, params)
    for plan in PLANS:
        for layer, i in plan.donors:
            block = params[f"block_{layer}"]
            out = block["attention"]["out"] if plan.unit == "heads" else block["mlp"]["fc2"]
            out["kernel"][i] = 0
    return params


@pytest.mark.parametrize("share", [0.5, 0.3])
@pytest.mark.parametrize("config", [VIT, CCT])
def test_clones_leave_the_function_as_it_was(config, share):
    params, images = random_params(config, UNEVEN), random_images()
    new_params, _, _ = operate(config, params, noise=0.0, share=share)
    assert config.units().measure(new_params) == AFTER == Topology((4, 1), (2, 10))
    found = forward(config, AFTER)(new_params, images)
    want = forward(config, UNEVEN)(silenced(params), images)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
    pruned = np.abs(want - forward(config, UNEVEN)(params, images)).max()
    assert pruned > 1e-2, "the donors did nothing, so nothing was tested"


@pytest.mark.parametrize("share", [0.5, 0.3])
@pytest.mark.parametrize("config", [VIT, CCT])
def test_noise_changes_the_function_to_second_order_only(config, share):
    params, images = random_params(config, UNEVEN), random_images(8)

    def logits(noise):
        return forward(config, AFTER)(operate(config, params, noise=noise, share=share)[0], images)

    exact = logits(0.0)
    whole, half = (np.linalg.norm(logits(noise) - exact) for noise in (0.1, 0.05))
    assert whole > 1e-4
    assert 3 < whole / half < 5
    # And small beside what the same clones would do without the opposite noise on their parents.
    assert whole < 0.05 * np.linalg.norm(exact)


def test_every_parameter_moves_on_the_step_after_an_update():
    params, images, labels = random_params(VIT, UNEVEN), random_images(4), np.array([0, 3, 1, 1])

    init, update = compiled_optimizer(TX)

    def step(topology, params, opt_state):
        _, grads = loss_and_grads(VIT, topology)(params, images, labels, jax.random.key(0))
        return *update(params, opt_state, grads), grads

    params, opt_state, _ = step(UNEVEN, params, init(params))
    params, opt_state, _ = operate(VIT, params, opt_state, noise=0.1)
    new_params, _, grads = step(AFTER, params, opt_state)

    old, new, grads = (leaves_by_path(tree) for tree in (params, new_params, grads))
    for name in old:
        if name.endswith("['key']['bias']"):
            continue  # the softmax does not see it: its gradient is rounding errors
        moving = np.abs(grads[name]) > 1e-6
        assert np.any(moving), f"{name} has no gradient"
        moved = np.asarray(new[name]) != np.asarray(old[name])
        assert np.all(moved[moving]), f"{name} stands still"
    # Clones and parents have parted.
    for axis in VIT.units().axes:
        for plan in PLANS:
            if (axis.unit, axis.layer) == (plan.unit, plan.receiver) and axis.role == "input":
                leaf = np.moveaxis(np.asarray(new[unit_leaf_key(axis)]), axis.axis, 0)
                family = [*range(len(leaf) - plan.amount, len(leaf)), *set(plan.parents)]
                assert len({leaf[i].tobytes() for i in family}) == len(family)
