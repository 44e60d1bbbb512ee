"""The paper's budgets, parameter counts and FLOPs, to its last printed digit."""

import math

import jax
import pytest

from barter_jax.core import accounting
from barter_jax.core.schedule import default_transfers
from barter_jax.core.topology import Budget, Topology, spread_evenly
from barter_jax.models import CCTConfig, ViTConfig, init_params

CCT, VIT = CCTConfig(), ViTConfig()
CCT_DIMS = CCT.dimensions(32, 100)
VIT_DIMS = VIT.dimensions(64, 200)

# model, density, budget, fewest and most per layer, transfers of a run
BUDGETS = [
    (CCT_DIMS, 0.1, Budget(11, 371), (1, 2), (53, 53), Budget(1, 21)),
    (CCT_DIMS, 0.3, Budget(34, 1067), (4, 5), (152, 153), Budget(2, 60)),
    (CCT_DIMS, 0.5, Budget(56, 1795), (8, 8), (256, 257), Budget(3, 101)),
    (CCT_DIMS, 0.7, Budget(78, 2524), (11, 12), (360, 361), Budget(5, 142)),
    (VIT_DIMS, 0.1, Budget(11, 359), (1, 2), (39, 40), Budget(1, 20)),
    (VIT_DIMS, 0.3, Budget(33, 1033), (3, 4), (114, 115), Budget(2, 58)),
    (VIT_DIMS, 0.5, Budget(54, 1739), (6, 6), (193, 194), Budget(3, 98)),
    (VIT_DIMS, 0.7, Budget(76, 2413), (8, 9), (268, 269), Budget(5, 136)),
]


@pytest.mark.parametrize(("dims", "density", "budget", "heads", "channels", "transfers"), BUDGETS)
def test_budgets(dims, density, budget, heads, channels, transfers):
    assert accounting.compact_budget(dims, density) == budget
    topology = spread_evenly(budget, dims.layers)
    assert topology.budget == budget
    assert (min(topology.heads), max(topology.heads)) == heads
    assert (min(topology.channels), max(topology.channels)) == channels
    assert default_transfers(budget) == transfers


@pytest.mark.parametrize(
    ("multiplier", "transfers"),
    [(1, Budget(3, 98)), (2, Budget(6, 196)), (4, Budget(12, 392)), (6, Budget(18, 588))],
)
def test_multiplied_transfers(multiplier, transfers):
    assert default_transfers(Budget(54, 1739), multiplier) == transfers


def test_full_density_is_the_dense_model():
    for dims in (CCT_DIMS, VIT_DIMS):
        assert accounting.compact_budget(dims, 1.0) == dims.dense.budget


@pytest.mark.parametrize("density", [0, -0.1, 1.0001, math.nan])
def test_density_out_of_range(density):
    with pytest.raises(ValueError, match=r"density must be in \(0, 1\]"):
        accounting.compact_budget(CCT_DIMS, density)


@pytest.mark.parametrize("min_units", [1, 2])
@pytest.mark.parametrize("dims", [CCT_DIMS, VIT_DIMS])
def test_lowest_density(dims, min_units):
    lowest = accounting.lowest_density(dims, min_units)

    def enough(density):
        budget = accounting.compact_budget(dims, density)
        return min(budget.heads, budget.channels) >= min_units * dims.layers

    assert enough(lowest)
    assert not enough(lowest - 0.001)


def test_no_density_is_enough():
    with pytest.raises(ValueError, match="fewer than 17 heads"):
        accounting.lowest_density(CCT_DIMS, 17)


def count(config, topology, image_size, classes):
    """Parameters of the real tree."""
    shapes = jax.eval_shape(
        lambda: init_params(config, topology, image_size, classes, jax.random.key(0))
    )
    assert config.units().measure(shapes) == topology
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize(
    ("config", "image_size", "classes", "expected"),
    [
        (CCT, 32, 100, 3_783_269),
        (CCT, 32, 10, 3_760_139),
        (VIT, 64, 200, 2_761_928),
        (ViTConfig(patch_size=4), 32, 100, 2_714_980),
    ],
)
def test_dense_parameters(config, image_size, classes, expected):
    dims = config.dimensions(image_size, classes)
    assert accounting.parameters(dims, dims.dense) == expected
    assert count(config, dims.dense, image_size, classes) == expected


@pytest.mark.parametrize(
    ("density", "millions", "gflops"),
    [(0.1, 0.4802, 0.750), (0.3, 1.2141, 2.166), (0.5, 1.9480, 3.569), (0.7, 2.6824, 4.973)],
)
def test_compact_cct(density, millions, gflops):
    topology = spread_evenly(accounting.compact_budget(CCT_DIMS, density), 7)
    parameters = accounting.parameters(CCT_DIMS, topology)
    assert round(parameters / 1e6, 4) == millions
    assert count(CCT, topology, 32, 100) == parameters
    assert round(accounting.training_flops(CCT_DIMS, topology) / 1e9, 3) == gflops


@pytest.mark.parametrize("density", [0.1, 0.5])
def test_compact_vit_parameters(density):
    topology = spread_evenly(accounting.compact_budget(VIT_DIMS, density), 9)
    assert accounting.parameters(VIT_DIMS, topology) == count(VIT, topology, 64, 200)


@pytest.mark.parametrize(("config", "expected"), [(CCT, 526_336), (VIT, 297_024)])
def test_parameters_of_a_block(config, expected):
    shapes = jax.eval_shape(
        lambda: init_params(config, config.dimensions(32, 10).dense, 32, 10, jax.random.key(0))
    )
    for layer in range(config.layers):
        block = jax.tree.leaves(shapes[f"block_{layer}"])
        assert sum(math.prod(leaf.shape) for leaf in block) == expected


@pytest.mark.parametrize(("dims", "gflops"), [(CCT_DIMS, 7.08984), (VIT_DIMS, 1.13714)])
def test_dense_flops(dims, gflops):
    assert round(accounting.training_flops(dims, dims.dense) / 1e9, 5) == gflops


@pytest.mark.parametrize(
    ("density", "petaflops", "digits"), [(1.0, 15.276, 3), (0.1, 1.6858, 4), (0.3, 4.7107, 4)]
)
def test_fine_tuning_flops(density, petaflops, digits):
    dims = VIT.dimensions(64, 100)
    topology = spread_evenly(accounting.compact_budget(dims, density), dims.layers)
    flops = accounting.training_flops(dims, topology, gradient_of_image=False)
    assert round(flops * 100 * 527 * 256 / 1e15, digits) == petaflops


def test_macs_by_hand():
    dims = accounting.Dimensions(
        layers=2,
        width=3,
        head_width=2,
        heads=2,
        channels=5,
        qkv_bias=True,
        tokens=4,
        other_parameters=100,
        embedding_macs=1000,
        head_macs=10,
    )
    topology = Topology((1, 2), (3, 5))
    # A head: four projections of 4*3*2 and two products of 4*4*2; a channel: two of 4*3.
    assert accounting.forward_macs(dims, topology) == 1000 + 3 * (96 + 64) + 8 * 24 + 10
    assert accounting.training_flops(dims, topology) == 6 * 1682
    assert accounting.training_flops(dims, topology, gradient_of_image=False) == 6 * 1682 - 2000
    # A head: four 3x2 matrices and three biases of 2; a channel: two columns of 3 and a bias.
    assert accounting.parameters(dims, topology) == 100 + 3 * 30 + 8 * 7
