"""The paper's values stand beside the runs that repeat it, and beside no others."""

import pytest

from barter_jax.core import accounting
from barter_jax.core.topology import spread_evenly
from barter_jax.models import CCTConfig
from barter_jax.reporting import paper
from barter_jax.reporting.read import flat
from configs.paper import cct_cifar100
from tests.reporting import made


def cct(**overrides):
    from barter_jax.training.workdir import as_json

    config = cct_cifar100.get_config()
    config.update_from_flattened_dict({k.replace("__", "."): v for k, v in overrides.items()})
    return flat(as_json(config))


def test_the_papers_config_is_matched():
    assert paper.match(cct()) is paper.CCT
    assert paper.match(cct(train__steps=70_200)) is paper.CCT
    assert paper.match(cct(method="static", density=0.1, seed=5)) is paper.CCT


@pytest.mark.parametrize(
    "overrides",
    [
        {"train__epochs": 100},
        {"train__steps": 1000},
        {"data__name": "cifar10"},
        {"model__layers": 6},
        {"train__batch_size": 256},
    ],
)
def test_others_are_not(overrides):
    assert paper.match(cct(**overrides)) is None


def test_fine_tuning_starts_from_a_model():
    config = flat(
        made.config("vit", data__name="cifar100", train__epochs=100, train__batch_size=256)
    )
    assert paper.match(config) is None
    assert paper.match({**config, "init.from": ""}) is None
    assert paper.match({**config, "init.from": "dense.safetensors"}) is paper.VIT_FINE_TUNING
    assert paper.match({**cct(), "init.from": "dense.safetensors"}) is None
    assert paper.match({}) is None


def test_matched_compute_is_an_experiment_of_its_own():
    config = flat(
        made.config("vit", data__name="cifar100", train__epochs=100, train__batch_size=256)
    )
    config |= {"init.from": "dense.safetensors", "train.match_flops_of": "rigl"}
    assert paper.match(config) is paper.VIT_FINE_TUNING_MATCHED
    assert paper.match({**config, "train.match_flops_of": "barter"}) is None
    assert paper.values(paper.VIT_FINE_TUNING_MATCHED, "barter", 0.1)["accuracy_percent"] == 65.65
    assert paper.match({**cct(), "train.match_flops_of": "rigl"}) is None


def test_values():
    found = paper.values(paper.CCT, "barter", 0.5)
    assert found["accuracy_percent"] == 72.85
    assert found["training_gflops_per_image"] == 3.569
    found = paper.values(paper.CCT, "rigl", 0.5)
    assert found["accuracy_percent"] == 72.62
    # Sizes and costs are those of compact models.
    assert found["parameters"] is None and found["training_gflops_per_image"] is None
    assert set(paper.values(paper.CCT, "unheard_of", 0.25).values()) == {None}


def test_sizes_and_costs_are_those_of_our_accounting():
    """A slip of the pen in the table would show here."""
    dims = CCTConfig().dimensions(32, 100)
    for density, parameters in paper.CCT.parameters.items():
        budget = accounting.compact_budget(dims, density)
        topology = dims.dense if density == 1 else spread_evenly(budget, dims.layers)
        assert accounting.parameters(dims, topology) == pytest.approx(parameters, abs=50)
        gflops = accounting.training_flops(dims, topology) / 1e9
        assert gflops == pytest.approx(paper.CCT.gflops[density], abs=5e-4)
