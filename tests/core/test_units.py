import jax
import numpy as np
import pytest

from barter_jax.core.topology import Topology
from barter_jax.core.units import INPUT, OUTPUT, UnitAxis, UnitTable, map_units, path_names
from tests.helpers import toy_params, toy_table

TOPOLOGY = Topology((2, 1), (4, 3))


def params():
    return toy_params(TOPOLOGY, TOPOLOGY, np.random.default_rng(0))


def test_measure_reads_the_topology():
    assert toy_table(2).measure(params()) == TOPOLOGY
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params())
    assert toy_table(2).measure(shapes) == TOPOLOGY


def test_measure_names_what_is_wrong():
    tree = params()
    tree["layers"][1]["up_bias"] = np.zeros(9)
    with pytest.raises(ValueError, match=r"layer 1 has 3 channels by layers/1/up but 9 by .*bias"):
        toy_table(2).measure(tree)
    del tree["layers"][1]["up_bias"]
    with pytest.raises(ValueError, match="no leaf layers/1/up_bias"):
        toy_table(2).measure(tree)
    tree["layers"][1]["up_bias"] = np.zeros(())
    with pytest.raises(ValueError, match=r"layers/1/up_bias has shape \(\) and no axis 0"):
        toy_table(2).measure(tree)


def test_map_units_visits_unit_leaves_only():
    tree = params()
    visited = []

    def visit(axis, leaf, other):
        visited.append(axis)
        assert leaf is other
        return leaf * 2

    new = map_units(visit, toy_table(2), tree, tree)
    assert sorted(visited, key=lambda a: a.name) == sorted(toy_table(2).axes, key=lambda a: a.name)
    assert new["embedding"] is tree["embedding"]
    assert new["layers"][1]["norm"] is tree["layers"][1]["norm"]
    np.testing.assert_array_equal(new["layers"][1]["down"], 2 * tree["layers"][1]["down"])


def test_path_names_of_any_container():
    state = {"a": [np.zeros(1), UnitTable(())]}
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    assert path_names(leaves[0][0]) == ("a", "0")


def axis(path, unit="heads", layer=0, role=INPUT):
    return UnitAxis((path,), unit, layer, 0, role)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ((axis("a"), axis("a", role=OUTPUT)), "a stands twice"),
        ((axis("a"),), "the heads of layer 0 have no output parameters"),
        ((axis("a", role=OUTPUT),), "the heads of layer 0 have no input parameters"),
        ((axis("a", layer=1), axis("b", layer=1, role=OUTPUT)), r"must be 0, 1, 2, ..., got \[1\]"),
    ],
)
def test_tables_refuse_nonsense(axes, message):
    with pytest.raises(ValueError, match=message):
        UnitTable(axes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unit": "neurons"}, "a/b: unit must be one of"),
        ({"role": "both"}, "a/b: role must be 'input' or 'output'"),
        ({"axis": -1}, "a/b: axis and layer must not be negative"),
        ({"layer": -1}, "a/b: axis and layer must not be negative"),
    ],
)
def test_axes_refuse_nonsense(changes, message):
    fields = {"path": ("a", "b"), "unit": "heads", "layer": 0, "axis": 0, "role": INPUT}
    with pytest.raises(ValueError, match=message):
        UnitAxis(**(fields | changes))
