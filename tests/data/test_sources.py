"""The registry of data sets, and the embedded digits."""

import importlib.resources
import subprocess
import sys

import numpy as np
import pytest

from barter_jax.data import digits, sources, tfds_prepare
from barter_jax.errors import UserError

from .helpers import without_network


def load(**changes):
    options = {"dir": None, "image_size": 8, "validation_fraction": 0.1, "seed": 0}
    return sources.load("digits", **({"resize": False, "cache_mb": 100} | options | changes))


def read(source):
    return source.read(np.arange(len(source)))


def test_digits_are_those_of_scikit_learn():
    reference = pytest.importorskip("sklearn.datasets").load_digits()
    images, labels = digits.read_all()
    assert images.dtype == np.uint8 and labels.dtype == np.int32
    np.testing.assert_array_equal(labels, reference.target)
    for channel in range(3):
        np.testing.assert_array_equal(images[..., channel], np.rint(reference.images * 255 / 16))


def test_digits_by_hand():
    images, labels = digits.read_all()
    assert images.shape == (1797, 8, 8, 3)
    assert list(labels[:3]) == [0, 1, 2]
    # The first line of optdigits.tes begins 0,0,5,13,9,1,0,0.
    assert list(images[0, 0, :, 0]) == [0, 0, 80, 207, 143, 16, 0, 0]


def test_digits_file_is_small():
    file = importlib.resources.files("barter_jax.data").joinpath("digits.npz")
    assert len(file.read_bytes()) < 100_000


def test_digits_split():
    data = load()
    assert (len(data.train), len(data.validation), len(data.test)) == (1294, 144, 359)
    assert data.class_names == sources.class_names("digits") == tuple("0123456789")
    labels = digits.read_all()[1]
    for label in range(10):
        share = np.sum(data.test.labels == label) - 0.2 * np.sum(labels == label)
        assert abs(share) < 1
    parts = [read(source)["image"] for source in (data.train, data.validation, data.test)]
    together = sorted(image.tobytes() for part in parts for image in part)
    assert together == sorted(image.tobytes() for image in digits.read_all()[0])


def test_digits_test_split_ignores_the_seed_and_the_others_do_not():
    first, second = load(seed=0), load(seed=1)
    np.testing.assert_array_equal(read(first.test)["image"], read(second.test)["image"])
    np.testing.assert_array_equal(
        read(first.validation)["image"], read(load(seed=0).validation)["image"]
    )
    assert (read(first.validation)["image"] != read(second.validation)["image"]).any()


def test_digits_items_and_labels_belong_together():
    images, labels = digits.read_all()
    known = {image.tobytes(): label for image, label in zip(images, labels, strict=True)}
    for source in (load().train, load().validation, load().test):
        for index in (0, len(source) // 2, len(source) - 1):
            item = source[index]
            assert item["image"].shape == (8, 8, 3) and item["image"].dtype == np.uint8
            assert item["label"].dtype == np.int32 and item["label"] == source.labels[index]
            assert known[item["image"].tobytes()] == item["label"]


def test_digits_of_another_size():
    with pytest.raises(UserError, match=r"digits.*8x8.*data\.image_size=16.*data\.resize=True"):
        load(image_size=16)
    image = load(image_size=16, resize=True).train[0]["image"]
    assert image.shape == (16, 16, 3)
    np.testing.assert_array_equal(image[..., 0], image[..., 2])


def test_a_bad_fraction():
    with pytest.raises(UserError, match=r"data\.validation_fraction=0"):
        load(validation_fraction=0)


@pytest.mark.parametrize("size", [0, -8])
def test_a_bad_size(size):
    with pytest.raises(UserError, match=r"data\.image_size=.*not positive"):
        load(image_size=size, resize=True)


def test_unknown_name():
    message = r"data\.name=digit is unknown \(did you mean digits\?\): choose one of .*folder"
    for call in (
        lambda: sources.class_names("digit"),
        lambda: sources.load(
            "digit", dir=None, image_size=8, validation_fraction=0.1, seed=0, resize=False,
            cache_mb=0,
        ),
    ):  # fmt: skip
        with pytest.raises(UserError, match=message):
            call()
    with pytest.raises(UserError, match="data.name=zzz is unknown: choose one of"):
        sources.class_names("zzz")


def test_a_name_of_tensorflow_datasets_is_recognised(monkeypatch):
    tried = without_network(monkeypatch)
    for name in ("cars196", "mnist", "eurosat/rgb", "mnist:3.0.1"):
        message = rf"data\.name={name} is unknown \(did you mean tfds/{name}\?\): choose one of "
        with pytest.raises(UserError, match=message):
            sources.class_names(name)
    message = r"\(did you mean tiny_imagenet\?\).*cifar10, .*, or tfds/<name> for an image classif"
    with pytest.raises(UserError, match=message):
        sources.class_names("tiny-imagenet")
    assert tried == []


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("cifar10", "cifar10"),
        ("cifar100", "cifar100"),
        ("imagenet", "imagenet2012"),
        ("tfds/eurosat/rgb:2.0.0", "eurosat/rgb:2.0.0"),
    ],
)
def test_names_that_tensorflow_datasets_loads(monkeypatch, name, wanted):
    calls = []
    monkeypatch.setattr(tfds_prepare, "open_builder", lambda *arguments: calls.append(arguments))
    with pytest.raises(AttributeError):  # There is no builder.
        sources.class_names(name, "place")
    assert calls == [(wanted, "place")]


def test_a_source_can_join(monkeypatch):
    loader = sources.Loader(lambda **options: options, lambda dir: (dir,))
    monkeypatch.setitem(sources.SOURCES, "mine", loader)
    options = {"dir": "x", "image_size": 3, "validation_fraction": 0.5, "seed": 4}
    options |= {"resize": True, "cache_mb": 1}
    assert sources.load("mine", **options) == options
    assert sources.class_names("mine", "y") == ("y",)


def test_what_is_not_needed_is_not_imported():
    code = (
        "import sys; from barter_jax.data import augment, pipeline, sources\n"
        "sources.load('digits', dir=None, image_size=8, validation_fraction=.1, seed=0,"
        " resize=False, cache_mb=1)\n"
        "assert not {'tensorflow', 'tensorflow_datasets', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
