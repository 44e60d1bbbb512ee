"""Exported files: what reads them finds the model, and mistakes are told in a line."""

import dataclasses
import json
import os

import jax
import numpy as np
import pytest

import barter_jax
from barter_jax import pretrained
from barter_jax.core.topology import Topology
from barter_jax.deploy import export as exporting
from barter_jax.deploy import model as compact
from barter_jax.errors import UserError
from barter_jax.models import CCTConfig, ViTConfig
from tests.helpers import random_params
from tests.training import commands

MODULE = "barter_jax.export"
SIZES = {"layers": 2, "width": 12, "heads": 3, "head_width": 4, "channels": 10}
CONFIGS = {"vit": ViTConfig(**SIZES, patch_size=4), "cct": CCTConfig(**SIZES)}
DENSE, COMPACT = Topology((3, 3), (10, 10)), Topology((1, 2), (5, 7))
LABELS = ("cat", "dog", "bird", "ü", "fish")
IMAGES = np.random.default_rng(0).integers(0, 256, (7, 8, 8, 3), np.uint8)


def save(folder, name="vit", topology=COMPACT):
    config = CONFIGS[name]
    card = compact.Card(
        name, dataclasses.asdict(config), topology, LABELS, 8, (0.4, 0.5, 0.6), (0.2, 0.3, 0.25),
        40, {"accuracy": 0.5}, load_size=10,
    )  # fmt: skip
    compact.save(folder, card, random_params(config, topology))
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "compact": save(folder / "compact"),
        "vit": save(folder / "vit", "vit", DENSE),
        "cct": save(folder / "cct", "cct", DENSE),
        "compact cct": save(folder / "compact_cct", "cct", COMPACT),
    }


@pytest.mark.parametrize("which", ["compact", "compact cct"])
def test_a_program_gives_the_same_probabilities_for_any_number_of_images(which, saved, tmp_path):
    pytest.importorskip("flatbuffers")
    from jax import export as jax_export

    model = barter_jax.load(saved[which])
    files = exporting.export(model, "stablehlo", tmp_path / "m.stablehlo")
    assert [file.name for file in files] == ["m.stablehlo", "m.stablehlo.json"]
    program = jax_export.deserialize(bytearray(files[0].read_bytes()))
    assert program.platforms == ("cpu", "cuda", "tpu")
    for images in (IMAGES, IMAGES[:1], IMAGES[:4]):
        found = program.call(images)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, model(images), rtol=1e-4, atol=1e-6)

    told = json.loads(files[1].read_text())
    assert told["labels"] == list(LABELS)
    assert told["input"] == {"dtype": "uint8", "shape": ["batch", 8, 8, 3]}
    assert told["output"] == {"dtype": "float32", "shape": ["batch", 5]}
    assert told["load_size"] == 10
    assert Topology.from_json(told["topology"]) == COMPACT


def test_without_flatbuffers_the_remedy_is_told(saved, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs flatbuffers: pip install 'barter_jax\[export\]'"):
        exporting.export(barter_jax.load(saved["vit"]), "stablehlo", tmp_path / "m")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "which"), [("timm", "vit"), ("huggingface", "vit"), ("cct", "cct")]
)
def test_weights_of_other_projects_come_back_as_they_were(name, which, saved, tmp_path):
    model = barter_jax.load(saved[which])
    files = exporting.export(model, name, tmp_path / "model.safetensors")
    beside = ["config.json"] if name == "huggingface" else []
    assert [file.name for file in files] == ["model.safetensors", *beside]
    dense = pretrained.read(tmp_path)
    assert (dense.format, dense.labels, dense.heads_known) == (name, LABELS, True)
    assert dense.topology == DENSE and dense.image_size == 8 and dense.notes == ()
    jax.tree.map(np.testing.assert_array_equal, dense.params, model.params)


def test_the_own_format_is_the_models_file(saved, tmp_path):
    (file,) = exporting.export(barter_jax.load(saved["compact"]), "safetensors", tmp_path / "mine")
    assert file.read_bytes() == (saved["compact"] / "model.safetensors").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_command(saved, tmp_path):
    flags = (f"--model={saved['vit']}", "--format=huggingface")
    file = tmp_path / "model.safetensors"
    text = commands.run(MODULE, *flags, f"--output={file}")
    assert text.code == 0
    assert [line.split(",")[0] for line in text.stdout.splitlines()] == [
        f"wrote {file}",
        f"wrote {tmp_path / 'config.json'}",
    ]
    before = file.read_bytes()
    commands.assert_refused(
        commands.run(MODULE, *flags, f"--output={file}"), f"{file} exists", "--overwrite"
    )
    file.unlink()
    # What stands beside it is not overwritten either.
    commands.assert_refused(
        commands.run(MODULE, *flags, f"--output={file}"), "config.json exists", "--overwrite"
    )
    assert not file.exists()
    again = commands.run(MODULE, *flags, f"--output={file}", "--overwrite", "--json")
    assert json.loads(again.stdout) == {
        "format": "huggingface",
        "files": [str(file), str(tmp_path / "config.json")],
    }
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--format=timm", "--output={new}/m"], "--model is missing"),
        (["--model={vit}", "--output={new}/m"], "--format is missing: it is one of timm"),
        (["--model={vit}", "--format=onnx", "--output={new}/m"], "--format=onnx is unknown"),
        (["--model={vit}", "--format=timm"], "--output is missing"),
        (["--model={vit}", "--format=timm", "--output={new}/a/m"], "there is no folder {new}/a"),
        (["--model={vit}", "--format=timm", "--output={new}"], "is a directory"),
        (["--model={vit}", "--format=cct", "--output={new}/m"], "the format cct is for a cct"),
        (["--model={compact}", "--format=timm", "--output={new}/m"],
         "layer 0 has 1 heads of 4, together 4 wide"),
        (["--model={new}", "--format=timm", "--output={new}/m"], "holds no compact model"),
        (["--model={vit}", "--format=timm", "--output={new}/m", "more"], "'more' is not a flag"),
        (["--model={vit}", "--formt=timm", "--output={new}/m"], "formt"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_one_line(args, named, saved, tmp_path):
    places = {**saved, "new": tmp_path}
    result = commands.run(MODULE, *(arg.format(**places) for arg in args))
    commands.assert_refused(result, named.format(**places))
    assert not list(tmp_path.iterdir())


def test_the_config_of_a_run_is_never_replaced(saved, tmp_path):
    (tmp_path / "config.json").write_text('{"seed": 0}')
    with pytest.raises(UserError, match="another folder"):
        exporting.export(
            barter_jax.load(saved["vit"]), "huggingface", tmp_path / "m", overwrite=True
        )
    assert (tmp_path / "config.json").read_text() == '{"seed": 0}'


def test_what_cannot_be_written_is_told_and_leaves_nothing(saved, tmp_path, monkeypatch):
    model = barter_jax.load(saved["vit"])
    with pytest.raises(UserError, match="onnx is no format"):
        exporting.export(model, "onnx", tmp_path / "m")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(UserError, match="m cannot be written: No space left on device"):
        exporting.export(model, "timm", tmp_path / "m")
    assert not list(tmp_path.iterdir())
