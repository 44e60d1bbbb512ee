"""The config file that repeats a run gives its config again."""

import pytest

from barter_jax import config as config_lib
from barter_jax.reporting import reproduce
from barter_jax.reporting.groups import group
from barter_jax.reporting.read import flat, read
from barter_jax.training.workdir import as_json
from tests.reporting import made


def config_from(text):
    names = {}
    exec(text, names)
    return names["get_config"]()


@pytest.mark.parametrize(
    "config",
    [
        made.small(),
        made.config("cct", method="static", density=0.1, data__dir="a 'b' \"c\" \\d"),
        made.small(data__mean=(0.1, 0.2, 0.3), topology__total_heads=4, optimizer__epsilon=1e-12),
    ],
    ids=["vit", "cct", "tuples"],
)
def test_round_trip(config):
    again = config_from(reproduce.config_file(flat(config)))
    config_lib.validate(again)
    assert as_json(again) == config


def test_a_field_whose_name_is_a_word_of_python(monkeypatch):
    default = config_lib.default_config

    def with_init(model):
        c = default(model)
        c.init = {"from": ""}
        return c

    monkeypatch.setattr(config_lib, "default_config", with_init)
    config = {**flat(made.small()), "init.from": "dense.safetensors"}
    text = reproduce.config_file(config)
    assert "config.init[\"from\"] = 'dense.safetensors'" in text
    assert flat(as_json(config_from(text))) == config


def test_seed_aside(tmp_path):
    runs = [
        read(made.write(tmp_path / f"run {seed}", made.small(seed=seed, density=0.5), 0.5))
        for seed in (5, 6)
    ]
    recipe = reproduce.recipe(group(runs).experiments[0].groups[0])
    assert "seed" not in recipe.file
    assert recipe.commands == (
        "python -m barter_jax.main --config=repeat.py --config.seed=5 --workdir='runs/run 5'",
        "python -m barter_jax.main --config=repeat.py --config.seed=6 --workdir='runs/run 6'",
    )
    assert recipe.recorded == ()


def test_recorded_commands(tmp_path):
    run = read(made.write(tmp_path / "run", made.small(), 0.5, command=["python", "a b.py"]))
    recipe = reproduce.recipe(group([run]).experiments[0].groups[0])
    assert recipe.recorded == ("python 'a b.py'",)


def test_fields_of_another_version():
    config = {**flat(made.small()), "data.seasoning": "salt\npepper"}
    text = reproduce.config_file(config)
    assert r"# data.seasoning = 'salt\npepper' is not known to this version" in text
    assert as_json(config_from(text)) == made.small()


def test_models_of_another_version():
    assert reproduce.config_file({"model.name": "swin"}) is None
    assert reproduce.config_file({"model.name": ["vit"]}) is None
    assert reproduce.config_file({}) is None
