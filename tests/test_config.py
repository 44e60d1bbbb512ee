"""Defaults, ranges and the look of configs."""

import pytest
from ml_collections import config_dict

from barter_jax import config as config_lib
from barter_jax.errors import UserError


@pytest.mark.parametrize("model", ["vit", "cct"])
def test_the_defaults_are_valid(model):
    config = config_lib.default_config(model)
    config_lib.validate(config)
    assert config.model.name == model


def test_every_range_is_of_a_field_and_holds_for_its_default():
    defaults = config_lib.flatten(config_lib.default_config())
    assert set(config_lib.RANGES) <= set(defaults)
    assert {key for key in defaults if key.partition(".")[0] == "optimizer"} <= set(
        config_lib.RANGES
    )


def test_what_may_change_on_resume_names_fields():
    fields = list(config_lib.flatten(config_lib.default_config()))
    for name in config_lib.RESUMABLE:
        assert any(key == name or key.startswith(name + ".") for key in fields), name


def test_flatten_names_fields_by_their_path():
    config = config_dict.ConfigDict({"b": 1, "a": {"z": 2, "y": (3, 4)}})
    assert config_lib.flatten(config) == {"b": 1, "a.z": 2, "a.y": (3, 4)}


@pytest.mark.parametrize(
    "wrong, near",
    [
        ("train.batchsize", "train.batch_size"),
        ("batch_size", "train.batch_size"),
        ("optimizer.lr_rate", "optimizer.learning_rate"),
        ("topology.min_unit", "topology.min_units"),
        ("Density", "density"),
    ],
)
def test_the_nearest_key_is_offered(wrong, near):
    known = list(config_lib.flatten(config_lib.default_config()))
    assert config_lib.unknown_key_message(wrong, known).endswith(f"did you mean config.{near}?")


def test_no_key_is_offered_where_none_is_near():
    message = config_lib.unknown_key_message("zzzzzz", ["density", "train.steps"])
    assert message == "unknown config key config.zzzzzz"


def test_placeholders_are_checked_where_they_are_set():
    config = config_lib.default_config()
    config.topology.total_heads = -1
    with pytest.raises(UserError, match="config.topology.total_heads must be at least 0, got -1"):
        config_lib.validate(config)
    config.topology.total_heads = 0
    config_lib.validate(config)
