"""Settings from a config, and what they refuse."""

import dataclasses
import re

import jax
import numpy as np
import pytest

from barter_jax import config as config_lib
from barter_jax.data import augment
from barter_jax.errors import UserError
from tests.data.augment.helpers import PLAIN


def test_every_field_of_the_config_arrives():
    config = config_lib.default_config("cct")
    changed = {
        "crop": "resized",
        "crop_padding": 3,
        "crop_scale": (0.5, 0.9),
        "crop_ratio": (0.8, 1.3),
        "crop_interpolation": "bicubic",
        "flip": False,
        "brightness": 0.1,
        "contrast": 0.2,
        "saturation": 0.3,
        "hue": 0.4,
        "policy": "randaugment",
        "policy_ops": 3,
        "policy_probability": 0.7,
        "policy_magnitude": 8.0,
        "policy_noise": 0.6,
        "policy_increasing": False,
        "policy_interpolation": "nearest",
        "policy_fill": (1, 2, 3),
        "erase_probability": 0.5,
        "erase_area": (0.1, 0.2),
        "erase_ratio": (0.5, 2.0),
        "erase_ratio_law": "uniform",
        "erase_mode": "pixel",
        "erase_value": (1.0, 2.0, 3.0),
        "mix_probability": 0.9,
        "mixup_alpha": 0.8,
        "cutmix_alpha": 1.5,
        "cutmix_probability": 0.4,
        "mix_pairs": "flip",
        "label_smoothing": 0.2,
    }
    assert set(changed) == set(config.augment)
    for name, value in changed.items():
        config.augment[name] = value
    config.data.image_size, config.data.load_size = 24, 30
    config_lib.validate(config)
    settings = augment.from_config(config, 7)
    assert {name: getattr(settings, name) for name in changed} == changed
    assert (settings.image_size, settings.num_classes) == (24, 7)
    assert settings.mean == tuple(config.data.mean) and settings.std == tuple(config.data.std)
    assert hash(settings) == hash(augment.from_config(config, 7))


def test_the_defaults_are_those_of_the_config():
    settings = augment.from_config(config_lib.default_config("vit"), 4)
    named = {f.name: f.default for f in dataclasses.fields(settings)}
    for name, default in named.items():
        if default is not dataclasses.MISSING and name != "image_size":
            assert getattr(settings, name) == default, name


def test_images_must_be_loaded_large_enough():
    config = config_lib.default_config("vit")
    config.data.image_size, config.data.load_size = 32, 28
    for crop in ("none", "padded", "resized"):
        config.augment.crop = crop
        with pytest.raises(UserError, match="config.data.load_size=28 must not be below"):
            augment.from_config(config, 4)
    config.data.load_size = 32
    augment.from_config(config, 4)


def test_wrong_names_are_refused():
    for name in ("crop", "crop_interpolation", "policy", "policy_interpolation", "erase_mode"):
        with pytest.raises(UserError, match=f"config.augment.{name} must be one of .*'zzz'"):
            dataclasses.replace(PLAIN, **{name: "zzz"})


def test_images_too_small_for_the_crop_are_refused():
    images, labels = np.zeros((2, 28, 28, 3), np.uint8), np.zeros(2, np.int32)
    message = re.escape("images of 28x28 are too small for config.data.image_size=32")
    for settings in (PLAIN, dataclasses.replace(PLAIN, crop="padded", crop_padding=1)):
        with pytest.raises(UserError, match=message):
            augment.prepare_train(jax.random.key(0), images, labels, settings)
    with pytest.raises(UserError, match=message):
        augment.prepare_eval(images, PLAIN)
    padded = dataclasses.replace(PLAIN, crop="padded", crop_padding=2)
    output, _ = augment.prepare_train(jax.random.key(0), images + 9, labels, padded)
    assert output.shape == (2, 32, 32, 3)
    np.testing.assert_array_equal(np.asarray(output)[:, 2:-2, 2:-2], np.full((2, 28, 28, 3), 9))
