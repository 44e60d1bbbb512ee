"""The full-tensor methods behind one object: `Masked` takes the place of the optimizer step.

    masked = Masked.for_method("rigl", units=table, density=0.1, total_steps=10_000)
    params, state = masked.init(params, key)
    # inside the compiled training step, instead of tx.update and apply_updates:
    params, opt_state, state = masked.step(state, params, opt_state, grads, tx, step, key)

All tensors have the sizes of the dense model; masked weights are exactly zero after every step, and
so are the optimizer's moments for them. Everything is traced once: when masks change, and by how
much, are values inside the compiled step.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from barter_jax.core.topology import UNITS, Topology
from barter_jax.core.units import INPUT, OUTPUT, UnitTable
from barter_jax.errors import UserError
from barter_jax.masked import moments, rigl, s2vite, snfs, srigl
from barter_jax.masked import set as set_
from barter_jax.masked.allocation import ALLOCATIONS, ERK, active_counts
from barter_jax.masked.batching import over_layers
from barter_jax.masked.layers import (
    MaskLayer,
    Masks,
    apply_masks,
    leaves_by_name,
    mask_layers,
)
from barter_jax.masked.schedule import MaskSchedule
from barter_jax.masked.selection import top_k

PyTree = Any
HeadScores = Callable[[], Sequence[jax.Array]]

SET, SNFS, RIGL, SRIGL, S2VITE = "set", "snfs", "rigl", "srigl", "s2vite"
METHODS = (SET, SNFS, RIGL, SRIGL, S2VITE)
# How the first masks are chosen.
RANDOM, MAGNITUDE = "random", "magnitude"
SELECTIONS = (RANDOM, MAGNITUDE)
# Here a mask update takes the place of a gradient step; the others' comes after it.
REPLACE_A_STEP = (RIGL, SRIGL)


@dataclasses.dataclass(frozen=True)
class Defaults:
    """What differs between the methods.

    Attributes:
      drop_fraction: of the active weights (or units) that an update replaces, at the beginning.
      drop_end: the same at the end of the cosine.
      stop_fraction: part of the run at which updates stop.
      horizon_fraction: part of the run over which the fraction falls.
      every_steps: interval of the updates in steps, or None where it follows from the run.
    """

    drop_fraction: float
    drop_end: float
    stop_fraction: float
    horizon_fraction: float
    every_steps: int | None


# SET, RigL: google-research/rigl. SRigL: calgaryml/condensed-sparsity. SNFS:
# TimDettmers/sparse_learning, once an epoch. S2ViTE: VITA-Group/SViTE, whose interval of 15,000
# steps is a hundredth of its run of 600 epochs.
DEFAULTS = {
    SET: Defaults(0.3, 0.3, 1.0, 1.0, 100),
    RIGL: Defaults(0.3, 0.0, 0.75, 0.75, 100),
    SRIGL: Defaults(0.3, 0.0, 0.75, 0.75, 100),
    SNFS: Defaults(0.5, 0.005, 1.0, 1.0, None),
    S2VITE: Defaults(0.5, 0.005, 0.8, 1.0, None),
}
# What SRigL's authors changed for their ViT-B/16.
SRIGL_OF_VIT = {"gamma": 0.95, "every_steps": 800}


class MaskState(NamedTuple):
    """What a masked method carries forward; all that a resumed run needs besides the parameters.

    Attributes:
      masks: bool, `{path of a leaf, joined by "/": array of its shape}`. Other leaves are whole.
      ema: SNFS's running averages of dense gradients, float32, likewise; empty for the others.
    """

    masks: Masks
    ema: dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Masked:
    """A masked method with all its choices; `for_method` fills in the method's own.

    Attributes:
      method: `"set"`, `"snfs"`, `"rigl"`, `"srigl"` or `"s2vite"`.
      units: the model's unit-axis table.
      density: share of the masked weights that are active, in (0, 1].
      schedule: when masks change and by how much.
      allocation: `"erk"` or `"uniform"` densities of layers. Not for S2ViTE.
      gamma: SRigL: the least part of a neuron's fan-in that must be salient, in [0, 1].
      ema_decay: SNFS: of the running average of gradients.
      variant: S2ViTE: `"as_released"` or `"repaired"`.
      counts: S2ViTE: active heads and channels of each layer; it has no use for `density`.

    Raises:
      UserError: a field is out of range.
    """

    method: str
    units: UnitTable
    density: float
    schedule: MaskSchedule
    allocation: str = ERK
    gamma: float = 0.3
    ema_decay: float = 0.9
    variant: str = s2vite.REPAIRED
    counts: Topology | None = None

    def __post_init__(self):
        for field, fine, text in (
            ("method", self.method in METHODS, f"one of {', '.join(METHODS)}"),
            ("density", 0 < self.density <= 1, "above 0 and at most 1"),
            ("allocation", self.allocation in ALLOCATIONS, f"one of {', '.join(ALLOCATIONS)}"),
            ("gamma", 0 <= self.gamma <= 1, "in [0, 1]"),
            ("ema_decay", 0 <= self.ema_decay < 1, "in [0, 1)"),
            ("variant", self.variant in s2vite.VARIANTS, f"one of {', '.join(s2vite.VARIANTS)}"),
        ):
            if not fine:
                raise UserError(
                    f"{field} of a masked method must be {text}, got {getattr(self, field)!r}"
                )
        if (self.counts is None) == (self.method == S2VITE):
            raise UserError(
                "counts, the active heads and channels of each layer, go with s2vite and with "
                f"no other method, got {self.counts} for {self.method}"
            )

    @classmethod
    def for_method(
        cls,
        method: str,
        *,
        units: UnitTable,
        density: float,
        total_steps: int,
        steps_per_epoch: int | None = None,
        every_steps: int | None = None,
        drop_fraction: float | None = None,
        drop_end: float | None = None,
        stop_fraction: float | None = None,
        **fields: Any,
    ) -> Masked:
        """The method with its own defaults (`DEFAULTS`) for what is not given.

        Args:
          method, units, density: see the class.
          total_steps: optimizer steps of the run.
          steps_per_epoch: SNFS updates once in so many steps.
          every_steps, drop_fraction, drop_end, stop_fraction: of the schedule. Where updates stop
            earlier or later than the default, the cosine falls over as much of the run, for
            methods that end it there.
          **fields: the rest of the class's fields.

        Raises:
          UserError: as the class; or SNFS lacks both `steps_per_epoch` and `every_steps`.
        """
        if method not in METHODS:
            raise UserError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
        own = DEFAULTS[method]
        every = every_steps or own.every_steps
        if every is None and method == SNFS:
            every = steps_per_epoch
        if every is None and method == S2VITE:
            every = max(1, total_steps // 100)
        if every is None:
            raise UserError("snfs updates once an epoch: state steps_per_epoch or every_steps")
        stop = own.stop_fraction if stop_fraction is None else stop_fraction
        follows = own.horizon_fraction == own.stop_fraction and stop > 0
        schedule = MaskSchedule(
            total_steps=total_steps,
            every=every,
            stop_fraction=stop,
            start=own.drop_fraction if drop_fraction is None else drop_fraction,
            end=own.drop_end if drop_end is None else drop_end,
            horizon_fraction=stop if follows else own.horizon_fraction,
        )
        return cls(method=method, units=units, density=density, schedule=schedule, **fields)

    # --- what is planned -------------------------------------------------------------------

    def layers(self, params: PyTree) -> tuple[MaskLayer, ...]:
        """The masked matrices of dense parameters (arrays or shape structs)."""
        return mask_layers(self.units, params)

    def planned(self, params: PyTree) -> tuple[int, ...]:
        """The active weights that each of `layers` starts with (and keeps, but for SNFS's moves).

        SRigL has at most so many: see `srigl`. Not for S2ViTE, whose plan is `counts`.

        Raises:
          UserError: the density leaves a layer without any weight.
        """
        shapes = [layer.shape for layer in self.layers(params)]
        return active_counts(shapes, self.density, self.allocation)

    # --- the start -------------------------------------------------------------------------

    def init(
        self, params: PyTree, key: jax.Array, selection: str = RANDOM
    ) -> tuple[PyTree, MaskState]:
        """Masks with the planned counts, and the parameters under them.

        Args:
          params: dense parameters.
          key: PRNG key of random masks.
          selection: `"random"`, or `"magnitude"` for parameters that have been trained: the largest
            weights of each layer (of each neuron for SRigL), the units of the largest L1 norm for
            S2ViTE. The methods start from scratch, at random; this is our addition.

        Raises:
          UserError: `counts` do not fit the model, a layer would be left without any weight, or the
            selection is unknown.
        """
        if selection not in SELECTIONS:
            raise UserError(
                f"masks start with weights by {' or by '.join(SELECTIONS)}, not by {selection!r}"
            )
        # Op by op, dozens of tiny functions would be compiled.
        return jax.jit(self._init, static_argnums=2)(params, key, selection)

    def _init(self, params, key, selection):
        named = leaves_by_name(params)
        if self.method == S2VITE:
            masks = self._initial_units(params, key, selection)
        else:
            layers, counts = self.layers(params), list(self.planned(params))
            if selection == RANDOM:
                scores = _uniform([layer.shape for layer in layers], key)
            else:
                scores = [jnp.abs(layer.matrix(named)) for layer in layers]
            choose = srigl.initial if self.method == SRIGL else top_k
            masks = _leaves(layers, over_layers(choose, scores, counts))
        ema = {}
        if self.method == SNFS:
            ema = {name: jnp.zeros(named[name].shape, jnp.float32) for name in masks}
        return apply_masks(params, masks), MaskState(masks, ema)

    def _initial_units(self, params, key, selection) -> Masks:
        self._check_counts(params)
        named, dense = leaves_by_name(params), self.units.measure(params)
        active = {}
        for number, unit in enumerate(UNITS):
            if selection == RANDOM:
                scores = _uniform([(n,) for n in dense.of(unit)], jax.random.fold_in(key, number))
            else:
                scores = s2vite.norms(self.units, named, unit, (INPUT, OUTPUT))
            active[unit] = tuple(over_layers(top_k, scores, list(self.counts.of(unit))))
        return s2vite.masks(active, self.units, named, self.variant)

    def _check_counts(self, params):
        dense = self.units.measure(params)
        for unit in UNITS:
            most, wanted = dense.of(unit), self.counts.of(unit)
            fits = len(most) == len(wanted) and all(
                1 <= n <= m for n, m in zip(wanted, most, strict=True)
            )
            if not fits:
                raise UserError(f"s2vite cannot keep {wanted} {unit} of the {most} of the model")

    # --- inside the compiled step ----------------------------------------------------------

    def step(
        self,
        state: MaskState,
        params: PyTree,
        opt_state: PyTree,
        grads: PyTree,
        tx: optax.GradientTransformation,
        step: jax.Array,
        key: jax.Array,
        head_scores: HeadScores | None = None,
    ) -> tuple[PyTree, PyTree, MaskState]:
        """One optimizer step under the masks, and the change of the masks where it is due.

        The optimizer sees masked gradients (so the norm that it may clip is that of the sparse
        model); its updates and its moments are masked too. A change of masks sets pruned weights
        and their moments to zero, and newly grown ones start so; what was dropped and grown in one
        update goes on as it was. With RigL and SRigL a change takes the place of the step: nothing
        else of the parameters and moments moves, and of the optimizer's counters only those of
        learning-rate schedules do (see `moments.advance_schedules`). With the others it comes after
        the step, from the same gradients.

        Args:
          state: masks and the rest, from `init` or the step before.
          params: parameters under these masks.
          opt_state: state of `tx` for them.
          grads: *dense* gradients of the loss.
          tx: the optimizer.
          step: int32 scalar, steps taken before this one.
          key: PRNG key of this step.
          head_scores: for S2ViTE: when called, gives the mean of |A * dL/dA| of each head, one
            float32 `[heads]` for each layer, of the parameters and batch that `grads` are from.
            It is traced into the branch of due steps alone, so that others do not pay for it.

        Returns:
          Parameters, optimizer state and masks, with the shapes that came in.

        Raises:
          ValueError: S2ViTE without `head_scores`.
          UserError: the optimizer's state cannot be masked.
        """
        if self.method == S2VITE and head_scores is None:
            raise ValueError("s2vite needs head_scores, see barter_jax.masked.attention")
        state = self._observe(state, grads)
        fraction = self.schedule.fraction(step)
        due = self.schedule.due(step)

        def train(params, opt_state):
            masks = state.masks
            updates, opt_state = tx.update(apply_masks(grads, masks), opt_state, params)
            params = optax.apply_updates(params, apply_masks(updates, masks))
            return params, moments.hide(tx, opt_state, params, masks)

        def change(params, opt_state):
            masks = self._changed(state, params, grads, fraction, key, head_scores)
            both = {name: masks[name] & state.masks[name] for name in masks}
            opt_state = moments.hide(tx, opt_state, params, both)
            return apply_masks(params, both), opt_state, state._replace(masks=masks)

        def replaced(params, opt_state):
            return change(params, moments.advance_schedules(opt_state))

        def trained(params, opt_state):
            return *train(params, opt_state), state

        def unchanged(params, opt_state):
            return params, opt_state, state

        if self.method in REPLACE_A_STEP:
            return jax.lax.cond(due, replaced, trained, params, opt_state)
        params, opt_state = train(params, opt_state)
        return jax.lax.cond(due, change, unchanged, params, opt_state)

    def _observe(self, state, grads):
        if self.method != SNFS:
            return state
        named = leaves_by_name(grads)
        ema = {n: snfs.average(e, named[n], self.ema_decay) for n, e in state.ema.items()}
        return state._replace(ema=ema)

    def _changed(self, state, params, grads, fraction, key, head_scores) -> Masks:
        """The masks after an update."""
        weights, gradients = leaves_by_name(params), leaves_by_name(grads)
        if self.method == S2VITE:
            return self._changed_units(state, weights, gradients, fraction, head_scores())
        layers = self.layers(params)
        active = [layer.matrix(state.masks) for layer in layers]
        w = [layer.matrix(weights) for layer in layers]
        g = [layer.matrix(gradients) for layer in layers]
        if self.method == SNFS:
            ema = [layer.matrix(state.ema) for layer in layers]
            new = snfs.update(active, w, ema, fraction)
        elif self.method == SET:
            draws = _uniform([layer.shape for layer in layers], key)
            new = over_layers(lambda *layer: set_.update(*layer, fraction), active, w, draws)
        elif self.method == RIGL:
            new = over_layers(lambda *layer: rigl.update(*layer, fraction), active, w, g)
        else:
            limits = [
                srigl.Limits.of(layer.shape, count, self.gamma)
                for layer, count in zip(layers, self.planned(params), strict=True)
            ]
            new = over_layers(
                lambda *layer: srigl.update(*layer[:3], fraction, layer[3]), active, w, g, limits
            )
        return _leaves(layers, new)

    def _changed_units(self, state, weights, gradients, fraction, head_scores) -> Masks:
        table = self.units
        active = s2vite.active_units(state.masks, table)
        keep = {
            "heads": head_scores,
            "channels": s2vite.norms(table, weights, "channels", (INPUT, OUTPUT)),
        }
        growth = {
            "heads": s2vite.norms(table, gradients, "heads", (INPUT,)),
            "channels": s2vite.norms(table, gradients, "channels", (INPUT, OUTPUT)),
        }
        new = {
            unit: tuple(
                over_layers(
                    lambda *layer: s2vite.update(*layer, fraction),
                    active[unit],
                    keep[unit],
                    growth[unit],
                )
            )
            for unit in UNITS
        }
        return s2vite.masks(new, table, weights, self.variant)


def _uniform(shapes: Sequence[tuple[int, ...]], key: jax.Array) -> list[jax.Array]:
    """Arrays of uniform draws, all in one: a generator takes long to compile."""
    sizes = [math.prod(shape) for shape in shapes]
    draws = jnp.split(
        jax.random.uniform(key, (sum(sizes),)), list(itertools.accumulate(sizes))[:-1]
    )
    return [part.reshape(shape) for part, shape in zip(draws, shapes, strict=True)]


def _leaves(layers: Sequence[MaskLayer], masks: Sequence[jax.Array]) -> Masks:
    """Masks of the leaves from those of the matrices."""
    found = {}
    for layer, mask in zip(layers, masks, strict=True):
        found |= layer.leaves(mask)
    return found
