"""Compact models: loadable by path alone, right on any number of images, telling when damaged."""

import json
import shutil

import jax
import numpy as np
import pytest
import safetensors.numpy

import barter_jax
from barter_jax import blueprint as blueprint_lib
from barter_jax.core.topology import Topology
from barter_jax.data import pipeline
from barter_jax.data.dataset import ArraySource
from barter_jax.deploy import evaluate, model
from barter_jax.errors import RunError, UserError
from barter_jax.models import CCTConfig, init_params
from tests.training import tiny

# Longer than elsewhere, that accuracy be of some account; padded, so that one shape serves.
CONFIG = tiny.config(
    train__steps=80,
    train__eval_every_steps=20,
    topology__updates=2,
    bucket__heads=4,
    bucket__channels=12,
    data__mean=(0.3, 0.4, 0.5),
    data__std=(0.35, 0.3, 0.25),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("deployed")
    return directory, tiny.train(CONFIG, directory)


@pytest.fixture(scope="module")
def digits():
    """The test split's images and labels."""
    source = blueprint_lib.load_data(CONFIG).test
    batch = source.read(np.arange(len(source)))
    return batch["image"], batch["label"]


@pytest.fixture(scope="module")
def loaded(run):
    return barter_jax.load(run[0])


def test_work_directory_model_directory_and_file_are_one(run, digits):
    directory, _ = run
    file = directory / "model" / "model.safetensors"
    wanted = barter_jax.load(directory)(digits[0][:5])
    for path in (str(directory), directory / "model", file, str(file)):
        np.testing.assert_array_equal(barter_jax.load(path)(digits[0][:5]), wanted)


def test_the_file_alone_will_do(run, digits, tmp_path):
    shutil.copy(run[0] / "model" / "model.safetensors", tmp_path / "mine.safetensors")
    moved = barter_jax.load(tmp_path / "mine.safetensors")
    np.testing.assert_array_equal(moved(digits[0][:5]), barter_jax.load(run[0])(digits[0][:5]))


def test_it_knows_what_it_is(run, loaded):
    directory, summary = run
    card = model.read_card(directory)
    assert card == loaded.card
    assert loaded.labels == tuple("0123456789")
    assert loaded.image_size == 8
    assert (card.model, card.mean, card.std) == ("vit", (0.3, 0.4, 0.5), (0.35, 0.3, 0.25))
    assert card.step == summary["best"]["step"]
    assert card.metrics == summary["best"]["validation"]
    assert card.model_config["width"] == 16
    assert "vit" in repr(loaded) and "10 classes" in repr(loaded)
    sizes = [np.size(leaf) for leaf in jax.tree.leaves(loaded.params)]
    assert f"{sum(sizes):,} parameters" in repr(loaded)
    assert sum(sizes) == summary["parameters"]


def test_its_tensors_have_no_padding(run, loaded):
    tensors = safetensors.numpy.load_file(run[0] / "model" / "model.safetensors")
    assert loaded.topology.budget == tiny.blueprint(CONFIG).initial.budget
    for i in range(2):
        heads, channels = loaded.topology.heads[i], loaded.topology.channels[i]
        assert tensors[f"block_{i}.attention.query.kernel"].shape == (16, heads, 4)
        assert tensors[f"block_{i}.attention.out.kernel"].shape == (heads, 4, 16)
        assert tensors[f"block_{i}.mlp.fc1.kernel"].shape == (16, channels)
        assert tensors[f"block_{i}.mlp.fc2.kernel"].shape == (channels, 16)
        assert np.abs(tensors[f"block_{i}.mlp.fc1.kernel"]).sum(0).all()


def test_it_has_the_accuracy_that_was_reported(run, loaded, digits):
    images, labels = digits
    test = run[1]["test"]
    assert len(labels) == test["images"] == 359
    assert evaluate.accuracy(loaded, images, labels) == test["accuracy"]
    assert test["accuracy"] > 0.15  # It has learnt something.
    probabilities = loaded(images).astype(np.float64)
    loss = -np.log(probabilities[np.arange(len(labels)), labels]).mean()
    assert loss == pytest.approx(test["loss"], rel=1e-4)
    assert evaluate.evaluate(loaded, blueprint_lib.load_data(CONFIG).test) == test


def test_its_normalisation_is_that_of_the_training(run, loaded):
    """Its validation metrics are those of the loop, which prepares images in another place."""
    dataset = blueprint_lib.load_data(CONFIG)
    found = evaluate.evaluate(loaded, dataset.validation)
    assert found["accuracy"] == run[1]["best"]["validation"]["accuracy"]
    assert found["loss"] == pytest.approx(run[1]["best"]["validation"]["loss"], rel=1e-4)
    (batch,) = pipeline.eval_batches(dataset.validation, len(dataset.validation))
    guess = loaded(batch["image"]).argmax(-1)
    assert (guess == batch["label"]).mean() == found["accuracy"]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 255, 256, 257, 300])
def test_any_number_of_images(count, loaded, digits):
    images = digits[0][:count]
    probabilities = loaded(images)
    assert probabilities.shape == (count, 10)
    assert probabilities.dtype == np.float32
    np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-5)
    pieces = [loaded(images[i : i + 7]) for i in range(0, count, 7)]
    np.testing.assert_allclose(
        probabilities, np.concatenate([np.zeros((0, 10)), *pieces]), rtol=1e-4, atol=1e-6
    )


def test_one_image_is_a_batch_of_one(loaded, digits):
    one = loaded(digits[0][3])
    assert one.shape == (10,)
    np.testing.assert_array_equal(one, loaded(digits[0][3:4])[0])
    np.testing.assert_allclose(one, loaded(digits[0][:8])[3], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        np.exp(loaded.logits(digits[0][3])) / np.exp(loaded.logits(digits[0][3])).sum(),
        one,
        rtol=1e-4,
    )


def test_lists_of_images_are_images(loaded, digits):
    np.testing.assert_array_equal(loaded(list(digits[0][:4])), loaded(digits[0][:4]))


@pytest.mark.parametrize(
    "images, fragment",
    [
        (np.zeros((2, 8, 8, 3), np.float32), "float32"),
        (np.zeros((2, 8, 8, 3), np.int64), "int64"),
        (np.zeros((2, 9, 9, 3), np.uint8), r"\[2, 9, 9, 3\]"),
        (np.zeros((2, 8, 8, 1), np.uint8), r"\[2, 8, 8, 1\]"),
        (np.zeros((8, 8), np.uint8), r"\[8, 8\]"),
        (np.zeros((1, 2, 8, 8, 3), np.uint8), r"\[1, 2, 8, 8, 3\]"),
        (np.zeros((0,), np.uint8), r"\[0\]"),
    ],
)
def test_other_images_are_refused(images, fragment, loaded):
    with pytest.raises(UserError, match=fragment):
        loaded(images)


def test_no_images_have_no_accuracy(loaded):
    nothing = ArraySource(np.zeros((0, 8, 8, 3), np.uint8), np.zeros(0, np.int32))
    assert evaluate.evaluate(loaded, nothing) == {"images": 0}


# --- files ---------------------------------------------------------------------------------------


@pytest.fixture
def file(run, tmp_path):
    return shutil.copy(run[0] / "model" / "model.safetensors", tmp_path / "model.safetensors")


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="nothing does not exist"):
        barter_jax.load(tmp_path / "nothing")
    with pytest.raises(UserError, match="holds no compact model"):
        barter_jax.load(tmp_path)


@pytest.mark.parametrize("keep", [0, 4, 100, 5000, -1])
def test_a_truncated_file_is_told(keep, file):
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(RunError, match="damaged") as error:
        barter_jax.load(file)
    assert str(file) in str(error.value)


def test_a_file_of_another_kind_is_told(tmp_path):
    other = tmp_path / "model.safetensors"
    other.write_text("this is no model, but it has some length to it")
    with pytest.raises((RunError, UserError), match="model.safetensors"):
        barter_jax.load(tmp_path)
    safetensors.numpy.save_file({"a": np.zeros(3, np.float32)}, other)
    with pytest.raises(UserError, match="not a barter_jax model"):
        barter_jax.load(tmp_path)
    safetensors.numpy.save_file({"a": np.zeros(3, np.float32)}, other, {"format": "pt"})
    with pytest.raises(UserError, match="not a barter_jax model"):
        barter_jax.load(tmp_path)


def rewritten(file, change_card=lambda card: card, change_tensors=lambda tensors: tensors):
    card = model.read_card(file).to_json()
    tensors = safetensors.numpy.load_file(file)
    metadata = {"barter_jax": json.dumps(change_card(card))}
    safetensors.numpy.save_file(change_tensors(tensors), file, metadata)


def test_another_format_is_told(file):
    rewritten(file, lambda card: {**card, "format": 99})
    with pytest.raises(UserError, match="format 99"):
        barter_jax.load(file)


def test_an_unknown_architecture_is_told(file):
    rewritten(file, lambda card: {**card, "model": "resnet"})
    with pytest.raises(UserError, match="resnet"):
        barter_jax.load(file)


@pytest.mark.parametrize("name", ["topology", "labels", "model_config"])
def test_a_card_with_a_field_missing_is_told(name, file):
    rewritten(file, lambda card: tiny.without(card, name))
    with pytest.raises((RunError, UserError), match="model.safetensors"):
        barter_jax.load(file)


def test_tensors_that_do_not_fit_the_card_are_told(file):
    original = file.read_bytes()
    rewritten(file, change_tensors=lambda tensors: tiny.without(tensors, "cls_token"))
    with pytest.raises(RunError, match="cls_token is missing"):
        barter_jax.load(file)
    file.write_bytes(original)
    rewritten(file, lambda card: {**card, "labels": ["a", "b"]})
    with pytest.raises(RunError, match="classifier"):
        barter_jax.load(file)


def test_a_model_is_written_in_one_piece(run, loaded, tmp_path, monkeypatch):
    directory = tmp_path / "deep" / "model"
    model.save(directory, loaded.card, loaded.params)
    assert [path.name for path in directory.iterdir()] == ["model.safetensors"]
    before = (directory / "model.safetensors").read_bytes()
    assert before == (run[0] / "model" / "model.safetensors").read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError):
        model.save(directory, loaded.card, jax.tree.map(lambda leaf: 0 * leaf, loaded.params))
    assert (directory / "model.safetensors").read_bytes() == before
    assert not [p for p in (run[0] / "model").iterdir() if p.name != "model.safetensors"]


def test_the_other_architecture_is_saved_and_loaded(tmp_path):
    config = CCTConfig(layers=2, width=8, heads=2, head_width=4, channels=6)
    topology = Topology((1, 2), (5, 3))
    params = init_params(config, topology, 16, 3, jax.random.key(1))
    card = model.Card("cct", vars(config), topology, ("a", "b", "ü"), 16, (0.5,) * 3, (0.2,) * 3, 7,
                      {"accuracy": 0.5})  # fmt: skip
    model.save(tmp_path, card, params)
    again = barter_jax.load(tmp_path)
    assert again.card == card
    jax.tree.map(np.testing.assert_array_equal, again.params, params)
    images = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), np.uint8)
    logits = config.module(topology, 3).apply({"params": params}, (images / 255 - 0.5) / 0.2)
    np.testing.assert_allclose(again.logits(images), logits, rtol=1e-3, atol=1e-5)
