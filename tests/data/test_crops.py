"""The centre of images that are read larger than the model takes them."""

import json

import numpy as np
import pytest

from barter_jax import blueprint as blueprint_lib
from barter_jax.data.crops import CentreCropped, centre
from barter_jax.data.dataset import ArraySource
from barter_jax.deploy import model as compact
from barter_jax.errors import UserError
from barter_jax.predict import predict
from tests.data import helpers
from tests.training import tiny


@pytest.mark.parametrize(("size", "first"), [(4, 0), (3, 0), (2, 1), (1, 1)])
def test_the_centre_is_where_it_should_be(size, first):
    image = np.arange(4 * 4 * 3).reshape(4, 4, 3)
    wanted = image[first : first + size, first : first + size]
    np.testing.assert_array_equal(centre(image, size), wanted)
    np.testing.assert_array_equal(centre(np.stack([image, -image]), size), [wanted, -wanted])


def test_there_is_no_centre_larger_than_the_image():
    with pytest.raises(ValueError, match="4x3 pixels have no centre of 4x4"):
        centre(np.zeros((3, 4, 3)), 4)


def test_a_cropped_source_gives_the_same_one_by_one_and_together():
    images = np.random.default_rng(0).integers(0, 256, (5, 6, 6, 3), np.uint8)
    source = CentreCropped(ArraySource(images, np.arange(5)), 4)
    assert len(source) == 5
    batch = source.read([3, 1])
    np.testing.assert_array_equal(batch["image"], images[[3, 1], 1:5, 1:5])
    np.testing.assert_array_equal(batch["label"], [3, 1])
    np.testing.assert_array_equal(source[3]["image"], batch["image"][0])


def test_a_run_on_larger_images_evaluates_and_predicts_on_their_centre(tmp_path):
    config = tiny.config(data__load_size=10, data__resize=True, topology__updates=0)
    summary = tiny.train(config, tmp_path / "run")
    test = blueprint_lib.load_data(config).test
    model = compact.load(tmp_path / "run")
    assert test[0]["image"].shape == (8, 8, 3) and model.card.load_size == 10
    probabilities = model(test.read(np.arange(len(test)))["image"])
    found = np.mean(np.argmax(probabilities, -1) == test.labels)
    assert found == pytest.approx(summary["test"]["accuracy"])

    larger = np.random.default_rng(0).integers(0, 256, (10, 10, 3), np.uint8)
    (tmp_path / "image.png").write_bytes(helpers.encode(larger))
    row = predict(model, [str(tmp_path / "image.png")], 10)[0]
    wanted = dict(zip(model.labels, model(larger[1:9, 1:9]), strict=True))
    for entry in row["labels"]:
        assert entry["probability"] == pytest.approx(float(wanted[entry["label"]]), rel=1e-4)
    assert json.loads(json.dumps(model.card.to_json()))["load_size"] == 10


def test_images_must_not_be_read_smaller_than_the_model_takes_them(tmp_path):
    with pytest.raises(UserError, match="load_size=7 is smaller than config.data.image_size=8"):
        tiny.train(tiny.config(data__load_size=7), tmp_path)
