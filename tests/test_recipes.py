"""The configs that come with the project: each is valid, and comes to what its recipe says."""

import importlib.util
import pathlib

import pytest

from barter_jax import blueprint as blueprint_lib
from barter_jax import config as config_lib
from barter_jax.core import accounting
from barter_jax.data import augment, pipeline
from barter_jax.training import optimizer
from barter_jax.training import state as state_lib

ROOT = pathlib.Path(__file__).parents[1]
CONFIGS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "configs").rglob("*.py"))
SIZES = {"configs/vit_tiny.py": (10, 1294), "configs/folder.py": (10, 45_000)}


def load(name):
    spec = importlib.util.spec_from_file_location("recipe", ROOT / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config()


def blueprint(name):
    config = load(name)
    sizes = SIZES.get(name) or blueprint_lib.data_sizes(config)
    return config, blueprint_lib.make(config, *sizes)


@pytest.mark.parametrize("name", CONFIGS)
def test_each_config_is_valid(name):
    config, plan = blueprint(name)
    config_lib.validate(config)
    augment.from_config(config, plan.num_classes)
    barter = blueprint_lib.make_barter(config, plan)
    params = state_lib.abstract_params(plan, plan.initial)
    optimizer.make_checked(config.optimizer, plan.total_steps, params, barter)


# Method, "Experiment settings", and the public models.
@pytest.mark.parametrize(
    ("name", "epochs", "per_epoch", "dense"),
    [
        ("configs/paper/cct_cifar100.py", 200, 351, 3_783_269),
        ("configs/paper/vit_tiny_imagenet.py", 100, 1054, 2_761_928),
        # timm's vit_small_patch16_224.
        ("configs/vit_small_imagenet.py", 300, 1238, 22_050_664),
        ("configs/paper/vit_finetune_cifar100.py", 100, 527, 2_742_628),
    ],
)
def test_the_recipes_have_the_known_lengths_and_sizes(name, epochs, per_epoch, dense):
    _, plan = blueprint(name)
    assert plan.steps_per_epoch == per_epoch
    assert plan.total_steps == epochs * per_epoch
    assert accounting.parameters(plan.dims, plan.dims.dense) == dense


def test_three_passes_over_cifar_make_the_papers_epoch():
    assert pipeline.steps_per_epoch(45_000, 256, 3.0) == 527


@pytest.mark.parametrize(("density", "epochs"), [(0.1, 906.17), (0.3, 324.28), (1.0, 100.0)])
@pytest.mark.parametrize("method", ["dense", "rigl"])
def test_fine_tuning_at_the_compute_of_a_full_size_method(density, epochs, method):
    """The epochs of method.md's compute-matched runs."""
    config = load("configs/paper/vit_finetune_cifar100.py")
    config.density = density
    config.train.match_flops_of = method
    plan = blueprint_lib.make(config, 100, 45_000)
    assert round(plan.total_steps / 527, 2) == pytest.approx(
        epochs, abs=0.011 if density == 1 else 0
    )


def test_matching_a_method_of_the_same_cost_changes_nothing():
    config = load("configs/paper/vit_finetune_cifar100.py")
    config.train.match_flops_of = "static"
    assert blueprint_lib.make(config, 100, 45_000).total_steps == 100 * 527
    config.method = "rigl"
    # A full-size method at a compact one's compute has fewer steps.
    assert blueprint_lib.make(config, 100, 45_000).total_steps == 16_251  # / 3.2428
