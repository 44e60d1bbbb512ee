"""Which leaves make up a mask layer, and how they are seen as one matrix."""

import jax
import numpy as np
import pytest

from barter_jax.core.topology import Topology
from barter_jax.core.units import UnitTable
from barter_jax.masked.layers import apply_masks, leaves_by_name, mask_layers
from tests.helpers import CCT, VIT, random_params

DENSE = Topology((6, 6), (12, 12))
# Width 16, heads of 4: query, key and value side by side, out, fc1, fc2.
SHAPES = [(16, 3 * 24), (24, 16), (16, 12), (12, 16)]


@pytest.mark.parametrize("config", [VIT, CCT])
def test_every_block_has_four_layers_and_nothing_else_is_masked(config):
    params = random_params(config, DENSE)
    layers = mask_layers(config.units(), params)
    assert [layer.shape for layer in layers] == SHAPES * 2
    assert [layer.layer for layer in layers] == [0] * 4 + [1] * 4
    names = {name for layer in layers for name in layer.names}
    assert names == {
        f"block_{block}/{name}/kernel"
        for block in range(2)
        for name in (
            "attention/query",
            "attention/key",
            "attention/value",
            "attention/out",
            "mlp/fc1",
            "mlp/fc2",
        )
    }


def test_a_fused_layer_is_its_leaves_side_by_side():
    params = random_params(VIT, DENSE)
    fused = mask_layers(VIT.units(), params)[0]
    leaves = leaves_by_name(params)
    matrix = fused.matrix(leaves)
    attention = params["block_0"]["attention"]
    # Column 24 + 2 * 4 + 1 is component 1 of head 2 of the key.
    np.testing.assert_array_equal(matrix[:, 33], attention["key"]["kernel"][:, 2, 1])
    assert fused.size == matrix.size == 16 * 72
    back = fused.leaves(matrix)
    assert back.keys() == set(fused.names)
    for name, leaf in back.items():
        np.testing.assert_array_equal(leaf, leaves[name])


def test_rows_of_the_output_projection_are_components_of_heads():
    params = random_params(VIT, DENSE)
    out = mask_layers(VIT.units(), params)[1]
    kernel = params["block_0"]["attention"]["out"]["kernel"]
    np.testing.assert_array_equal(out.matrix(leaves_by_name(params))[5], kernel[1, 1])


def test_masks_reach_their_leaves_alone():
    params = {"a": {"kernel": np.ones((2, 2))}, "b": np.ones(3)}
    masked = apply_masks(params, {"a/kernel": np.array([[True, False], [False, True]])})
    np.testing.assert_array_equal(masked["a"]["kernel"], np.eye(2))
    assert masked["b"] is params["b"]


def table(path: str, axis: int, role: str) -> UnitTable:
    other = {"input": "output", "output": "input"}[role]
    other_axis = {"input": 1, "output": 0}[other]
    return UnitTable.from_patterns(
        1, {"channels": {role: {path: axis}, other: {"other/kernel": other_axis}}}
    )


@pytest.mark.parametrize(
    ("axis", "role", "message"),
    [
        (0, "input", "mine/kernel of shape .* has no input or no output side"),
        (1, "output", "mine/kernel of shape .* has no input or no output side"),
    ],
)
def test_a_kernel_without_two_sides_is_refused(axis, role, message):
    params = {name: {"kernel": np.zeros((4,) if axis else (4, 4))} for name in ("mine", "other")}
    params["other"]["kernel"] = np.zeros((4, 4))
    with pytest.raises(ValueError, match=message):
        mask_layers(table("mine/kernel", axis, role), params)


def test_kernels_of_one_layer_must_read_the_same_input():
    units = UnitTable.from_patterns(
        1,
        {
            "channels": {
                "input": {"gate/kernel": 1, "up/kernel": 1},
                "output": {"down/kernel": 0},
            }
        },
    )
    shapes = {"gate": (3, 5), "up": (4, 5), "down": (5, 3)}
    params = {k: {"kernel": jax.ShapeDtypeStruct(s, np.float32)} for k, s in shapes.items()}
    with pytest.raises(ValueError, match="gate/kernel and up/kernel read inputs of different"):
        mask_layers(units, params)
    with pytest.raises(ValueError, match="no leaf gate/kernel"):
        mask_layers(units, {"up": params["up"], "down": params["down"]})
