"""A run interrupted anywhere and started again gives the same bits as one that never was."""

import functools
import json
import signal
import time

import numpy as np
import pytest

from barter_jax import blueprint as blueprint_lib
from barter_jax.core.barter import Progress
from barter_jax.data.pipeline import train_batches
from barter_jax.deploy import evaluate as deployed
from barter_jax.deploy import model as compact
from barter_jax.errors import UserError
from barter_jax.training import loop
from barter_jax.training.checkpoint import Checkpoints, named_leaves
from barter_jax.training.inputs import Inputs
from barter_jax.training.signals import Stopped
from barter_jax.training.writers import JsonLines
from tests.data import helpers
from tests.training import commands, tiny
from tests.training.tiny import ONE_SHAPE, STEPS, UPDATES_AT, Crash

MAIN = "barter_jax.main"


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """What the tiny run comes to when nobody disturbs it."""
    directory = tmp_path_factory.mktemp("unbroken")
    tiny.train(tiny.config(), directory)
    return tiny.outcome(tiny.config(), directory)


def test_the_run_that_is_broken_below_is_worth_it(unbroken):
    """Its updates move heads and channels, and what follows depends on all that is saved."""
    assert [(r["step"], r["unit"], r["moved"]) for r in unbroken["topology"]] == [
        (3, "heads", 1),
        (3, "channels", 3),
        (8, "heads", 1),
        (8, "channels", 2),
    ]
    counts = [json.dumps(row["counts"]) for row in unbroken["topology"]]
    assert len(set(counts)) == 2
    steps = [(row["split"], row["step"]) for row in unbroken["metrics"]]
    assert steps == [
        ("validation", 4),
        ("train", 5),
        ("validation", 8),
        ("train", 10),
        ("train", 12),
        ("validation", 12),
        ("test", 12),
    ]


def test_the_same_config_gives_the_same_bits_and_another_seed_others(
    unbroken, tmp_path, monkeypatch
):
    tiny.train(tiny.config(), tmp_path / "again")
    tiny.assert_same(tiny.outcome(tiny.config(), tmp_path / "again"), unbroken)
    parameters = []
    for seed in (0, 1):
        # Up to where their topologies part, so that nothing new is compiled.
        config, directory = tiny.config(seed=seed), tmp_path / str(seed)
        crash_at_update(config, directory, monkeypatch, 1)
        state, books = tiny.saved(config, directory)
        assert books.step == UPDATES_AT[0]
        parameters.append(named_leaves(state.params))
    assert any(np.any(parameters[0][name] != parameters[1][name]) for name in parameters[0])


@pytest.mark.parametrize("step", [0, 2, 5, 8, 11])
def test_interrupted_before_each_step(step, unbroken, tmp_path, monkeypatch):
    tiny.crash_on_call(monkeypatch, Inputs, "next", step + 1)
    resumed_is_same(unbroken, tmp_path)


def at(step):
    """Calls of a method of the run once so many steps are done."""
    return lambda run, *_: run.step == step


# What raises, at which of its calls: each of these stands for being killed there.
PLACES = {
    "deciding an update": (loop.Run, "update_topology", 1, at(8)),
    "compiling for an update": (loop.Run, "_compiled", 1, at(3)),
    "writing the second row of an update": (JsonLines, "write", 2),
    "between an update and its step": (Inputs, "prepare", 1, lambda _, step, *__: step == 8),
    "after the best model, before its metrics": (JsonLines, "write", 3),
    "writing the best model": (compact, "save", 1),
    "saving after the best evaluation": (loop.Run, "checkpoint", 1, at(4)),
    "saving at the step of an update": (loop.Run, "checkpoint", 1, at(3)),
    "evaluating at the step of an update": (loop.Run, "evaluate", 1, at(8)),
    "logging": (loop.Run, "log_training", 1, at(10)),
    "saving at the end": (loop.Run, "checkpoint", 1, at(STEPS)),
    "testing": (deployed, "evaluate", 1),
    "writing the summary": (loop, "write_json", 1),
}


@pytest.mark.parametrize("place", PLACES)
def test_interrupted_in_the_middle_of_things(place, unbroken, tmp_path, monkeypatch):
    tiny.crash_on_call(monkeypatch, *PLACES[place])
    resumed_is_same(unbroken, tmp_path)


def resumed_is_same(unbroken, directory):
    config = tiny.config()
    with pytest.raises(Crash):
        tiny.train(config, directory)
    assert not (directory / "summary.json").exists()
    tiny.train(config, directory)
    tiny.assert_same(tiny.outcome(config, directory), unbroken)


def test_interrupted_again_and_again(unbroken, tmp_path):
    """Every process takes two steps or three; no checkpoint is of use to more than one."""
    config, started = tiny.config(), 0
    while not (tmp_path / "summary.json").exists():
        started += 1
        with pytest.MonkeyPatch.context() as patch:
            tiny.crash_on_call(patch, Inputs, "next", 4)
            try:
                tiny.train(config, tmp_path)
            except Crash:
                pass
        assert started < 9
    assert started >= 4
    tiny.assert_same(tiny.outcome(config, tmp_path), unbroken)


@pytest.mark.parametrize(
    "number, step",
    [(signal.SIGINT, 1), (signal.SIGTERM, 4), (signal.SIGINT, 8), (signal.SIGTERM, 9)],
)
def test_stopped_by_a_signal(number, step, unbroken, tmp_path, monkeypatch):
    """The step under way is finished and saved, even where nothing is due."""
    original = Inputs.next
    calls = 0

    def next_batch(self):
        nonlocal calls
        calls += 1
        if calls == step:
            signal.raise_signal(number)
        return original(self)

    monkeypatch.setattr(Inputs, "next", next_batch)
    with pytest.raises(Stopped) as stopped:
        tiny.train(tiny.config(), tmp_path)
    assert stopped.value.exit_code == 128 + number
    assert tiny.saved(tiny.config(), tmp_path)[1].step == step
    # The handlers that were there before are back.
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    tiny.train(tiny.config(), tmp_path)
    tiny.assert_same(tiny.outcome(tiny.config(), tmp_path), unbroken)


def test_a_signal_during_the_last_step_lets_the_run_finish(unbroken, tmp_path, monkeypatch):
    original = loop.Run.evaluate

    def evaluate(self, *args):
        if self.step == STEPS:
            signal.raise_signal(signal.SIGTERM)
        return original(self, *args)

    monkeypatch.setattr(loop.Run, "evaluate", evaluate)
    tiny.train(tiny.config(), tmp_path)
    tiny.assert_same(tiny.outcome(tiny.config(), tmp_path), unbroken)


def test_a_signal_between_the_two_looks_at_it_is_not_answered_without_saving(tmp_path, monkeypatch):
    """A signal may come when it has just been decided that there is nothing to save."""

    class Late(list):
        looks = 0

        def __bool__(self):
            Late.looks += 1
            return Late.looks > 1

    original = loop.Run.run
    monkeypatch.setattr(loop.Run, "run", lambda self, stop: original(self, Late([signal.SIGTERM])))
    with pytest.raises(Stopped):
        tiny.train(tiny.config(), tmp_path)
    written = tiny.saved(tiny.config(), tmp_path)[1].step
    # It was asked to stop at step 1 or 2; had it gone on, it would not have raised so early.
    assert written in (1, 2)


def test_a_second_signal_does_not_wait(tmp_path, monkeypatch):
    original = Inputs.next

    def next_batch(self):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        return original(self)

    monkeypatch.setattr(Inputs, "next", next_batch)
    with pytest.raises(KeyboardInterrupt):
        tiny.train(tiny.config(), tmp_path)


# --- real processes ----------------------------------------------------------------------------


def command(directory, *overrides):
    return MAIN, f"--config={tiny.CONFIG_FILE}", f"--workdir={directory}", *overrides


EVERY_STEP = "--config.log.every_steps=1"


def wait_until(process, happened, timeout=60):
    """Returns whether it happened while the process ran."""
    end = time.monotonic() + timeout
    while process.running and time.monotonic() < end:
        if happened():
            return True
        time.sleep(0.001)
    return False


@pytest.mark.slow
def test_killed_again_and_again(tmp_path):
    """SIGKILL while compiling, stepping, saving and updating the topology."""
    config = tiny.config(log__every_steps=1)
    tiny.train(config, tmp_path / "unbroken")  # Compiles what the processes load.
    directory = tmp_path / "killed"

    def saving(step):
        """The directory of a checkpoint, or of one that is not complete yet, has appeared."""
        return any(p.name.startswith(str(step)) for p in (directory / "checkpoints").iterdir())

    moments = [
        lambda process: "compiling" in process.stderr,
        lambda process: (directory / "checkpoints").exists() and saving(3),
        lambda process: "topology update at step 3" in process.stderr,
        lambda process: "step 6/12" in process.stderr,
        lambda process: "topology update at step 8" in process.stderr,
    ]
    killed = 0
    for happened in moments:
        with commands.started(*command(directory, EVERY_STEP)) as process:
            if wait_until(process, functools.partial(happened, process)):
                process.send(signal.SIGKILL)
            killed += process.wait().code == -signal.SIGKILL
    assert killed >= 4
    result = commands.run(*command(directory, EVERY_STEP))
    assert result.code == 0, result.stderr
    tiny.assert_same(tiny.outcome(config, directory), tiny.outcome(config, tmp_path / "unbroken"))


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_command_that_is_stopped_saves_and_says_so(number, code, unbroken, tmp_path):
    with commands.started(*command(tmp_path)) as process:
        # Compiling for the second update leaves time.
        assert wait_until(process, lambda: "topology update at step 3" in process.stderr)
        process.send(number)
        result = process.wait()
    assert result.code == code, result.stderr
    assert "Traceback" not in result.stderr
    step = tiny.saved(tiny.config(), tmp_path)[1].step
    assert f"saved at step {step}" in result.stderr
    tiny.train(tiny.config(), tmp_path)
    tiny.assert_same(tiny.outcome(tiny.config(), tmp_path), unbroken)


def test_a_finished_run_is_left_as_it_is(tmp_path):
    tiny.train(tiny.config(), tmp_path)
    before = tiny.snapshot(tmp_path)
    result = commands.run(*command(tmp_path))
    assert result.code == 0
    assert "finished" in result.stderr
    assert tiny.snapshot(tmp_path) == before


# --- with another config -----------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path):
    """A folder of 24 images of 8x8 pixels, and a config that decodes them as they come."""
    root = tmp_path / "photos"
    files = {}
    for i in range(24):
        split = "test" if i < 4 else "train"
        files[f"{split}/{'ab'[i % 2]}/{i:02}.png"] = helpers.encode(helpers.noise(i, 8))
    helpers.write(root, files)
    config = tiny.config(
        data__name="folder",
        data__dir=str(root),
        data__validation_fraction=0.2,
        data__cache_mb=0,
        data__threads=0,
        train__batch_size=2,
        checkpoint__every_steps=100,
        train__eval_every_steps=100,
        **ONE_SHAPE,
    )
    return root, config


def crash_at_update(config, directory, monkeypatch, number):
    with monkeypatch.context() as patch:
        tiny.crash_on_call(patch, loop.Run, "update_topology", number)
        with pytest.raises(Crash):
            tiny.train(config, directory)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda root: (root / "train/a/10.png").unlink(), "16 then and 15 now .train."),
        (lambda root: (root / "train/a/10.png").rename(root / "train/a/98.png"), "but others"),
        (lambda root: (root / "test/a/02.png").unlink(), "4 then and 3 now .test."),
    ],
)
def test_other_data_is_refused(change, said, photos, tmp_path, monkeypatch):
    """What was held out for validation would be trained on, without a word."""
    root, config = photos
    config.checkpoint.every_steps = 2
    crash_at_update(config, tmp_path / "run", monkeypatch, 2)
    before = tiny.snapshot(tmp_path / "run" / "checkpoints")
    change(root)
    with pytest.raises(UserError, match=said):
        tiny.train(config, tmp_path / "run")
    assert tiny.snapshot(tmp_path / "run" / "checkpoints") == before


@pytest.mark.parametrize("batch", [2, UPDATES_AT[0] + 1])
def test_an_unreadable_image_loses_no_step(batch, photos, tmp_path):
    """Mended, the same command goes on to the same bits; so too where an update is due."""
    root, config = photos
    tiny.train(config, tmp_path / "whole")
    order = train_batches(
        helpers.numbered(16), batch_size=2, seed=config.seed, num_threads=0, prefetch=0
    )
    # Its second image: the first one of batch 2 is the data set's, which is looked at beforehand.
    index = [next(order)["label"] for _ in range(batch + 1)][batch][1]
    train = blueprint_lib.load_data(config).train
    damaged = root / train._source._names[train._indices[index]]
    content = damaged.read_bytes()
    damaged.write_bytes(content[:40])
    with pytest.raises(UserError, match=damaged.name):
        tiny.train(config, tmp_path / "run")
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints", 1)
    saved = checkpoints.latest_step()
    checkpoints.close()
    # One batch is read ahead.
    assert saved == batch - 1
    damaged.write_bytes(content)
    tiny.train(config, tmp_path / "run")
    models = [tmp_path / run / "model/model.safetensors" for run in ("run", "whole")]
    assert models[0].read_bytes() == models[1].read_bytes()
    metrics = [
        [
            tiny.without(row, "images_per_second")
            for row in tiny.rows(tmp_path / run, "metrics.jsonl")
        ]
        for run in ("run", "whole")
    ]
    assert metrics[0] == metrics[1]
    topology = [
        [
            tiny.without(row, "compile_seconds", "stall_seconds", "compiled_ahead")
            for row in tiny.rows(tmp_path / run, "topology.jsonl")
        ]
        for run in ("run", "whole")
    ]
    assert topology[0] == topology[1]


def test_another_seed_is_refused(tmp_path, monkeypatch):
    tiny.crash_on_call(monkeypatch, Inputs, "next", 5)
    with pytest.raises(Crash):
        tiny.train(tiny.config(), tmp_path)
    before = tiny.snapshot(tmp_path)
    with pytest.raises(UserError, match="seed is 0 there and 1 here"):
        tiny.train(tiny.config(seed=1), tmp_path)
    assert tiny.snapshot(tmp_path) == before


@pytest.mark.parametrize("first, then", [((1, 1), (4, 12)), ((4, 12), (1, 1))])
def test_another_bucket_goes_on_to_much_the_same(first, then, unbroken, tmp_path, monkeypatch):
    """Checkpoints hold no padding, so any bucket can take over."""
    tiny.crash_on_call(monkeypatch, Inputs, "next", 6)
    before = tiny.config(bucket__heads=first[0], bucket__channels=first[1])
    with pytest.raises(Crash):
        tiny.train(before, tmp_path)
    state, books = tiny.saved(before, tmp_path)
    assert books.step == 4
    for i in range(2):
        block = state.params[f"block_{i}"]
        heads, channels = (books.progress.topology.of(unit)[i] for unit in ("heads", "channels"))
        assert block["attention"]["query"]["kernel"].shape[1] == heads
        assert block["mlp"]["fc1"]["kernel"].shape == (16, channels)
        assert state.units.pruning["channels"][i].shape == (channels,)
        assert state.units.born["heads"][i].shape == (heads,)
    assert not any(np.all(leaf == 0) for leaf in state.units.pruning["channels"])
    after = tiny.config(bucket__heads=then[0], bucket__channels=then[1])
    tiny.train(after, tmp_path)
    tiny.assert_close(tiny.outcome(after, tmp_path), unbroken)
    resolved = json.loads((tmp_path / "config.json").read_text())["config"]["bucket"]
    assert resolved == {"heads": then[0], "channels": then[1], "waste": 0.0}


# A layer keeps its padding while it has use for a third of it.
KEEPING = {"bucket__channels": 2, "bucket__waste": 0.6}


def padded(directory):
    return {r["step"]: r["padded"]["channels"] for r in tiny.rows(directory, "topology.jsonl")}


@pytest.fixture(scope="module")
def unbroken_keeping(tmp_path_factory):
    """The work directory and the outcome of the run that keeps padding."""
    directory = tmp_path_factory.mktemp("keeping")
    tiny.train(tiny.config(**KEEPING), directory)
    return directory, tiny.outcome(tiny.config(**KEEPING), directory)


def test_padding_is_kept_and_changes_little(unbroken_keeping, unbroken):
    directory, outcome = unbroken_keeping
    rows = tiny.rows(directory, "topology.jsonl")
    plain = {row["step"]: [n + n % 2 for n in row["counts"]["channels"]] for row in rows}
    assert padded(directory)[3] != plain[3], "nothing was kept, so nothing is tested below"
    tiny.assert_close(outcome, unbroken)


@pytest.mark.parametrize("step", [2, 5, 9])
def test_kept_padding_is_kept_over_an_interruption(step, unbroken_keeping, tmp_path, monkeypatch):
    config = tiny.config(**KEEPING)
    directory, outcome = unbroken_keeping
    tiny.crash_on_call(monkeypatch, Inputs, "next", step + 1)
    with pytest.raises(Crash):
        tiny.train(config, tmp_path)
    tiny.train(config, tmp_path)
    tiny.assert_same(tiny.outcome(config, tmp_path), outcome)
    assert outcome["books"]["progress"]["physical"]["channels"] == padded(directory)[8]


def test_padding_kept_under_another_bucket_is_given_up(tmp_path, monkeypatch, unbroken):
    tiny.crash_on_call(monkeypatch, Inputs, "next", 6)
    with pytest.raises(Crash):
        tiny.train(tiny.config(**KEEPING), tmp_path)
    after = tiny.config()
    tiny.train(after, tmp_path)
    tiny.assert_close(tiny.outcome(after, tmp_path), unbroken)
    rows = tiny.rows(tmp_path, "topology.jsonl")
    assert [row["padded"] == row["counts"] for row in rows] == [False, False, True, True]


def test_a_checkpoint_that_tells_no_padding_is_padded_anew(tmp_path, monkeypatch):
    """As an older version wrote it."""
    config = tiny.config(**ONE_SHAPE)
    tiny.train(config, tmp_path / "kept")
    to_json = Progress.to_json
    monkeypatch.setattr(Progress, "to_json", lambda self: tiny.without(to_json(self), "physical"))
    tiny.crash_on_call(monkeypatch, Inputs, "next", 6)
    with pytest.raises(Crash):
        tiny.train(config, tmp_path / "broken")
    monkeypatch.undo()
    assert "physical" not in json.dumps(stored_progress(tmp_path / "broken"))
    tiny.train(config, tmp_path / "broken")
    wanted = tiny.outcome(config, tmp_path / "kept")
    tiny.assert_same(tiny.outcome(config, tmp_path / "broken"), wanted)


def stored_progress(directory):
    checkpoints = Checkpoints(directory / "checkpoints", 1)
    try:
        return checkpoints._content(checkpoints.latest_step())["bookkeeping"]["progress"]
    finally:
        checkpoints.close()


def test_a_checkpoint_has_all_that_the_state_has(tmp_path):
    tiny.train(tiny.config(), tmp_path)
    state, books = tiny.saved(tiny.config(), tmp_path)
    names = set(named_leaves(state))
    for part in ("step", "params.cls_token", "units.observed", "units.growth.heads.0"):
        assert part in names
    assert sum(".mu." in name for name in names) == len(named_leaves(state.params))
    assert sum(".nu." in name for name in names) == len(named_leaves(state.params))
    assert (int(state.step), int(state.units.observed), books.step) == (STEPS,) * 3
    born = np.concatenate([*state.units.born["channels"], *state.units.born["heads"]])
    assert {step for step in born if step >= 0} <= set(UPDATES_AT)
    assert (born >= 0).any()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_first_step_ends_in_order(number, unbroken, tmp_path, monkeypatch):
    """Nothing has been done by then, so nothing is compiled or saved for its sake."""
    original = loop.Run.__init__

    def start(self, *args):
        original(self, *args)
        signal.raise_signal(number)

    monkeypatch.setattr(loop.Run, "__init__", start)
    monkeypatch.setattr(loop, "compile_entry", lambda *_, **__: pytest.fail("it compiles"))
    with pytest.raises(Stopped) as stopped:
        loop.train(tiny.config(), tmp_path, False)
    assert stopped.value.exit_code == 128 + number
    monkeypatch.undo()
    tiny.train(tiny.config(), tmp_path)
    tiny.assert_same(tiny.outcome(tiny.config(), tmp_path), unbroken)
