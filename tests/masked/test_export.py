"""What is exported: S2ViTE as a compact model that computes the same, and exact counts."""

import functools
import math

import jax
import numpy as np
import pytest

from barter_jax.core import accounting
from barter_jax.core.topology import Topology, spread_evenly
from barter_jax.masked import export, s2vite
from barter_jax.masked.layers import apply_masks, leaves_by_name
from barter_jax.masked.masked import Masked
from barter_jax.models import CCTConfig, ViTConfig, init_params
from tests.helpers import CCT, VIT, forward, random_images, random_params

DENSE = Topology((6, 6), (12, 12))
ACTIVE = {
    "heads": (np.array([0, 1, 1, 0, 0, 1], bool), np.array([1, 0, 0, 0, 0, 0], bool)),
    "channels": (np.arange(12) % 3 == 0, np.arange(12) > 6),
}


@pytest.mark.parametrize("variant", s2vite.VARIANTS)
@pytest.mark.parametrize("config", [VIT, CCT])
def test_the_compact_model_computes_what_the_masked_one_does(config, variant):
    """Value biases of heads that are off are random here, and do contribute."""
    params = random_params(config, DENSE)
    masks = s2vite.masks(ACTIVE, config.units(), leaves_by_name(params), variant)
    masked = apply_masks(params, masks)
    compact, topology = export.compact(masked, masks, config.units())
    assert topology == Topology((3, 1), (4, 5))
    assert config.units().measure(compact) == topology
    expected = forward(config, DENSE)(masked, random_images())
    found = forward(config, topology)(compact, random_images())
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert np.max(np.abs(forward(config, DENSE)(params, random_images()) - expected)) > 1e-2


def test_a_layer_without_units_is_refused():
    active = ACTIVE | {"heads": (np.zeros(6, bool), ACTIVE["heads"][1])}
    params = random_params(VIT, DENSE)
    masks = s2vite.masks(active, VIT.units(), leaves_by_name(params), s2vite.REPAIRED)
    with pytest.raises(ValueError, match="no heads of layer 0 are active"):
        export.compact(params, masks, VIT.units())


def test_the_masks_tell_which_units_are_active():
    params = leaves_by_name(random_params(CCT, DENSE))
    masks = s2vite.masks(ACTIVE, CCT.units(), params, s2vite.AS_RELEASED)
    jax.tree.map(np.testing.assert_array_equal, s2vite.active_units(masks, CCT.units()), ACTIVE)


def test_what_each_variant_masks():
    params = leaves_by_name(random_params(VIT, DENSE))
    found = {
        variant: {
            name.partition("/")[2] for name in s2vite.masks(ACTIVE, VIT.units(), params, variant)
        }
        for variant in s2vite.VARIANTS
    }
    projections = {f"attention/{name}/kernel" for name in ("query", "key", "value")}
    assert found["repaired"] == projections | {"mlp/fc1/kernel", "mlp/fc1/bias"}
    assert found["as_released"] == found["repaired"] | {"mlp/fc2/kernel"}


@functools.cache
def paper(name):
    """The paper's model: shapes of its parameters, dimensions and units."""
    config, size, classes = {"cct": (CCTConfig(), 32, 100), "vit": (ViTConfig(), 64, 200)}[name]
    dims = config.dimensions(size, classes)
    shapes = jax.eval_shape(
        lambda: init_params(config, dims.dense, size, classes, jax.random.key(0))
    )
    return shapes, dims, config.units()


def leading_masks(masked, shapes):
    """Masks with the planned counts, the first weights of each layer, without drawing any."""
    found = {}
    for layer, count in zip(masked.layers(shapes), masked.planned(shapes), strict=True):
        matrix = (np.arange(layer.size) < count).reshape(layer.shape)
        found |= {name: np.asarray(leaf) for name, leaf in layer.leaves(matrix).items()}
    return found


@pytest.mark.parametrize("allocation", ["erk", "uniform"])
@pytest.mark.parametrize("density", [0.1, 0.3, 0.5, 0.7])
@pytest.mark.parametrize("model", ["cct", "vit"])
def test_exported_counts_agree_with_the_budget_rule(model, density, allocation):
    """rho of the weights, all biases and all that is not masked: the compact count but rounding."""
    shapes, dims, units = paper(model)
    masked = Masked.for_method(
        "rigl", units=units, density=density, total_steps=10, allocation=allocation
    )
    weights = dims.layers * (
        4 * dims.heads * dims.width * dims.head_width + 2 * dims.channels * dims.width
    )
    dense = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    expected = dense - weights + round(density * weights)
    assert sum(layer.size for layer in masked.layers(shapes)) == weights
    assert export.nonzero(shapes, leading_masks(masked, shapes)) == expected
    topology = spread_evenly(accounting.compact_budget(dims, density), dims.layers)
    compact = accounting.parameters(dims, topology)
    # The budget rule rounds to whole channels.
    assert abs(expected - compact) <= dims.parameters_per_channel / 2


@pytest.mark.parametrize("model", ["cct", "vit"])
def test_srigl_loses_less_than_a_weight_a_neuron(model):
    shapes, _, units = paper(model)
    for density in (0.1, 0.3, 0.5, 0.7):
        masked = Masked.for_method("srigl", units=units, density=density, total_steps=10)
        for layer, count in zip(masked.layers(shapes), masked.planned(shapes), strict=True):
            neurons = layer.shape[1]
            assert count - neurons < count // neurons * neurons <= count


@pytest.mark.parametrize("density", [0.1, 0.7])
@pytest.mark.parametrize("model", ["cct", "vit"])
def test_exported_s2vite_has_the_compact_count(model, density):
    shapes, dims, units = paper(model)
    topology = spread_evenly(accounting.compact_budget(dims, density), dims.layers)
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)
    active = {
        unit: tuple(
            np.arange(n) < count
            for n, count in zip(dims.dense.of(unit), topology.of(unit), strict=True)
        )
        for unit in ("heads", "channels")
    }
    masks = s2vite.masks(active, units, leaves_by_name(params), s2vite.REPAIRED)
    compact, found = export.compact(params, masks, units)
    assert found == topology
    count = sum(leaf.size for leaf in jax.tree.leaves(compact))
    assert count == accounting.parameters(dims, topology)
