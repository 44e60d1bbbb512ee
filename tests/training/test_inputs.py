"""The batches of a run: one ahead, and the same after a resume however they are read."""

import jax
import numpy as np
import pytest

from barter_jax import blueprint as blueprint_lib
from barter_jax.training.distributed import Placement
from barter_jax.training.inputs import Inputs
from tests.data import helpers
from tests.training import tiny


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of 8x8 images that are decoded as they are asked for."""
    files = {}
    for i in range(24):
        split, name = ("test", "ab"[i % 2]) if i < 4 else ("train", "ab"[i % 2])
        files[f"{split}/{name}/{i}.png"] = helpers.encode(helpers.noise(i, 8))
    return helpers.write(tmp_path_factory.mktemp("photos"), files)


def inputs(photos, **overrides):
    config = tiny.config(
        data__name="folder",
        data__dir=str(photos),
        data__validation_fraction=0.2,
        data__cache_mb=0,
        train__batch_size=6,
        augment__flip=True,
        augment__mixup_alpha=0.5,
        **overrides,
    )
    placement = Placement({})
    return Inputs(config, blueprint_lib.load_data(config), placement, jax.random.key(3))


def batches(source, first, count):
    found = []
    for step in range(first, first + count):
        images, targets = source.prepare(step, source.next())
        found.append((np.asarray(images), np.asarray(targets)))
    return found


def same(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a[0], b[0])
        np.testing.assert_array_equal(a[1], b[1])


@pytest.mark.parametrize(
    "how",
    [{"data__threads": 0}, {"data__threads": 3}, {"data__workers": 1}, {"data__workers": 2}],
    ids=str,
)
def test_a_resume_in_the_middle_of_an_epoch_gives_the_same_next_batches(how, photos):
    """16 training images and batches of 6: position 4 lies in the second epoch."""
    whole = inputs(photos, data__threads=1)
    everything = batches(whole, 0, 8)
    whole.close()

    begun = inputs(photos)
    same(batches(begun, 0, 4), everything[:4])
    state = begun.get_state()
    begun.close()
    assert state == {"next_index": 4}, "the batch that waits on the device has not been used"

    resumed = inputs(photos, **how)
    resumed.set_state(state)
    same(batches(resumed, 4, 4), everything[4:])
    assert resumed.get_state() == {"next_index": 8}
    resumed.set_state({"next_index": 2})
    same(batches(resumed, 2, 1), everything[2:3])
    resumed.close()


def test_the_validation_images_come_once_and_as_they_are(photos):
    source = inputs(photos)
    found = list(source.validation())
    source.close()
    count = sum(int(np.sum(mask)) for _, _, mask in found)
    assert count == 4
    dataset = blueprint_lib.load_data(
        tiny.config(data__name="folder", data__dir=str(photos), data__validation_fraction=0.2)
    )
    wanted = dataset.validation.read(np.arange(4))["image"].astype(np.float32) / 255
    np.testing.assert_allclose(np.asarray(found[0][0])[:4], (wanted - 0.5) / 0.25, atol=1e-5)
