"""The predict command."""

import json

import numpy as np
import pytest
from PIL import Image

import barter_jax
from barter_jax import predict
from tests.training import commands, tiny

MODULE = "barter_jax.predict"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    tiny.train(tiny.config(topology__updates=0, train__steps=4), directory)
    return directory


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """The same picture at the model's size and doubled, and another in grey."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    small = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8))
    small.save(folder / "small.png")
    small.resize((16, 16), Image.Resampling.NEAREST).save(folder / "large.png")
    Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(folder / "grey one.png")
    return folder


def test_labels_and_probabilities_are_the_models(run, images):
    model = barter_jax.load(run)
    path = str(images / "small.png")
    (row,) = predict.predict(model, [path], top=10)
    expected = model(np.asarray(Image.open(path)))
    assert row["image"] == path
    assert [x["label"] for x in row["labels"]] == [model.labels[i] for i in np.argsort(-expected)]
    np.testing.assert_allclose(
        [x["probability"] for x in row["labels"]], np.sort(expected)[::-1], rtol=1e-6
    )


def test_batches_do_not_matter(run, images, monkeypatch):
    model = barter_jax.load(run)
    paths = [str(images / name) for name in ("small.png", "grey one.png", "large.png")]
    at_once = predict.predict(model, paths, top=2)
    monkeypatch.setattr(predict, "BATCH", 2)
    assert [row["image"] for row in predict.predict(model, paths, top=2)] == paths
    for a, b in zip(at_once, predict.predict(model, paths, top=2), strict=True):
        assert [x["label"] for x in a["labels"]] == [x["label"] for x in b["labels"]]


def test_the_command_prints_a_line_or_one_document(run, images):
    paths = [str(images / "small.png"), str(images / "large.png")]
    text = commands.run(MODULE, f"--model={run}", "--top=2", *paths)
    assert text.code == 0 and [line.split(":")[0] for line in text.stdout.splitlines()] == paths
    rows = json.loads(commands.run(MODULE, f"--model={run / 'model'}", "--json", *paths).stdout)
    assert [row["image"] for row in rows] == paths
    assert [len(row["labels"]) for row in rows] == [3, 3]


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["{images}/small.png"], "--model"),
        (["--model={run}"], "no image"),
        (["--model={run}", "{images}/none.png"], "none.png: there is no such file"),
        (["--model={run}", "{images}"], "is a directory: name the images in it"),
        (["--model={images}", "{images}/small.png"], "no compact model"),
        (["--model={images}/nowhere", "{images}/small.png"], "does not exist"),
        (["--model={run}", "{run}/config.json"], "config.json: cannot be decoded"),
        (["--model={run}", "--top=0", "{images}/small.png"], "top"),
        (["--model={run}", "--tpo=1", "{images}/small.png"], "tpo"),
    ],
)
def test_mistakes_are_told_in_one_line(args, named, run, images):
    result = commands.run(MODULE, *(arg.format(run=run, images=images) for arg in args))
    assert result.code == 2 and result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error:") and named in line
