"""The core knows no model: a language model without Flax goes through the whole method."""

import subprocess
import sys

import jax
import numpy as np
import optax
import pytest

from barter_jax.core.barter import Barter
from barter_jax.core.schedule import plan_updates
from barter_jax.core.topology import Budget, Topology, pad, violations
from tests.core import language_model

START = Topology((3, 2), (6, 5))
CAPS = Topology((5, 5), (9, 9))
UPDATES, TRANSFERS, STEPS = 2, Budget(2, 5), 8


def make(start: Topology, **choices) -> Barter:
    return Barter(
        units=language_model.unit_table(2, heads=bool(start.heads)),
        schedule=plan_updates(
            STEPS, UPDATES, 0.25, 0.75, TRANSFERS if start.heads else Budget(0, TRANSFERS.channels)
        ),
        caps=Topology(CAPS.heads[: len(start.heads)], CAPS.channels),
        decay=0.9,
        **choices,
    )


def train(barter: Barter, start: Topology, after_update=None):
    """Trains as the module's docstring tells; returns parameters, progress and decisions."""
    tx = optax.adamw(1e-2)

    @jax.jit
    def step(params, opt_state, unit_state, tokens):
        grads = jax.grad(language_model.loss)(params, tokens)
        unit_state = barter.observe(unit_state, params, grads)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, unit_state

    params = language_model.init(start)
    progress, unit_state = barter.init(params)
    opt_state = jax.jit(tx.init)(params)
    state = barter.repad(params, opt_state, unit_state, tx, start, barter.physical(start))
    decisions = []
    for i in range(1, STEPS + 1):
        state = step(*state, language_model.random_tokens(seed=i))
        if barter.due(i):
            decision = barter.decide(state[2], progress, i)
            old, state = state, barter.apply(decision, *state, tx)
            progress = decision.after
            decisions.append(decision)
            if after_update:
                after_update(decision, old[0], state[0])
    return state[0], progress, decisions


@pytest.mark.parametrize(
    ("start", "bucket"),
    [(START, Budget(2, 4)), (Topology((), START.channels), Budget(1, 1))],
    ids=["padded", "channels only"],
)
def test_budgets_stay_exact(start, bucket):
    barter = make(start, bucket=bucket)
    params, progress, decisions = train(barter, start)
    assert len(decisions) == UPDATES
    for decision in decisions:
        assert violations(decision.after.topology, start.budget, barter.caps, 1) == []
    assert progress.moved.heads + progress.carried.heads == (TRANSFERS.heads if start.heads else 0)
    assert progress.moved.channels + progress.carried.channels == TRANSFERS.channels
    assert progress.moved.channels > 0
    assert progress.topology != start
    assert barter.units.measure(params) == pad(progress.topology, bucket)


def test_updates_change_the_function_by_what_they_prune():
    tokens = language_model.random_tokens(seed=99)
    forward = jax.jit(language_model.forward)
    largest = []

    def compare(decision, old, new):
        silenced = jax.tree.map(np.array, old)
        for plan in decision.plans:
            for layer, i in plan.donors:
                block = silenced["layers"][layer]
                if plan.unit == "heads":
                    block["attention"]["o"][i] = 0
                else:
                    block["ffn"]["down"][i] = 0
        before, expected, found = (forward(x, tokens) for x in (old, silenced, new))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        largest.append(np.abs(before - expected).max())

    train(make(START, noise=0.0), START, compare)
    assert len(largest) == UPDATES
    assert max(largest) > 1e-3, "the pruned units did nothing, so nothing was tested"


def test_a_run_is_a_function_of_its_seed():
    first = train(make(START, seed=1), START)
    again = train(make(START, seed=1), START)
    other = train(make(START, seed=2), START)
    assert first[1:] == again[1:]
    jax.tree.map(np.testing.assert_array_equal, first[0], again[0])
    # The seed reaches the noise of the clones.
    assert any(
        a.shape != b.shape or np.any(a != b)
        for a, b in zip(jax.tree.leaves(first[0]), jax.tree.leaves(other[0]), strict=True)
    )


def test_the_core_imports_no_model_library():
    code = """
import importlib, pkgutil, sys
import barter_jax.core as core
for module in pkgutil.iter_modules(core.__path__):
    importlib.import_module(f"barter_jax.core.{module.name}")
for name in ("flax", "grain", "orbax", "barter_jax.models", "tensorflow"):
    assert name not in sys.modules, name
print(*sorted(name for name in sys.modules if name.startswith("barter_jax.core.")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "barter_jax.core.surgery" in done.stdout
