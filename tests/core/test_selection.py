"""Which units of a dense model are kept: by hand, and on a model that has learnt something."""

import functools

import jax
import numpy as np
import optax
import pytest

from barter_jax import blueprint as blueprint_lib
from barter_jax.core import selection
from barter_jax.core.topology import Topology
from barter_jax.core.units import map_units
from barter_jax.errors import UserError
from barter_jax.models import ViTConfig, init_params
from tests import helpers
from tests.helpers import VIT, forward, random_images, random_params, toy_params, toy_table
from tests.training import tiny

DENSE = Topology((6, 6), (12, 12))


def toy():
    topology = Topology((2, 3), (4, 2))
    return toy_params(topology, topology, np.random.default_rng(0)), toy_table(2), topology


def no_gradients(params, batch):
    raise AssertionError("needs no batch")


def test_taylor_by_hand():
    params, table, topology = toy()
    rng = np.random.default_rng(1)
    batches = [jax.tree.map(lambda x: rng.standard_normal(x.shape).astype("f4"), params)] * 2
    batches.append(jax.tree.map(lambda x: 2 * x, batches[0]))

    def loss_and_grads(params, batch):
        return 0.0, batch

    found = selection.importances(loss_and_grads, table, params, batches)
    for layer in range(2):
        w, g = (tree["layers"][layer] for tree in (params, batches[0]))
        # A gate's gradient doubles in the third batch: the mean is (1 + 1 + 4) / 3 = 2.
        heads = 2 * np.einsum("hkd,hkd->h", w["out"], g["out"]) ** 2
        channels = 2 * np.einsum("dc,dc->c", w["down"], g["down"]) ** 2
        np.testing.assert_allclose(found["heads"][layer], heads, rtol=1e-5)
        np.testing.assert_allclose(found["channels"][layer], channels, rtol=1e-5)
        assert found["heads"][layer].dtype == np.float64


def test_magnitude_by_hand():
    params, table, _ = toy()
    found = selection.importances(no_gradients, table, params, [], "magnitude")
    for layer in range(2):
        w = params["layers"][layer]
        np.testing.assert_allclose(
            found["heads"][layer], np.sqrt((w["out"] ** 2).sum((1, 2))), rtol=1e-5
        )
        np.testing.assert_allclose(
            found["channels"][layer], np.sqrt((w["down"] ** 2).sum(0)), rtol=1e-5
        )


def test_random_follows_from_the_seed():
    params, table, topology = toy()

    def drawn(seed):
        found = selection.importances(no_gradients, table, params, [], "random", seed)
        assert [len(x) for x in found["channels"]] == [4, 2]
        return np.concatenate([*found["heads"], *found["channels"]])

    np.testing.assert_array_equal(drawn(1), drawn(1))
    assert not np.array_equal(drawn(1), drawn(2))
    assert len(set(drawn(1))) == 11


def test_the_best_of_each_layer_in_their_order():
    importance = {
        "heads": (np.array([1.0, 3, 2]), np.array([5.0, 5, 5])),
        "channels": (np.array([0.0, 9, 1, 9]), np.array([1.0, 2])),
    }
    kept = selection.choose(importance, Topology((3, 3), (4, 2)), Topology((2, 2), (3, 1)))
    # Of equal ones, the first.
    assert kept == {"heads": ((1, 2), (0, 1)), "channels": ((1, 2, 3), (1,))}


def test_what_cannot_be_chosen_is_told():
    params, table, topology = toy()
    fine = selection.importances(no_gradients, table, params, [], "random")
    with pytest.raises(UserError, match="3 heads of layer 0.*has 2: lower config.density"):
        selection.choose(fine, topology, Topology((3, 3), (4, 2)))
    with pytest.raises(ValueError, match="channels of layer 1.*not finite"):
        broken = {**fine, "channels": (fine["channels"][0], np.array([1, np.nan]))}
        selection.choose(broken, topology, topology)
    with pytest.raises(ValueError, match="5 heads of layer 1, but importances of shape"):
        selection.choose(fine, Topology((2, 5), (4, 2)), topology)
    with pytest.raises(ValueError, match="taylor, magnitude, random, not 'best'"):
        selection.importances(no_gradients, table, params, [], "best")
    with pytest.raises(ValueError, match="at least one batch"):
        selection.importances(no_gradients, table, params, [])


def test_selected_units_are_bit_equal_and_nothing_else_changes():
    params, table, topology = toy()
    kept = {"heads": ((1,), (0, 2)), "channels": ((0, 3), (0, 1))}
    found = selection.select(params, table, kept)
    assert table.measure(found) == Topology((1, 2), (2, 2))
    first, second = params["layers"]
    np.testing.assert_array_equal(found["layers"][0]["query"], first["query"][:, [1]])
    np.testing.assert_array_equal(found["layers"][0]["out"], first["out"][[1]])
    np.testing.assert_array_equal(found["layers"][0]["up_bias"], first["up_bias"][[0, 3]])
    np.testing.assert_array_equal(found["layers"][0]["down"], first["down"][:, [0, 3]])
    np.testing.assert_array_equal(found["layers"][1]["query_bias"], second["query_bias"][[0, 2]])
    assert found["layers"][1]["down"] is second["down"]
    assert found["embedding"] is params["embedding"]


def test_keeping_all_is_the_identity():
    params = random_params(VIT, DENSE)
    table = VIT.units()
    importance = selection.importances(no_gradients, table, params, [], "random")
    found = selection.select(params, table, selection.choose(importance, DENSE, DENSE))
    same = jax.tree.map(lambda a, b: a is b, found, params)
    assert all(jax.tree.leaves(same))
    images = random_images()
    np.testing.assert_array_equal(forward(VIT, DENSE)(found, images),
                                  forward(VIT, DENSE)(params, images))  # fmt: skip


def test_units_that_do_nothing_go_first():
    """A model with spare units in odd places computes the same without them."""
    params = random_params(VIT, DENSE)
    table, target = VIT.units(), Topology((4, 4), (9, 9))
    idle = {"heads": [0, 3], "channels": [2, 5, 11]}

    def quieten(axis, leaf):
        if axis.role == "input":
            return leaf
        leaf = leaf.copy()
        np.moveaxis(leaf, axis.axis, 0)[idle[axis.unit]] = 0
        return leaf

    params = map_units(quieten, table, params)
    images, labels = random_images(), np.array([0, 3, 1])

    def loss_and_grads(params, batch):
        (loss, _), grads = helpers.loss_and_grads(VIT, DENSE)(params, *batch)
        return loss, grads

    batches = [(images, labels, jax.random.key(i)) for i in range(2)]
    for kind in ("taylor", "magnitude"):
        importance = selection.importances(loss_and_grads, table, params, batches, kind)
        found = selection.select(params, table, selection.choose(importance, DENSE, target))
        np.testing.assert_allclose(
            forward(VIT, target)(found, images), forward(VIT, DENSE)(params, images), atol=1e-5
        )


# --- on a model that has learnt something -------------------------------------------------------

DIGITS = ViTConfig(layers=2, width=16, heads=8, head_width=4, channels=32, patch_size=4)
TRAINED, SMALL = Topology((8, 8), (32, 32)), Topology((4, 4), (16, 16))


@functools.cache
def digits():
    """Normalised training and validation images with their labels."""
    data = blueprint_lib.load_data(tiny.config(data__validation_fraction=0.2))

    def arrays(source):
        batch = source.read(np.arange(len(source)))
        return (batch["image"].astype(np.float32) / 255 - 0.5) / 0.25, batch["label"]

    return arrays(data.train), arrays(data.validation)


def logits(topology, params, images):
    return DIGITS.module(topology, 10).apply({"params": params}, images)


def accuracy(topology, params):
    images, labels = digits()[1]
    return np.mean(
        np.argmax(jax.jit(logits, static_argnums=0)(topology, params, images), 1) == labels
    )


@jax.jit
def loss_and_grads(params, batch):
    def loss(params):
        found = logits(TRAINED, params, batch[0])
        return optax.softmax_cross_entropy_with_integer_labels(found, batch[1]).mean()

    return jax.value_and_grad(loss)(params)


def batches(seed, count, size):
    images, labels = digits()[0]
    rng = np.random.default_rng(seed)
    for _ in range(count):
        chosen = rng.choice(len(images), size, replace=False)
        yield images[chosen], labels[chosen]


@jax.jit
def run(params, batches):
    """Trains on batches, all in one call: such small steps cost less than their dispatch."""
    tx = optax.adam(1e-2)

    def step(carry, batch):
        params, state = carry
        updates, state = tx.update(loss_and_grads(params, batch)[1], state)
        return (optax.apply_updates(params, updates), state), None

    return jax.lax.scan(step, (params, tx.init(params)), batches)[0][0]


@functools.cache
def trained(seed):
    params = init_params(DIGITS, TRAINED, 8, 10, jax.random.key(seed))
    return run(params, tuple(map(np.stack, zip(*batches(seed, 200, 64), strict=True))))


def test_taylor_keeps_more_accuracy_than_chance_does():
    table = DIGITS.units()

    def kept(kind, seed):
        params = trained(seed)
        importance = selection.importances(
            loss_and_grads, table, params, batches(100 + seed, 40, 8), kind, seed
        )
        chosen = selection.choose(importance, TRAINED, SMALL)
        return accuracy(SMALL, selection.select(params, table, chosen))

    dense = np.mean([accuracy(TRAINED, trained(seed)) for seed in range(3)])
    taylor, random = (np.mean([kept(kind, s) for s in range(3)]) for kind in ("taylor", "random"))
    assert dense > 0.7
    assert taylor > random + 0.05
