"""When updates come, and how large they are."""

import jax
import numpy as np
import pytest

from barter_jax.errors import UserError
from barter_jax.masked.masked import DEFAULTS, Masked
from barter_jax.masked.schedule import MaskSchedule
from tests.helpers import VIT, Topology


def schedule(total=1000, every=100, stop=1.0, start=0.3, end=0.0, horizon=1.0):
    return MaskSchedule(total, every, stop, start, end, horizon)


def steps_due(plan: MaskSchedule) -> list[int]:
    """Steps, counted from 1, that are due by the traced rule."""
    due = jax.jit(jax.vmap(plan.due))(np.arange(plan.total_steps))
    return list(np.flatnonzero(due) + 1)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (schedule(stop=0.75), [100, 200, 300, 400, 500, 600, 700]),
        # Nothing at the very end of a part: its result would be kept untrained, or is empty.
        (schedule(stop=0.8), [100, 200, 300, 400, 500, 600, 700]),
        (schedule(stop=0.81), [100, 200, 300, 400, 500, 600, 700, 800]),
        (schedule(total=12, every=3), [3, 6, 9]),
        (schedule(total=100, every=1, stop=0.07), [1, 2, 3, 4, 5, 6]),
        (schedule(stop=0.0), []),
        (schedule(total=50), []),
    ],
)
def test_steps(plan, expected):
    assert steps_due(plan) == list(plan.updates) == expected


def test_cosine():
    plan = schedule(start=0.5, end=0.005, horizon=0.75)
    found = jax.jit(jax.vmap(plan.fraction))(np.array([-1, 374, 749, 900]))
    np.testing.assert_allclose(found, [0.5, (0.5 + 0.005) / 2, 0.005, 0.005], rtol=1e-6)


def test_constant():
    found = jax.jit(jax.vmap(schedule(start=0.3, end=0.3).fraction))(np.arange(0, 1000, 99))
    assert set(np.asarray(found)) == {np.float32(0.3)}


def method(name, **fields):
    counts = Topology((2, 2), (4, 4)) if name == "s2vite" else None
    fields = {"total_steps": 1000, "density": 0.5, "counts": counts} | fields
    return Masked.for_method(name, units=VIT.units(), **fields)


@pytest.mark.parametrize(
    ("name", "steps", "first", "last"),
    [
        ("set", range(100, 1000, 100), 0.3, 0.3),
        ("rigl", range(100, 750, 100), 0.3, 0.0),
        ("srigl", range(100, 750, 100), 0.3, 0.0),
        # Every epoch of 50 steps but the last.
        ("snfs", range(50, 1000, 50), 0.5, 0.005),
        ("s2vite", range(10, 800, 10), 0.5, 0.005),
    ],
)
def test_defaults_of_the_methods(name, steps, first, last):
    plan = method(name, steps_per_epoch=50).schedule
    assert plan.updates == tuple(steps)
    assert plan.fraction(-1) == pytest.approx(first)
    end = round(1000 * DEFAULTS[name].horizon_fraction)
    assert plan.fraction(end - 1) == pytest.approx(last, abs=1e-7)


def test_overrides():
    plan = method("rigl", every_steps=7, drop_fraction=0.5, drop_end=0.1, stop_fraction=0.5)
    assert plan.schedule == MaskSchedule(1000, 7, 0.5, 0.5, 0.1, 0.5)
    assert method("rigl", stop_fraction=0.0).schedule.updates == ()
    # The cosine of these does not end with the updates.
    assert method("s2vite", stop_fraction=0.5).schedule.horizon_fraction == 1.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"every": 0}, "every of a mask schedule must be at least 1"),
        ({"stop": 1.2}, r"stop_fraction .* must be in \[0, 1\]"),
        ({"start": -0.1}, r"start .* must be in \[0, 1\]"),
        ({"end": 2.0}, r"end .* must be in \[0, 1\]"),
        ({"horizon": 0.0}, "horizon_fraction .* above 0"),
        ({"total": 0}, "total_steps .* at least 1"),
    ],
)
def test_mistakes_are_named(fields, message):
    with pytest.raises(UserError, match=message):
        schedule(**fields)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("ssnfs", {}, "method must be one of set, snfs, rigl, srigl, s2vite, got 'ssnfs'"),
        ("snfs", {}, "once an epoch: state steps_per_epoch or every_steps"),
        ("set", {"density": 0.0}, "density .* above 0 and at most 1, got 0.0"),
        ("set", {"allocation": "ER"}, "allocation .* one of erk, uniform, got 'ER'"),
        ("srigl", {"gamma": 2}, r"gamma .* in \[0, 1\], got 2"),
        ("snfs", {"every_steps": 1, "ema_decay": 1.0}, r"ema_decay .* in \[0, 1\), got 1.0"),
        ("s2vite", {"variant": "fixed"}, "variant .* one of as_released, repaired, got 'fixed'"),
        ("s2vite", {"counts": None}, "counts, .* go with s2vite .*got None for s2vite"),
        ("rigl", {"counts": Topology((1, 1), (1, 1))}, "counts, .* go with s2vite"),
    ],
)
def test_mistakes_of_a_method_are_named(name, fields, message):
    with pytest.raises(UserError, match=message):
        method(name, **fields)
