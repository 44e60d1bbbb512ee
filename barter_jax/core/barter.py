"""BARTER for any model and any optax optimizer: the method's steps behind one small object.

    barter = Barter(units=table, schedule=plan_updates(...), caps=dense_topology)
    progress, unit_state = barter.init(params)
    # inside the compiled training step, after the gradients:
    unit_state = barter.observe(unit_state, params, grads)
    # on the host, after each optimizer step:
    if barter.due(step):
        decision = barter.decide(unit_state, progress, step)
        params, opt_state, unit_state = barter.apply(decision, params, opt_state, unit_state, tx)
        progress = decision.after

`observe` and `warm_up` are for inside jit; everything else is for the host.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from barter_jax.core import optimizer_state, policy, scores, surgery
from barter_jax.core.schedule import PlannedUpdate
from barter_jax.core.scores import UnitState
from barter_jax.core.topology import UNITS, Budget, Topology, pad, violations
from barter_jax.core.units import OUTPUT, UnitAxis, UnitTable, map_units

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far the exchanges of a run have come.

    Attributes:
      topology: the logical counts now.
      moved: units moved so far.
      carried: units planned so far that could not move yet; they join the next update.
      physical: the padded counts that tensors have now. They depend on the counts before (see
        `topology.pad`). By default those of `topology`: no padding.
    """

    topology: Topology
    moved: Budget = Budget(0, 0)
    carried: Budget = Budget(0, 0)
    physical: Topology | None = None

    def __post_init__(self):
        if self.physical is None:
            object.__setattr__(self, "physical", self.topology)
        for unit in UNITS:
            for n, p in zip(self.topology.of(unit), self.physical.of(unit), strict=True):
                if n > p:
                    raise ValueError(f"{n} {unit} are more than the physical {p} of their layer")

    def to_json(self) -> dict[str, Any]:
        return {
            "topology": self.topology.to_json(),
            "physical": self.physical.to_json(),
            "moved": dataclasses.asdict(self.moved),
            "carried": dataclasses.asdict(self.carried),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Progress:
        return cls(
            Topology.from_json(data["topology"]),
            Budget(**data["moved"]),
            Budget(**data["carried"]),
            # Older documents do not tell.
            Topology.from_json(data["physical"]) if "physical" in data else None,
        )


@dataclasses.dataclass(frozen=True)
class Decision:
    """What one topology update does: its plans, and the progress before and after them."""

    step: int
    plans: tuple[policy.Plan, ...]
    before: Progress
    after: Progress


@dataclasses.dataclass(frozen=True)
class Barter:
    """The method with all its choices. Fields not in the paper are this project's choices.

    Attributes:
      units: the model's unit-axis table.
      schedule: the planned updates, from `core.schedule.plan_updates`.
      caps: the most units each layer may have (the dense counts, as a rule).
      rule: a key of `policy.RULES`.
      decay: beta of the running averages.
      pruning: the pruning sample, a key of `scores.SAMPLES`.
      growth: the growth sample, likewise.
      priority: a key of `policy.PRIORITIES`.
      min_units: the fewest units a layer may have.
      min_age: updates before a clone may give or be cloned.
      share: what a clone takes over of its parent's output weights.
      noise: amplitude of the symmetry-breaking noise; 0 clones exactly.
      moments: how optimizer moments follow: `"scaled"`, `"copy"` or `"reset"`.
      warmup_steps: with `"reset"`, steps over which a clone's learning rate rises to its full.
      bucket: physical counts are multiples of this.
      waste: a layer that shrinks keeps its physical count while this share of it, at most, is
        without use.
      seed: determines the noise and the random rules.
    """

    units: UnitTable
    schedule: tuple[PlannedUpdate, ...]
    caps: Topology
    rule: str = "barter"
    decay: float = 0.99
    pruning: str = "gate_squared"
    growth: str = "input_gradient"
    priority: str = "mean"
    min_units: int = 1
    min_age: int = 1
    share: float = 0.5
    noise: float = 0.1
    moments: str = "scaled"
    warmup_steps: int = 100
    bucket: Budget = Budget(1, 1)
    waste: float = 0.0
    seed: int = 0

    def __post_init__(self):
        _check_choice("rule", self.rule, policy.RULES)
        _check_choice("pruning", self.pruning, scores.PRUNING_SAMPLES)
        _check_choice("growth", self.growth, scores.GROWTH_SAMPLES)
        _check_choice("priority", self.priority, policy.PRIORITIES)
        _check_choice("moments", self.moments, ("scaled", "copy", "reset"))
        _check_range("decay", self.decay, 0 <= self.decay < 1, "in [0, 1)")
        _check_range("share", self.share, 0 < self.share < 1, "between 0 and 1")
        _check_range("noise", self.noise, self.noise >= 0, "at least 0")
        _check_range("waste", self.waste, 0 <= self.waste < 1, "in [0, 1)")
        _check_range("min_units", self.min_units, self.min_units >= 1, "at least 1")
        _check_range("min_age", self.min_age, self.min_age >= 0, "at least 0")
        for unit in UNITS:
            layers = self.units.layers(unit)
            if len(self.caps.of(unit)) != layers:
                raise ValueError(
                    f"caps has {len(self.caps.of(unit))} layers of {unit}, the unit table {layers}"
                )
        _check_range("warmup_steps", self.warmup_steps, self.warmup_steps >= 1, "at least 1")

    # --- the start -------------------------------------------------------------------------

    def init(self, params: PyTree) -> tuple[Progress, UnitState]:
        """Progress and unit state of unpadded parameters, before the first step.

        Where `bucket` pads, `repad` the parameters and their state to `progress.physical`.

        Raises:
          ValueError: the parameters do not fit the unit table, `caps` or `min_units`.
        """
        topology = self.units.measure(params)
        broken = violations(topology, topology.budget, self.caps, self.min_units)
        if broken:
            raise ValueError(f"the parameters cannot be started from: {broken[0]}")
        progress = Progress(topology, physical=self.physical(topology))
        return progress, scores.init_unit_state(topology)

    def physical(self, topology: Topology, previous: Topology | None = None) -> Topology:
        """The padded counts of a topology, after those that tensors had before, if any."""
        return pad(topology, self.bucket, previous, self.waste)

    def resume(self, progress: Progress) -> Progress:
        """Stored progress as this bucket pads it: unchanged where it is the bucket it was."""
        physical = self.physical(progress.topology, progress.physical)
        return dataclasses.replace(progress, physical=physical)

    # --- inside the compiled step ----------------------------------------------------------

    def observe(self, state: UnitState, params: PyTree, grads: PyTree) -> UnitState:
        """Folds the statistics of one step's gradients into the running scores.

        The identity where no update is planned that could ask for them.
        """
        if not self.schedule:
            return state
        return scores.observe(
            state,
            self.units,
            params,
            grads,
            decay=self.decay,
            pruning=self.pruning,
            growth=self.growth,
        )

    def warm_up(self, updates: PyTree, state: UnitState, step: jax.Array) -> PyTree:
        """Scales the updates of young clones, where `moments` is `"reset"`; else the identity.

        A clone's factor is 1/w, 2/w, ... 1 over its first w = `warmup_steps` steps.

        Args:
          updates: what the optimizer would add to the parameters.
          state: the unit state.
          step: int32 scalar, optimizer steps taken before this one.
        """
        if self.moments != "reset":
            return updates

        def scaled(axis: UnitAxis, update):
            age = step + 1 - state.born[axis.unit][axis.layer]
            factor = jnp.clip(age / self.warmup_steps, 0.0, 1.0).astype(update.dtype)
            shape = [1] * update.ndim
            shape[axis.axis] = -1
            return update * factor.reshape(shape)

        return map_units(scaled, self.units, updates)

    # --- at a topology update --------------------------------------------------------------

    def due(self, step: int, progress: Progress | None = None) -> PlannedUpdate | None:
        """The update planned for when `step` optimizer steps are done, if any.

        With `progress`, only where it has units to move: its own or ones carried over.
        """
        update = next((update for update in self.schedule if update.step == step), None)
        if update is None or progress is None:
            return update
        amounts = [update.amount(unit) + progress.carried.of(unit) for unit in UNITS]
        return update if any(amounts) else None

    def decide(
        self,
        state: UnitState,
        progress: Progress,
        step: int,
        passed_over: Mapping[str, int] | None = None,
    ) -> Decision:
        """Plans the update due at `step` from the running scores. Changes nothing.

        Args:
          state: the unit state.
          progress: how far the exchanges have come.
          step: of a planned update.
          passed_over: `{unit: layer}` that must not receive, to ask what would come without it.

        Raises:
          ValueError: no update is due.
          FloatingPointError: the scores are not finite.
        """
        update = self.due(step)
        if update is None:
            raise ValueError(f"no topology update is planned at step {step}")
        host: UnitState = jax.tree.map(np.asarray, state)
        plans, moved, carried = [], {}, {}
        for unit in UNITS:
            counts = progress.topology.of(unit)

            def logical(per_layer, counts=counts):
                return [x[:n] for x, n in zip(per_layer, counts, strict=True)]

            amount = update.amount(unit) + progress.carried.of(unit)
            plan = policy.decide(
                policy.RULES[self.rule],
                unit,
                amount,
                pruning=logical(scores.corrected(host.pruning, host.observed, self.decay)[unit]),
                growth=logical(scores.corrected(host.growth, host.observed, self.decay)[unit]),
                ages=[self._ages(born, step) for born in logical(host.born[unit])],
                caps=self.caps.of(unit),
                min_units=self.min_units,
                min_age=self.min_age,
                priority=self.priority,
                rng=np.random.default_rng([self.seed, step, UNITS.index(unit)]),
                passed_over=(passed_over or {}).get(unit),
            )
            plans += [plan] if plan else []
            moved[unit] = plan.amount if plan else 0
            carried[unit] = amount - moved[unit]
        topology = surgery.next_topology(progress.topology, plans)
        after = Progress(
            topology,
            Budget(*(progress.moved.of(unit) + moved[unit] for unit in UNITS)),
            Budget(**carried),
            self.physical(topology, progress.physical),
        )
        broken = violations(after.topology, progress.topology.budget, self.caps, self.min_units)
        if broken:
            raise AssertionError(f"the update at step {step} breaks the budget: {broken[0]}")
        return Decision(step, tuple(plans), progress, after)

    def foresee(self, state: UnitState, progress: Progress, step: int) -> tuple[Topology, ...]:
        """Physical counts that the update at a later step may come to, the likeliest first.

        Those of the decision that would be taken now, then those of the runner-up: the layer with
        the second highest growth priority receives the channels, or else the heads. That the
        channels, of which more move, come before the heads is this project's choice.

        Raises:
          As `decide` does.
        """
        decisions = [self.decide(state, progress, step)]
        # Chance does not depend on the scores: what it decides now it decides then.
        if not policy.RULES[self.rule].random_receiver:
            plans = decisions[0].plans
            others = [
                self.decide(state, progress, step, {plan.unit: plan.receiver})
                for plan in reversed(plans)
            ]
            # Where no other layer can receive there is no runner-up.
            decisions += [other for other in others if len(other.plans) == len(plans)]
        return tuple(dict.fromkeys(decision.after.physical for decision in decisions))

    def _ages(self, born: np.ndarray, step: int) -> np.ndarray:
        """Updates since each unit was cloned, this one included.

        Founders count as `min_age`: old enough, whatever that is.
        """
        steps = np.array([u.step for u in self.schedule if u.step <= step], np.int64)
        ages = np.sum(steps[None, :] > born[:, None].astype(np.int64), axis=1)
        return np.where(born == scores.FOUNDER, self.min_age, ages)

    def apply(
        self,
        decision: Decision,
        params: PyTree,
        opt_state: PyTree,
        state: UnitState,
        tx: optax.GradientTransformation,
    ) -> tuple[PyTree, PyTree, UnitState]:
        """Resizes parameters, optimizer state and unit state by a decision.

        Args:
          decision: from `decide`.
          params: parameters at the decision's old physical counts.
          opt_state: state of `tx` for them.
          state: unit state for them.
          tx: the optimizer.

        Returns:
          The three at the new physical counts: numpy arrays where they changed, the same objects
          where they did not.
        """
        maps = surgery.index_maps(decision.before.topology, decision.plans, self.share)
        return self._resize(
            params,
            opt_state,
            state,
            tx,
            decision.before.topology,
            decision.after.physical,
            maps,
            decision.step,
        )

    def apply_to_parameters(self, decision: Decision, params: PyTree) -> PyTree:
        """Resizes a tree like the parameters, a running average of them say, by a decision.

        Its clones get the noise that those of the parameters get, on the scale of this tree.
        """
        maps = surgery.index_maps(decision.before.topology, decision.plans, self.share)
        return self._resize_parameters(
            params, decision.before.topology, decision.after.physical, maps, decision.step
        )

    def repad(
        self,
        params: PyTree,
        opt_state: PyTree,
        state: UnitState,
        tx: optax.GradientTransformation,
        logical: Topology,
        physical: Topology,
    ) -> tuple[PyTree, PyTree, UnitState]:
        """Changes the padding only: to `physical`, or away with `physical == logical`."""
        return self._resize(params, opt_state, state, tx, logical, physical, {}, 0)

    def _resize(self, params, opt_state, state, tx, logical, physical, maps, step):
        labels = optimizer_state.label_state(tx, params)
        if jax.tree.structure(labels) != jax.tree.structure(opt_state):
            raise ValueError("opt_state is not a state of this optimizer for these parameters")
        new_params = self._resize_parameters(params, logical, physical, maps, step)
        new_opt_state = optimizer_state.resize_state(
            opt_state, labels, self.units, logical, physical, maps, self.moments
        )
        surgery.check_matches(
            new_opt_state, jax.eval_shape(tx.init, new_params), "resized optimizer state"
        )
        return new_params, new_opt_state, self._resize_state(state, logical, physical, maps, step)

    def _resize_parameters(self, params, logical, physical, maps, step) -> PyTree:
        return surgery.resize(
            params,
            self.units,
            logical,
            physical,
            maps,
            surgery.parameters(self.noise),
            seed=(self.seed, step),
        )

    def _resize_state(self, state, logical, physical, maps, step) -> UnitState:
        def resized(per_unit, power):
            follow = surgery.Follow(output_power=power)
            return {
                unit: tuple(
                    surgery.resize_leaf(
                        leaf,
                        UnitAxis((unit,), unit, layer, 0, OUTPUT),
                        logical,
                        physical,
                        maps,
                        follow,
                    )
                    for layer, leaf in enumerate(layers)
                )
                for unit, layers in per_unit.items()
            }

        born = resized(state.born, 0)
        for (unit, layer), layer_map in maps.items():
            end = len(layer_map.sources)
            born[unit][layer][end - layer_map.clones : end] = step
        return UnitState(
            pruning=resized(state.pruning, scores.SAMPLES[self.pruning].share_power),
            growth=resized(state.growth, scores.SAMPLES[self.growth].share_power),
            born=born,
            observed=state.observed,
        )


def _check_choice(field: str, value: str, choices) -> None:
    if value not in choices:
        raise ValueError(f"{field} must be one of {', '.join(choices)}, got {value!r}")


def _check_range(field: str, value, fine: bool, range_: str) -> None:
    if not fine:
        raise ValueError(f"{field} must be {range_}, got {value}")
