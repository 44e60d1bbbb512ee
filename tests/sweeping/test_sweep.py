"""A sweep runs what is not done, records what fails, and goes on after an interruption."""

import fcntl
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from barter_jax.sweeping import grid, runner, status
from barter_jax.sweeping.status import Paths
from barter_jax.training.signals import Stopped
from tests.training import commands, tiny

SWEEP = "barter_jax.sweep"


def sweep(directory, *flags, **how):
    return commands.run(SWEEP, *arguments(directory, *flags), **how)


def arguments(directory, *flags):
    steps = ("--config.train.steps=2", "--config.topology.updates=0")
    return [f"--config={tiny.CONFIG_FILE}", f"--workdir={directory}", *steps, *flags]


def test_one_command_runs_the_grid_records_a_failure_and_skips_what_is_done(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "static-0.4-seed0").write_text("in the way")
    flags = ("--methods=static", "--densities=0.4,0.5", "--json")
    first = sweep(tmp_path / "s", *flags)
    assert first.code == 1, first.stderr
    failed, done = json.loads(first.stdout)["runs"]
    assert failed["state"] == "failed" and failed["exit_code"] == 2
    assert "static-0.4-seed0" in failed["error"]
    assert done["state"] == "done" and 0 <= done["accuracy"] <= 1
    summary = json.loads((tmp_path / "s" / "static-0.5-seed0" / "summary.json").read_text())
    assert done["accuracy"] == summary["test"]["accuracy"]
    before = tiny.snapshot(tmp_path / "s" / "static-0.5-seed0")

    again = sweep(tmp_path / "s", *flags)
    assert again.code == 1 and "static-0.5-seed0: done already" in again.stderr
    assert tiny.snapshot(tmp_path / "s" / "static-0.5-seed0") == before

    # Another config: what is done there is of another run, and is left alone.
    other = sweep(tmp_path / "s", *flags, "--densities=0.5", "--config.train.batch_size=8")
    assert other.code == 1
    assert "holds a run of another config: train.batch_size" in other.stdout
    assert tiny.snapshot(tmp_path / "s" / "static-0.5-seed0") == before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--methods=static,statik",), "config.method must be one of"),
        (("--densities=0.1,zero",), "--densities=0.1,zero: numbers"),
        (("--seeds=1.5",), "--seeds=1.5: whole numbers"),
        (("--methods=",), "config.method must be one of"),
        (("--devices=0,0",), "--devices=0,0 names a device twice"),
        (("--task=3", "--tasks=2"), "--task=3 is not in 0..1"),
        (("--densities=0.5,0.01",), "barter-0.01-seed0: config.density=0.01 leaves"),
        (("--config.data.num_classes=7",), "config.data.num_classes is 7, but the data has 10"),
    ],
)
def test_a_mistake_is_one_line_and_starts_nothing(flags, message, tmp_path):
    commands.assert_refused(sweep(tmp_path / "s", *flags), message)
    assert not (tmp_path / "s").exists()


def test_a_sweep_leaves_the_devices_to_its_runs(tmp_path):
    """Where JAX has no device, a sweep still works out its runs; it is they that fail."""
    # In a new process: JAX looks at the environment when it is imported.
    result = subprocess.run(
        [sys.executable, "-m", SWEEP, *arguments(tmp_path / "s", "--methods=set", "--json")],
        capture_output=True,
        text=True,
        cwd=commands.ROOT,
        env={**os.environ, "JAX_PLATFORMS": "none_such"},
    )
    (row,) = json.loads(result.stdout)["runs"]
    assert (row["state"], row["exit_code"]) == ("failed", 2)
    assert "JAX has no device for JAX_PLATFORMS=none_such" in row["error"]
    assert "install" in row["error"] and result.returncode == 1


def test_a_file_in_the_place_of_the_directory_is_told(tmp_path):
    (tmp_path / "s").write_text("mine")
    for flags in ((), ("--dry_run",)):
        commands.assert_refused(sweep(tmp_path / "s", *flags), "s is a file: give a directory")


def test_a_run_that_another_process_trains_is_not_done(tmp_path):
    held = tmp_path / "s" / "static-0.5-seed0"
    held.mkdir(parents=True)
    with (held / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = sweep(tmp_path / "s", "--methods=static")
    assert result.code == 1 and result.stdout.split() == [held.name, "running"]
    assert "a process left by an earlier sweep is at it" in result.stderr


def test_a_dry_run_starts_nothing(tmp_path):
    result = sweep(tmp_path / "s", "--methods=dense,static", "--dry_run")
    assert result.code == 0 and not (tmp_path / "s").exists()
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["dense-seed0", "waiting"],
        ["static-0.5-seed0", "waiting"],
    ]


# --- with a program of a few lines in the place of the training ------------------------------


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Runs this program instead, with a run's work directory, device and name."""

    def use(program):
        file = tmp_path / "program.py"
        file.write_text("import os, pathlib, sys, time, signal\n" + program)
        monkeypatch.setattr(
            runner, "_command", lambda paths, arguments: [sys.executable, file, paths.workdir]
        )
        monkeypatch.setattr(runner, "SECONDS_BETWEEN_LOOKS", 0.01)

    return use


def paths_of(root: pathlib.Path, *methods, seeds=(0,)):
    root.mkdir(exist_ok=True)
    return [Paths(root, cell) for cell in grid.cells(methods, [0.5], seeds)]


def test_a_failure_does_not_keep_the_others(stand_in, tmp_path):
    stand_in(
        "print('begun', flush=True)\nprint('12:00:59 error: no', file=sys.stderr)\nsys.exit(3)"
    )
    all_paths = paths_of(tmp_path / "s", "static", "barter")
    runner.run(all_paths, tiny.config(), [], [None])
    for paths in all_paths:
        row = status.read(paths, tiny.config())
        assert (row["state"], row["exit_code"], row["error"]) == ("failed", 3, "error: no")
        assert paths.log.read_text() == "begun\n12:00:59 error: no\n"


def test_each_run_has_a_device_of_its_own(stand_in, tmp_path):
    stand_in(
        "print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n"
        "here = pathlib.Path(sys.argv[1]).parent\n"
        "(here / f'{os.getpid()}.busy').touch()\n"
        # Until the other one is there as well.
        "end = time.monotonic() + 20\n"
        "while len(list(here.glob('*.busy'))) % 2 and time.monotonic() < end: time.sleep(0.01)\n"
        "time.sleep(0.2); sys.exit(1)"
    )
    all_paths = paths_of(tmp_path / "s", "static", "barter", seeds=(0, 1))
    runner.run(all_paths, tiny.config(), [], ["2", "5"])
    used = [paths.log.read_text().strip() for paths in all_paths]
    assert sorted(used) == ["2", "2", "5", "5"]


def test_a_run_of_another_sweep_is_left_to_it(stand_in, tmp_path):
    stand_in("sys.exit(1)")
    (paths,) = paths_of(tmp_path / "s", "static")
    with paths.lock.open("w") as lock:
        runner.fcntl.flock(lock, runner.fcntl.LOCK_EX)
        runner.run([paths], tiny.config(), [], [None])
    assert status.read(paths, tiny.config())["state"] == "waiting"


def test_a_signal_reaches_the_run_once_and_starts_no_other(stand_in, tmp_path):
    stand_in(
        "caught = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: caught.append(1))\n"
        f"os.kill({__import__('os').getpid()}, signal.SIGTERM)\n"
        "while not caught: time.sleep(0.01)\n"
        "time.sleep(0.3)\n"
        "pathlib.Path(sys.argv[1]).mkdir()\n"
        "(pathlib.Path(sys.argv[1]) / 'config.json').write_text(str(len(caught)))\n"
        "sys.exit(143)"
    )
    first, second = paths_of(tmp_path / "s", "static", "barter")
    with pytest.raises(Stopped) as stopped:
        runner.run([first, second], tiny.config(), [], [None])
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    assert (first.workdir / "config.json").read_text() == "1"
    states = [status.read(paths, tiny.config())["state"] for paths in (first, second)]
    assert states == ["stopped", "waiting"]


def test_a_process_left_by_an_earlier_sweep_is_left_to_finish(stand_in, tmp_path):
    """A sweep that was killed could not take its run with it."""
    stand_in("sys.exit(1)")
    (paths,) = paths_of(tmp_path / "s", "static")
    paths.workdir.mkdir()
    with (paths.workdir / ".lock").open("w") as lock:
        runner.fcntl.flock(lock, runner.fcntl.LOCK_EX)
        assert status.is_trained(paths.workdir)
        runner.run([paths], tiny.config(), [], [None])
    assert not paths.failure.exists() and not status.is_trained(paths.workdir)


def test_a_run_that_is_done_has_not_failed(stand_in, tmp_path, monkeypatch):
    stand_in("sys.exit(1)")
    (paths,) = paths_of(tmp_path / "s", "static")
    status.record_failure(paths, 1, "at first")
    monkeypatch.setattr(status, "read", lambda *_: {"state": "done", "accuracy": 1.0})
    runner.run([paths], tiny.config(), [], [None])
    assert not paths.failure.exists()
