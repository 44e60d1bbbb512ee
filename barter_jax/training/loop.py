"""The run: train, resume, update the topology, evaluate, keep the best as a compact model.

Order of things at step s (s optimizer steps are done): the log line, the evaluation and the
checkpoint of s describe the state before the topology update of s, which opens step s + 1. A
resumed run therefore decides it again, from the same scores.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import config_dict

from barter_jax import blueprint as blueprint_lib
from barter_jax.core import accounting
from barter_jax.core.score_summary import score_quantiles
from barter_jax.core.topology import Topology
from barter_jax.data.cache import cached
from barter_jax.deploy import evaluate as deployed
from barter_jax.deploy import model as compact
from barter_jax.errors import AloneError, UserError
from barter_jax.training import (
    best_model,
    compile_cache,
    environment,
    metrics,
    optimizer,
    records,
    start,
    workdir,
)
from barter_jax.training import origin as origin_lib
from barter_jax.training import state as state_lib
from barter_jax.training.checkpoint import Bookkeeping, Checkpoints, Evaluation, named_leaves
from barter_jax.training.compiled import compile_entry
from barter_jax.training.console import counts
from barter_jax.training.distributed import Placement
from barter_jax.training.executables import Entry
from barter_jax.training.hosts import Hosts
from barter_jax.training.inputs import Inputs
from barter_jax.training.job import Job
from barter_jax.training.journal import Journal
from barter_jax.training.shapes import Shapes
from barter_jax.training.signals import Stopped, stop_signals
from barter_jax.training.state import TrainState
from barter_jax.training.window import diverged
from barter_jax.training.writers import write_json

log = logging.getLogger("barter_jax")

# Written last: a directory that has it holds a finished run.
SUMMARY = "summary.json"


def train(
    config: config_dict.ConfigDict, directory: Path, overwrite: bool, command: str = ""
) -> dict[str, Any]:
    """Trains, or goes on with what the work directory holds.

    Args:
      config: a validated config.
      directory: the work directory.
      overwrite: start afresh in a directory that holds another run.
      command: the command line, to be kept in `config.json`.

    Returns:
      The summary, as in `summary.json`.

    Raises:
      UserError: the config, the data and the directory do not go together.
      RunError: training diverged, or a checkpoint is damaged.
      Stopped: on SIGINT or SIGTERM, after saving.
    """
    hosts = Hosts()
    hosts.agree("config", workdir.as_json(config))
    finished = hosts.from_first(lambda: _check(directory, config, overwrite))
    if finished is not None:
        return finished
    cache = config.compile_cache
    compile_cache.set_up(cache.enabled, cache.dir, cache.max_mb)
    with stop_signals() as stop:
        return _train(config, directory, overwrite, command, hosts, stop)


def _check(
    directory: Path, config: config_dict.ConfigDict, overwrite: bool
) -> dict[str, Any] | None:
    """Raises for a work directory that cannot be used; the summary of a run that is done."""
    workdir.check(directory, config, overwrite)
    # A finished run whose model was removed goes on to its end, where the model is made again.
    finished = (directory / SUMMARY).exists() and (directory / best_model.DIRECTORY).exists()
    return _finished(directory / SUMMARY) if finished and not overwrite else None


def _train(
    config: config_dict.ConfigDict,
    directory: Path,
    overwrite: bool,
    command: str,
    hosts: Hosts,
    stop: list[int],
) -> dict[str, Any]:
    dataset = blueprint_lib.load_data(config)
    blueprint_lib.check_data(config, dataset)
    plan = blueprint_lib.make(config, len(dataset.class_names), len(dataset.train))
    barter = blueprint_lib.make_barter(config, plan)
    tx = optimizer.make_checked(
        config.optimizer, plan.total_steps, state_lib.abstract_params(plan, plan.initial), barter
    )
    placement = Placement(
        {
            "train.batch_size": config.train.batch_size,
            "train.eval_batch_size": config.train.eval_batch_size,
            "train.batch_size/train.micro_batches": config.train.batch_size
            // config.train.micro_batches,
        }
    )
    identity = dataset.identity()
    hosts.agree("data set", identity)
    dataset = cached(dataset, blueprint_lib.load_size(config), config.data.cache_mb)
    fitted = None
    if overwrite or not (directory / "checkpoints").exists():
        # Before the work directory is claimed: a mistake must leave nothing that counts as a run.
        fitted = start.read(config, plan, dataset.class_names, identity)
    with contextlib.ExitStack() as stack:
        about = {
            "total_steps": plan.total_steps,
            "host": environment.describe(config.model.dtype, None),
            **({"command": command} if command else {}),
        }
        claim = workdir.claimed(directory, config, overwrite, about)
        hosts.from_first(lambda: stack.enter_context(claim))
        run = Run(
            Job(config, directory, plan, barter, tx, placement, dataset, identity, hosts, fitted)
        )
        stack.enter_context(contextlib.closing(run))
        return run.run(stop)


def _finished(file: Path) -> dict[str, Any]:
    """The summary of a run that is done already."""
    try:
        summary = json.loads(file.read_text())
    except ValueError as error:
        raise UserError(f"{file} cannot be read: remove it, and it is written again") from error
    log.info("%s is finished; nothing is left to do", file.parent)
    return summary


class Run:
    """One run: device state, host bookkeeping, and what the first process writes."""

    def __init__(self, job: Job):
        self.job = job
        self.config, self.directory, self.plan = job.config, job.directory, job.plan
        self.barter, self.tx, self.placement = job.barter, job.tx, job.placement
        self.dataset, self.hosts = job.dataset, job.hosts
        self.shapes = Shapes(
            functools.partial(
                compile_entry,
                config=job.config,
                blueprint=job.plan,
                barter=job.barter,
                tx=job.tx,
                placement=job.placement,
            ),
            job.plan.schedule,
            capacity=job.config.executables.capacity,
            ahead=job.config.executables.ahead,
            seconds_until=self._seconds_until,
        )
        self.cache_counter = compile_cache.Counter()
        self.learning_rate = jax.jit(
            optimizer.learning_rate(job.config.optimizer, job.plan.total_steps)
        )
        root = jax.random.key(job.config.seed)
        self.train_key = job.placement.replicate(jax.random.fold_in(root, 1))
        self.inputs = Inputs(job.config, job.dataset, job.placement, jax.random.fold_in(root, 2))
        self.checkpoints = None
        if job.hosts.first:
            keep = job.config.checkpoint.keep
            self.checkpoints = Checkpoints(job.directory / "checkpoints", keep)
        origin = origin_lib.find(job, self.checkpoints, self.inputs)
        self.step, self.updates, self.progress = origin.step, origin.updates, origin.progress
        self.best, self.latest = origin.best, origin.latest
        self.window, self.clock, self.state = origin.window, origin.clock, origin.state
        self.journal = Journal(job, origin.step)
        self.clock.book("start")
        self._resumed_at = self._saved_at = origin.step
        spent = self.clock.seconds()
        self._step_seconds = spent["step"]
        # Without compiling, which does not go on at the rate of the first steps.
        self._before = sum(spent.values()) - spent["compile"]
        self._logged_at, self._logged_steps = self._step_seconds, origin.step

    # --- the loop --------------------------------------------------------------------------

    def run(self, stop: list[int]) -> dict[str, Any]:
        """Trains to the end; returns the summary."""
        total = self.plan.total_steps
        self._greet()
        self.clock.book("start")
        number = self._stopped_by(stop)
        if number and self.step < total:
            raise Stopped(number)  # nothing has been done that is not saved
        if self.step < total:
            entry, _ = self._compiled()
        while self.step < total:
            # Before the update: where it fails, what is saved must not hold the update already.
            batch = self._next_batch()
            if self.barter.due(self.step, self.progress):
                entry = self.update_topology()
            # The first call compiles it.
            first = self.step == self._resumed_at
            with self.clock.charge("compile") if first else contextlib.nullcontext():
                images, targets = self.inputs.prepare(self.step, batch)
            self.state, values = entry.train(self.state, images, targets, self.train_key)
            self.step += 1
            self.window.append(values)
            self.journal.console.advance()
            last = self.step == total
            number = self._stopped_by(stop)  # once: a signal may come between two looks
            stopping = bool(number)
            improved = False
            if self.step % self.config.log.every_steps == 0 or last:
                self.log_training()
            if self.step % self.plan.eval_every_steps == 0 or last:
                improved = self.evaluate(entry)
            if self.step % self.plan.checkpoint_every_steps == 0 or improved or last or stopping:
                self.checkpoint()
            if stopping and not last:
                self._wait_for_saves()
                self.journal.say(f"saved at step {self.step}; the same command goes on from here")
                raise Stopped(number)
            if self.step in self.shapes.looks:
                self.look_ahead(self.shapes.looks[self.step])
            self.shapes.collect(self.progress.physical)
        return self.finish()

    def _next_batch(self) -> dict[str, jax.Array]:
        try:
            with self.clock.charge("data"):
                return self.inputs.next()
        except UserError as error:
            # An image that cannot be read: once it is mended, the run goes on from here.
            if self.hosts.count > 1:
                raise AloneError(2, str(error)) from error
            if self.step > self._saved_at:
                self.checkpoint()
                self.checkpoints.wait()
                self.journal.say(f"saved at step {self.step}")
            raise

    def close(self) -> None:
        """Waits for saves and closes files."""
        self.shapes.close()
        self.inputs.close()
        if self.checkpoints:
            self.checkpoints.close()
        self.journal.close()

    def _stopped_by(self, stop: list[int]) -> int:
        """The signal that asks to stop after this step, or 0; the same in every process.

        Several processes ask each other at the steps of the log only, since all wait for it.
        """
        number = stop[0] if stop else 0
        if self.hosts.count == 1:
            return number
        if self.step % self.config.log.every_steps:
            return 0
        jax.block_until_ready(self.state)
        return self.hosts.largest(number)

    def _wait_for_saves(self) -> None:
        """Waits until what has been saved is there, in every process."""
        self.hosts.from_first(lambda: self.checkpoints.wait())

    def _greet(self) -> None:
        parameters = accounting.parameters(self.plan.dims, self.progress.topology)
        dense = accounting.parameters(self.plan.dims, self.plan.dims.dense)
        self.journal.say(
            f"{self.config.model.name}, {self.config.method} at density {self.config.density:g}: "
            f"{parameters:,} of {dense:,} parameters, {counts(self.progress.topology)}"
        )
        self.journal.say(
            f"{len(self.dataset.train):,} training, {len(self.dataset.validation):,} validation "
            f"and {len(self.dataset.test):,} test images, {len(self.dataset.class_names)} classes; "
            f"{self.plan.total_steps:,} steps, {len(self.plan.schedule)} topology updates; "
            f"on {jax.devices()[0].platform} x{self.placement.devices}"
            f"{f' in {self.hosts.count} processes' if self.hosts.count > 1 else ''}"
        )
        for unit in self.plan.stuck_units():
            self.journal.say(f"no {unit} can move: no layer has room for more, or there is but one")
        if self.plan.masked and not len(self.plan.masked.schedule.updates):
            self.journal.say(
                f"no change of the masks falls within the {self.plan.total_steps} steps: lower "
                f"config.masked.every_steps={self.plan.masked.schedule.every} if some should"
            )
        if self.step:
            self.journal.say(f"going on from step {self.step} of {self.directory}")

    def _compiled(self) -> tuple[Entry, bool]:
        """The compiled steps of the topology now, and whether they were ready."""
        with self.clock.charge("compile"):
            if not len(self.shapes):
                self.journal.say("compiling the training step ...")
            return self.shapes.take(self.progress.physical)

    # --- topology --------------------------------------------------------------------------

    def _with_scores(self, ask: Callable[..., Any], step: int) -> Any:
        """`barter.decide` or `barter.foresee` for an update, on the scores now."""
        try:
            return ask(self.state.units, self.progress, step)
        except FloatingPointError as error:
            raise diverged(self.step, str(error)) from error

    def look_ahead(self, update: int) -> None:
        """Has the shapes compiled that the update at a step would need if it came now.

        Not where the compiler would hardly have begun by then: it would only take the processor
        from the training, for a shape that may be the wrong one.
        """
        # Steps that are only queued yet would make the rate look too good, and be waited for below.
        jax.block_until_ready(self.state)
        if self.shapes.worthwhile(update):
            with self.clock.charge("update"):
                likely = self._with_scores(self.barter.foresee, update)
                self.shapes.request(likely, self.step)

    def _seconds_until(self, step: int) -> float:
        """How long the steps up to a later one will take, at the rate of this process so far."""
        spent = self.clock.seconds()["step"] - self._step_seconds
        return (step - self.step) * spent / (self.step - self._resumed_at)

    def update_topology(self) -> Entry:
        """Decides on the running scores, resizes everything, switches to the new shapes.

        Returns:
          The compiled steps for the new topology.
        """
        jax.block_until_ready(self.state)
        before = self.clock.seconds()
        with self.clock.charge("update"):
            decision = self._with_scores(self.barter.decide, self.step)
            found = score_quantiles(
                self.state.units,
                self.progress.topology,
                decay=self.barter.decay,
                priority=self.barter.priority,
            )
            if decision.plans:
                resized = self.barter.apply(
                    decision, self.state.params, self.state.opt_state, self.state.units, self.tx
                )
                ema = self.state.ema
                if ema is not None:
                    ema = self.barter.apply_to_parameters(decision, ema)
                self.state = TrainState(self.state.step, *self.placement.replicate((*resized, ema)))
                self.updates += 1
            self.progress = decision.after
        entry, ready = self._compiled()
        self.hosts.agree("topology", self.progress.to_json())
        after = self.clock.seconds()
        compile_seconds = after["compile"] - before["compile"]
        stall = compile_seconds + after["update"] - before["update"]
        for row in records.topology_rows(decision, self.barter.due(self.step)):
            self.journal.topology(
                {
                    **row,
                    "scores": found[row["unit"]],
                    "compile_seconds": round(compile_seconds, 4),
                    "stall_seconds": round(stall, 4),
                    "compiled_ahead": ready,
                }
            )
        moved = ", ".join(
            f"{p.amount} {p.unit} from layers {sorted({d for d, _ in p.donors})} to {p.receiver}"
            for p in decision.plans
        )
        self.journal.say(
            f"topology update at step {self.step}: {moved or 'nothing moves'} "
            f"({counts(self.progress.topology)}; {stall:.2f} s stall"
            f"{'' if ready else ', not compiled ahead'})"
        )
        return entry

    # --- measuring -------------------------------------------------------------------------

    def log_training(self) -> None:
        """Writes the means over the steps since the last line."""
        values = self.window.close(self.step)
        # The window is fetched, so the device has done all of its steps.
        seconds = self.clock.seconds()["step"]
        steps = self.step - self._logged_steps
        elapsed = max(seconds - self._logged_at, 1e-9)
        self._logged_at, self._logged_steps = seconds, self.step
        values["learning_rate"] = float(self.learning_rate(self.step))
        values["images_per_second"] = steps * self.config.train.batch_size / elapsed
        self.journal.metrics(self.step, "train", values)
        spent = self.clock.seconds()
        per_step = (sum(spent.values()) - spent["compile"] - self._before) / (
            self.step - self._resumed_at
        )
        left = per_step * (self.plan.total_steps - self.step)
        self.journal.console.train(self.step, values, self.progress.topology, left)

    def evaluate(self, entry: Entry) -> bool:
        """Measures on the validation split; keeps the model if it is the best so far."""
        jax.block_until_ready(self.state)
        self.window.fetch(self.step)  # tells the step at which a loss was not finite, if one was
        with self.clock.charge("evaluation"):
            found = [
                self.placement.queued(entry.evaluate(self.state.averaged, *batch))
                for batch in self.inputs.validation()
            ]
            values = metrics.summarise(jax.device_get(found))
            if not np.isfinite(values["loss"]):
                raise diverged(self.step, f"the validation loss is {values['loss']}")
            self.latest = Evaluation(self.step, values)
            improved = self.latest.accuracy > self.best.accuracy
            if improved:
                self.best = self.latest
                self._write_model(self.state, self.progress.topology)
        self.journal.metrics(self.step, "validation", values)
        self.journal.say(
            f"step {self.step}  validation loss {values['loss']:.4f}  accuracy "
            f"{values['accuracy']:.4f}  macro-F1 {values['macro_f1']:.4f}"
            f"{'  (best so far)' if improved else ''}"
        )
        return improved

    # --- saving ----------------------------------------------------------------------------

    def _unpadded(self) -> TrainState:
        """The state without padding, as numpy copies that no later step can touch."""
        topology = self.progress.topology
        state = state_lib.repad(self.state, self.barter, self.tx, topology, topology)
        return jax.tree.map(lambda x: np.array(x, copy=True), state)

    def checkpoint(self) -> None:
        """Starts to save everything that a resume needs."""
        jax.block_until_ready(self.state)
        with self.clock.charge("checkpoint"):
            window = self.window.fetch(self.step)
            state = self._unpadded()
            # The loss of a step is that before it; what the step made of the state shows here.
            for name, leaf in named_leaves(state).items():
                if not np.all(np.isfinite(leaf)):
                    raise diverged(self.step, f"{name} is not finite")
        self._saved_at = self.step
        if not self.checkpoints:
            return
        self.checkpoints.save(
            state,
            Bookkeeping(
                step=self.step,
                progress=self.progress,
                data=self.inputs.get_state(),
                best=self.best,
                latest=self.latest,
                window=window,
                seconds=self.clock.seconds(),
                updates=self.updates,
                config=workdir.as_json(self.config),
                dataset=self.job.identity,
            ),
        )

    def _write_model(self, state: TrainState, topology: Topology) -> None:
        if not self.hosts.first:
            return
        best_model.write(
            self.directory,
            self.config,
            self.plan,
            self.dataset.class_names,
            self.best,
            topology,
            state,
            self.job.identity,
        )

    def finish(self) -> dict[str, Any]:
        """Measures the best model on the test split, from its file, and writes the summary."""
        return self.hosts.from_first(self._finish)

    def _finish(self) -> dict[str, Any]:
        with self.clock.charge("checkpoint"):
            self.checkpoints.wait()
            if not best_model.is_there(self.directory, self.best):
                books = self.checkpoints.read_bookkeeping(self.best.step)
                topology = books.progress.topology
                state = self.checkpoints.restore(
                    self.best.step, state_lib.abstract(self.plan, self.tx, topology)
                )
                self._write_model(state, topology)
        with self.clock.charge("evaluation"):
            model = compact.load(self.directory)
            test = deployed.evaluate(model, self.dataset.test, self.config.data.threads)
        self.journal.metrics(self.step, "test", test)
        summary = records.summary(
            self.plan,
            self.progress,
            model.card,
            self.latest,
            steps=self.step,
            test=test,
            updates=self.updates,
            compiled={**self.shapes.totals(), **self.cache_counter.totals()},
            seconds=self.clock.seconds(),
        )
        write_json(self.directory / SUMMARY, summary)
        for unit, planned in summary["planned"].items():
            if summary["moved"][unit] < planned:
                self.journal.say(f"moved {summary['moved'][unit]} of the {planned} planned {unit}")
        self.journal.say(f"waited for data {summary['data_wait']:.1%} of the training time")
        compiled = summary["compiled"]
        if compiled["cache_hits"] or compiled["cache_misses"]:
            self.journal.say(
                f"compiled code: {compiled['cache_misses']} compiled, "
                f"{compiled['cache_hits']} loaded from {jax.config.jax_compilation_cache_dir} "
                f"({max(compiled['cache_seconds_saved'], 0):.0f} s saved)"
            )
        self.journal.say(
            f"best at step {self.best.step}: validation accuracy {self.best.accuracy:.4f}, test "
            f"accuracy {test['accuracy']:.4f}, macro-F1 {test['macro_f1']:.4f}; {model!r} in "
            f"{self.directory / 'model'}"
        )
        return summary
