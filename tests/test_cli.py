"""Mistakes are told in one line, leave nothing behind and exit with 2."""

import fcntl
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.data import helpers as images
from tests.training import commands, tiny
from tests.training.commands import ROOT, assert_refused

MAIN, DESCRIBE = "barter_jax.main", "barter_jax.describe"
CONFIG = f"--config={tiny.CONFIG_FILE}"


def override(text: str) -> str:
    return f"--config.{text}"


# Overrides, and what the line must name.
MISTAKES = {
    # names
    "train.batchsize=3": ("config.train.batchsize", "config.train.batch_size"),
    "optimiser.name=sgd": ("config.optimiser.name", "config.optimizer.name"),
    "densty=0.3": ("config.densty", "config.density"),
    "train=3": ("config.train", "section"),
    # types
    "train.batch_size=1e3": ("config.train.batch_size", "integer", "1e3"),
    "train.steps=2.5": ("config.train.steps", "integer"),
    "data.num_train=many": ("config.data.num_train", "integer"),
    "optimizer.learning_rate=fast": ("config.optimizer.learning_rate", "number"),
    "augment.flip=maybe": ("config.augment.flip", "true or false"),
    "data.mean=(0.5,0.5)": ("config.data.mean", "3 values"),
    "data.mean=(0.5,0.5,0.5,0.5)": ("config.data.mean", "3 values"),
    "data.std=('a','b','c')": ("config.data.std", "float"),
    "data.std=(0.5,0.5,0)": ("config.data.std", "above 0"),
    "data.mean=(0.5,0.5,1e999)": ("config.data.mean",),
    "data.std=(0.5,0.5,1e999)": ("config.data.std",),
    # ranges
    "density=0": ("config.density",),
    "density=1.5": ("config.density",),
    "density=nan": ("config.density",),
    "density=-0.5": ("config.density",),
    "seed=-1": ("config.seed",),
    "seed=4294967296": ("config.seed",),
    "train.steps=0": ("config.train.steps",),
    "train.epochs=0": ("config.train.epochs",),
    "train.batch_size=0": ("config.train.batch_size",),
    "train.batch_size=-8": ("config.train.batch_size",),
    "train.eval_batch_size=0": ("config.train.eval_batch_size",),
    "train.eval_every_steps=0": ("config.train.eval_every_steps",),
    "train.passes_per_epoch=inf": ("config.train.passes_per_epoch",),
    "optimizer.learning_rate=0": ("config.optimizer.learning_rate",),
    "optimizer.learning_rate=nan": ("config.optimizer.learning_rate",),
    "optimizer.weight_decay=-1": ("config.optimizer.weight_decay",),
    "optimizer.warmup_fraction=1": ("config.optimizer.warmup_fraction",),
    "optimizer.decay_mask=none": ("config.optimizer.decay_mask", "kernels"),
    "topology.updates=-1": ("config.topology.updates",),
    "topology.total_heads=-1": ("config.topology.total_heads",),
    "topology.total_heads=1000000": ("config.topology.total_heads", "lower it to 8"),
    "topology.share=1": ("config.topology.share",),
    "topology.noise=nan": ("config.topology.noise",),
    "topology.min_units=0": ("config.topology.min_units",),
    "topology.moments=keep": ("config.topology.moments", "scaled"),
    "topology.extra=middle": ("config.topology.extra", "first"),
    "scores.decay=1": ("config.scores.decay",),
    "scores.pruning=taylor": ("config.scores.pruning", "gate_squared"),
    "scores.priority=min": ("config.scores.priority", "mean"),
    "bucket.channels=0": ("config.bucket.channels",),
    "executables.capacity=0": ("config.executables.capacity",),
    "checkpoint.keep=0": ("config.checkpoint.keep",),
    "checkpoint.every_steps=0": ("config.checkpoint.every_steps",),
    "log.every_steps=0": ("config.log.every_steps",),
    "augment.crop_padding=-1": ("config.augment.crop_padding",),
    "augment.label_smoothing=1": ("config.augment.label_smoothing",),
    "data.validation_fraction=1": ("config.data.validation_fraction",),
    # choices
    "method=riggle": ("config.method", "rigl"),
    "init.selection=best": ("config.init.selection", "taylor"),
    "masked.allocation=even": ("config.masked.allocation", "erk"),
    "masked.drop_fraction=2": ("config.masked.drop_fraction",),
    "masked.every_steps=0": ("config.masked.every_steps",),
    "train.match_flops_of=all": ("config.train.match_flops_of", "dense"),
    "train.micro_batches=0": ("config.train.micro_batches",),
    "train.ema_decay=1": ("config.train.ema_decay",),
    "optimizer.layer_decay=0": ("config.optimizer.layer_decay",),
    "optimizer.decay_exclude=position,,": ("config.optimizer.decay_exclude",),
    "augment.policy=trivial": ("config.augment.policy", "randaugment"),
    "augment.crop_scale=(0.5,0.1)": ("config.augment.crop_scale", "low"),
    "method=bartr": ("config.method", "barter"),
    "optimizer.name=rmsprop": ("config.optimizer.name", "adamw"),
    "optimizer.name=adafactor": ("config.optimizer.name=adafactor", "FactoredState"),
    "model.name=resnet": ("config.model.name", "vit"),
    "model.name=cct": ("cct", "model.patch_size"),
    "model.dtype=float64": ("model.dtype", "bfloat16"),
    "model.heads=0": ("model.heads",),
    "model.drop_path=1": ("model.drop_path",),
    "model.attention_dropout=0.9999999999": ("model.attention_dropout", "0.999"),
    "augment.erase_ratio_law=cubic": ("config.augment.erase_ratio_law", "uniform"),
    "data.name=digit": ("data.name=digit", "digits"),
    # fields that do not go together
    "density=0.01": ("config.density=0.01", "use at least"),
    "model.patch_size=3": ("data.image_size=8", "model.patch_size=3"),
    "data.image_size=12": ("data.image_size=12", "data.resize"),
    "train.batch_size=1367": ("config.train.batch_size=1367", "1366"),
    "train.passes_per_epoch=0.001": ("config.train.passes_per_epoch",),
    "topology.end_fraction=0.1": ("config.topology.start_fraction", "config.topology.end_fraction"),
    "topology.min_units=3": ("config.density", "use at least"),
    "topology.min_units=5": ("config.topology.min_units",),
    "topology.max_heads=1": ("config.topology.max_heads=1",),
    "data.num_classes=1": ("config.data.num_classes",),
    "data.validation_fraction=0.0001": ("data.validation_fraction",),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_wrong_field_is_named_in_one_line(text, tmp_path):
    workdir = tmp_path / "run"
    result = commands.run(MAIN, CONFIG, f"--workdir={workdir}", override(text))
    assert_refused(result, *MISTAKES[text])
    assert not workdir.exists()


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("field, right", [("num_classes", 10), ("num_train", 1366)])
def test_stated_sizes_that_the_data_has_not_are_refused(field, right, alone, tmp_path):
    both = [] if alone else ["data.num_classes=10", "data.num_train=1366"]
    args = [*both, f"data.{field}=77"]
    result = commands.run(MAIN, CONFIG, f"--workdir={tmp_path / 'run'}", *map(override, args))
    assert_refused(result, f"config.data.{field}", "77", str(right))
    assert not (tmp_path / "run").exists()


def test_describe_refuses_mistakes_in_the_same_way():
    assert_refused(commands.run(DESCRIBE, CONFIG, "--json", override("density=0")), "density")
    assert_refused(commands.run(DESCRIBE, CONFIG, override("bucket.chanels=1")), "bucket.channels")


# --- the command line itself -----------------------------------------------------------------


def test_a_config_is_needed():
    assert_refused(commands.run(MAIN), "--config")
    assert_refused(commands.run(MAIN, "--config="), "--config")


@pytest.mark.parametrize("flag", ["--wrokdir=x", "--config_file=x", "--noconfig.train.steps"])
def test_an_unknown_flag_is_named(flag, tmp_path):
    assert_refused(commands.run(MAIN, CONFIG, flag, cwd=tmp_path), flag.strip("-").split("=")[0])


def test_what_is_no_flag_is_not_passed_over(tmp_path):
    """`config.density=0.2` without its dashes must not train at another density."""
    result = commands.run(MAIN, CONFIG, f"--workdir={tmp_path / 'run'}", "config.density=0.2",
                          "--config.density=0")  # fmt: skip
    assert "config.density=0.2" in result.stderr


def test_help_needs_no_config():
    result = commands.run(MAIN, "--help")
    assert "workdir" in result.stdout and "Traceback" not in result.stderr
    assert result.code == 0


def test_whoever_has_read_enough_is_no_reason_to_complain():
    """As with `| head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", DESCRIBE, CONFIG],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


CONFIG_FILES = {
    "def nothing(): pass": ("get_config",),
    "def get_config(:": ("syntax",),
    "import no_such_module": ("no_such_module",),
    "undefined_name": ("undefined_name",),
    "def get_config(): raise ValueError('my reason')": ("my reason",),
    "def get_config(): return undefined_name": ("undefined_name",),
    "def get_config(): raise RuntimeError('my reason')": ("my reason",),
    "def get_config(): return {'seed': 1}": ("dict",),
    "def get_config(): return 1 / 0": ("zero",),
}
FROM_DEFAULT = "from barter_jax.config import default_config\ndef get_config():\n  c = "
CONFIG_FILES |= {
    FROM_DEFAULT + "default_config()\n  c.train.batchsize = 3\n  return c": (
        "train.batchsize",
        "train.batch_size",
    ),
    FROM_DEFAULT + "default_config()\n  del c.bucket\n  return c": ("config.bucket.", "missing"),
    FROM_DEFAULT + "default_config()\n  c.train.batch_size = '64'\n  return c": ("int",),
    FROM_DEFAULT + "default_config('resnet')\n  return c": ("resnet",),
}


@pytest.mark.parametrize("text", CONFIG_FILES)
def test_a_config_file_that_does_not_work_is_told_in_one_line(text, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(text)
    result = commands.run(MAIN, f"--config={file}", f"--workdir={tmp_path / 'run'}")
    assert_refused(result, *CONFIG_FILES[text])
    assert not (tmp_path / "run").exists()


def test_a_config_file_that_is_not_there_is_named(tmp_path):
    assert_refused(commands.run(MAIN, f"--config={tmp_path}/none.py"), f"{tmp_path}/none.py")
    assert_refused(commands.run(MAIN, f"--config={tmp_path}"), str(tmp_path))
    (tmp_path / "image.png").write_bytes(images.encode(images.noise(0)))
    assert_refused(commands.run(MAIN, f"--config={tmp_path}/image.png"), "image.png")


def test_a_config_takes_an_argument_only_if_its_function_does(tmp_path):
    assert_refused(commands.run(DESCRIBE, CONFIG + ":large"), "get_config")
    file = tmp_path / "mine.py"
    file.write_text(
        "from tests.training import tiny_config\ndef get_config(heads):\n"
        "  c = tiny_config.get_config()\n  c.model.heads = int(heads)\n  return c\n"
    )
    result = commands.run(DESCRIBE, f"--config={file}:6", "--json", override("density=1"))
    assert json.loads(result.stdout)["budget"]["heads"] == 12


def test_overrides_are_taken_in_both_spellings():
    args = ["--config", tiny.CONFIG_FILE, "--config.seed", 4, "-config.density=0.75"]
    result = commands.run(DESCRIBE, *args, "--noconfig.log.tensorboard", "--json")
    assert (result.code, json.loads(result.stdout)["density"]) == (0, 0.75)


# --- the data ----------------------------------------------------------------------------------

FOLDER = ["data.name=folder", "train.batch_size=2", "data.validation_fraction=0.25"]
FOLDER = [override(text) for text in FOLDER]


def refused_folder(tmp_path, *fragments, size=8):
    args = [override(f"data.dir={tmp_path / 'images'}"), override(f"data.image_size={size}")]
    result = commands.run(MAIN, CONFIG, f"--workdir={tmp_path / 'run'}", *FOLDER, *args)
    assert_refused(result, *fragments)
    assert not (tmp_path / "run").exists()


def folder(tmp_path, size=8):
    files = {
        f"{split}/{name}/{i}.png": images.encode(images.noise(i, size))
        for split in ("train", "test")
        for name in ("cat", "dog")
        for i in range(4)
    }
    return images.write(tmp_path / "images", files)


def test_a_missing_data_directory_is_named(tmp_path):
    refused_folder(tmp_path, "data.dir", "images")
    result = commands.run(MAIN, CONFIG, f"--workdir={tmp_path / 'run'}", *FOLDER)
    assert_refused(result, "data.dir")


def test_an_empty_class_folder_is_named(tmp_path):
    (folder(tmp_path) / "train" / "horse").mkdir()
    refused_folder(tmp_path, "train/horse")


def test_a_corrupt_image_is_named(tmp_path):
    file = folder(tmp_path) / "train" / "dog" / "2.png"
    file.write_bytes(file.read_bytes()[:50])
    refused_folder(tmp_path, "2.png")


def test_images_of_another_size_are_named(tmp_path):
    folder(tmp_path, size=6)
    refused_folder(tmp_path, "6x6", "data.image_size=8")


def test_sizes_stated_for_missing_data_serve_to_describe_only(tmp_path):
    args = [*FOLDER, override("data.dir=/nonexistent"), override("data.num_classes=3")]
    args += [override("data.num_train=40")]
    assert commands.run(DESCRIBE, CONFIG, *args).code == 0
    result = commands.run(MAIN, CONFIG, f"--workdir={tmp_path / 'run'}", *args)
    assert_refused(result, "/nonexistent")
    assert not (tmp_path / "run").exists()


# --- the work directory ------------------------------------------------------------------------


@pytest.fixture
def holder(tmp_path):
    """A work directory that holds something of everything."""
    directory = tmp_path / "run"
    tiny.train(tiny.config(train__steps=1, topology__updates=0), directory)
    return directory


def test_another_config_is_refused_by_field_until_told_to_overwrite(holder):
    before = tiny.snapshot(holder)
    args = [CONFIG, f"--workdir={holder}", override("topology.updates=0")]
    changed = [override("train.steps=2"), override("optimizer.beta1=0.8"), override("seed=3")]
    result = commands.run(MAIN, *args, *changed)
    assert_refused(result, "train.steps is 1 there and 2 here", "optimizer.beta1", "seed is 0")
    assert "topology.updates" not in result.stderr
    assert tiny.snapshot(holder) == before

    assert commands.run(MAIN, *args, *changed, "--overwrite").code == 0
    assert json.loads((holder / "config.json").read_text())["config"]["seed"] == 3
    assert [row["step"] for row in tiny.rows(holder, "metrics.jsonl")] == [2, 2, 2]
    assert sorted(p.name for p in (holder / "checkpoints").iterdir()) == ["2"]


def test_fields_that_change_no_result_may_differ(holder):
    fields = ["bucket.channels=3", "checkpoint.keep=2", "log.every_steps=1", "data.threads=0",
              "executables.capacity=2", "train.steps=1", "topology.updates=0"]  # fmt: skip
    result = commands.run(MAIN, CONFIG, f"--workdir={holder}", *map(override, fields))
    assert result.code == 0, result.stderr


def test_a_work_directory_that_is_a_file_is_refused(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    for path in (file, file / "run"):
        assert_refused(commands.run(MAIN, CONFIG, f"--workdir={path}"), "--workdir")
    assert_refused(commands.run(MAIN, CONFIG, f"--workdir={file}", "--overwrite"), "--workdir")
    assert file.read_text() == "mine"


def test_files_that_are_not_of_a_run_are_not_taken_over(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "precious").write_text("mine")
    assert_refused(commands.run(MAIN, CONFIG, f"--workdir={tmp_path}"), "model", "--overwrite")
    assert tiny.snapshot(tmp_path) == {"model/precious": b"mine"}


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b"\xff\xfe", b'{"config": 3}'])
def test_a_damaged_config_json_is_refused(content, tmp_path):
    (tmp_path / "config.json").write_bytes(content)
    assert_refused(commands.run(MAIN, CONFIG, f"--workdir={tmp_path}"), "config.json")
    assert tiny.snapshot(tmp_path) == {"config.json": content}


def test_a_work_directory_in_use_is_refused(holder):
    args = [CONFIG, f"--workdir={holder}", override("train.steps=1")]
    args += [override("topology.updates=0")]
    (holder / "summary.json").unlink()  # An unfinished run: there is something left to write.
    before = tiny.snapshot(holder)
    with (holder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for extra in ([], ["--overwrite"]):
            assert_refused(commands.run(MAIN, *args, *extra), "another process", str(holder))
    assert tiny.snapshot(holder) == before


def test_the_default_work_directory_has_the_name_of_the_config(tmp_path):
    args = ["train.steps=1", "topology.updates=0"]
    result = commands.run(MAIN, CONFIG, *map(override, args), cwd=tmp_path)
    assert result.code == 0, result.stderr
    assert result.stdout == ""
    assert (tmp_path / "runs" / "tiny_config" / "summary.json").exists()


# --- a process of its own ------------------------------------------------------------------------


def test_python_m_behaves_like_the_commands_above(tmp_path):
    """One command without the tests' server of commands between it and us."""
    done = subprocess.run(
        [sys.executable, "-m", MAIN, CONFIG, f"--workdir={tmp_path / 'run'}", override("seed=x")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert_refused(commands.Result(done.returncode, done.stdout, done.stderr), "config.seed")
    assert not (tmp_path / "run").exists()


# --- odd but right -------------------------------------------------------------------------------

LEGAL = {
    "one step": {"train__steps": 1},
    "no updates": {"topology__updates": 0},
    "nothing to move": {
        "topology__total_heads": 0,
        "topology__total_channels": 0,
    },
    "full density": {"density": 1.0, "topology__updates": 1},
    "dense": {"method": "dense", "density": 0.1},
    "steps win over epochs": {"train__steps": 1, "train__epochs": 10**6},
    "the largest seed": {"train__steps": 1, "seed": 2**32 - 1},
    "clones exact, of any age": {
        "topology__noise": 0.0,
        "topology__min_age": 0,
        "scores__decay": 0.0,
        "bucket__heads": 4,
        "bucket__channels": 100,
        "executables__capacity": 1,
        "log__every_steps": 100,
    },
    "sgd": {
        "optimizer__name": "sgd",
        "optimizer__clip_norm": 1.0,
        "optimizer__beta1": 0.0,
        "topology__min_units": 2,
        "topology__moments": "reset",
        "topology__max_channels": 100,
        "bucket__heads": 4,
        "bucket__channels": 12,
        "data__threads": 0,
        "executables__capacity": 1,
    },
    "lion": {
        "optimizer__name": "lion",
        "optimizer__decay_mask": "kernels",
        "optimizer__warmup_fraction": 0.0,
        "topology__moments": "copy",
        "topology__total_channels": 28,
        "bucket__heads": 4,
        "bucket__channels": 12,
        "augment__crop_padding": 20,
        "method": "random_pair",
    },
}


@pytest.mark.parametrize("name", LEGAL)
def test_odd_but_right_configs_train(name, tmp_path):
    overrides = LEGAL[name]
    config = tiny.config(**overrides)
    plan = tiny.blueprint(config)
    summary = tiny.train(config, tmp_path)
    assert summary["steps"] == overrides.get("train__steps", tiny.STEPS)
    assert all(np.isfinite(summary["test"][k]) for k in ("loss", "accuracy", "macro_f1"))
    for unit, per_layer in summary["topology"].items():
        assert sum(per_layer) == plan.initial.budget.of(unit)
        assert min(per_layer) >= config.topology.min_units
        assert summary["planned"][unit] == plan.transfers.of(unit)
    if config.method == "dense":
        assert summary["topology"] == {"heads": [4, 4], "channels": [12, 12]}
    if config.density == 1 or not plan.schedule:
        # Full layers have no room.
        assert summary["moved"] == {"heads": 0, "channels": 0}
    if name == "lion":
        assert 0 < summary["moved"]["channels"] < 1000
