"""Small models, parameter trees and exchanges that several tests share."""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np
import optax
from hypothesis import strategies as st

from barter_jax.core.policy import Plan
from barter_jax.core.surgery import next_topology
from barter_jax.core.topology import UNITS, Budget, Topology, pad
from barter_jax.core.units import UnitTable
from barter_jax.models import CCTConfig, ViTConfig, init_params

IMAGE_SIZE, CLASSES = 8, 5
TINY = {"layers": 2, "width": 16, "heads": 6, "head_width": 4, "channels": 12}
DROPOUT = {"attention_dropout": 0.2, "drop_path": 0.2}
VIT = ViTConfig(**TINY, **DROPOUT, patch_size=4)
CCT = CCTConfig(**TINY, **DROPOUT)
# Layers differ, and so do the counts that the tests' plans reach from here.
UNEVEN = Topology((3, 2), (5, 7))


# --- tiny models ---------------------------------------------------------------------------


def random_params(config, topology: Topology, seed: int = 0, image_size: int = IMAGE_SIZE):
    """Parameters of a model, every leaf random (biases and norms too), as numpy arrays."""
    shapes = jax.eval_shape(
        lambda: init_params(config, topology, image_size, CLASSES, jax.random.key(0))
    )
    rng = np.random.default_rng(seed)

    def fill(path, leaf):
        values = 0.3 * rng.standard_normal(leaf.shape)
        return (values + (path[-1].key == "scale")).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(fill, shapes)


def random_images(batch: int = 3, size: int = IMAGE_SIZE, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((batch, size, size, 3)).astype(np.float32)


@functools.cache
def forward(config, topology: Topology):
    """The compiled evaluation forward pass `(params, images) -> logits`."""
    module = config.module(topology, CLASSES)
    return jax.jit(lambda params, images: module.apply({"params": params}, images))


@functools.cache
def loss_and_grads(config, topology: Topology):
    """Compiled `(params, images, labels, key) -> ((loss, logits), grads)` in training mode."""
    module = config.module(topology, CLASSES)

    def loss(params, images, labels, key):
        logits = module.apply({"params": params}, images, train=True, rngs={"dropout": key})
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.mean(), logits

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


def compiled_optimizer(tx):
    """Compiled `init(params)` and `update(params, opt_state, grads) -> (params, opt_state)`."""

    def update(params, opt_state, grads):
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    return jax.jit(tx.init), jax.jit(update)


def leaves_by_path(tree) -> dict[str, object]:
    """Leaves by the string of their path."""
    return {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }


def unit_leaf_key(axis) -> str:
    """The string of `leaves_by_path` for an entry of a table over nested dicts."""
    return "".join(f"[{name!r}]" for name in axis.path)


# --- a bare tree with units, and exchanges on it -----------------------------------------------

WIDTH = 3


def toy_table(layers: int) -> UnitTable:
    """Unit axes of `toy_params`; they stand on different axes of the leaves."""
    return UnitTable.from_patterns(
        layers,
        {
            "heads": {
                "input": {"layers/{layer}/query": 1, "layers/{layer}/query_bias": 0},
                "output": {"layers/{layer}/out": 0},
            },
            "channels": {
                "input": {"layers/{layer}/up": 1, "layers/{layer}/up_bias": 0},
                "output": {"layers/{layer}/down": 1},
            },
        },
    )


def toy_params(physical: Topology, logical: Topology, rng, dtype=np.float32):
    """A nested dict and list of random arrays, zero beyond the logical counts."""

    def leaf(shape, axis=None, used=None):
        values = rng.standard_normal(shape)
        if axis is not None:
            np.moveaxis(values, axis, 0)[used:] = 0
        return values.astype(dtype)

    def layer(i):
        h, c = physical.heads[i], physical.channels[i]
        used_h, used_c = logical.heads[i], logical.channels[i]
        return {
            "query": leaf((WIDTH, h, 2), 1, used_h),
            "query_bias": leaf((h, 2), 0, used_h),
            "out": leaf((h, 2, WIDTH), 0, used_h),
            "up": leaf((WIDTH, c), 1, used_c),
            "up_bias": leaf((c,), 0, used_c),
            "down": leaf((WIDTH, c), 1, used_c),
            "norm": leaf((WIDTH,)),
        }

    return {"embedding": leaf((4, WIDTH)), "layers": [layer(i) for i in range(len(physical.heads))]}


@dataclasses.dataclass(frozen=True)
class Exchange:
    """A topology, what is to be done to it, and how it is padded."""

    before: Topology
    plans: tuple[Plan, ...]
    bucket: Budget
    share: float
    waste: float = 0.0

    @property
    def after(self) -> Topology:
        return next_topology(self.before, self.plans)

    @property
    def physical_before(self) -> Topology:
        return pad(self.before, self.bucket)

    @property
    def physical_after(self) -> Topology:
        return pad(self.after, self.bucket, self.physical_before, self.waste)

    def descent(self, unit: str, layer: int) -> list[tuple[int, float, bool]]:
        """`(old index, share of its output weights, is a clone)` of each unit after the plans."""
        count = self.before.of(unit)[layer]
        plan = next((plan for plan in self.plans if plan.unit == unit), None)
        if plan is None:
            return [(i, 1.0, False) for i in range(count)]
        if plan.receiver != layer:
            return [(i, 1.0, False) for i in range(count) if (layer, i) not in plan.donors]

        def parts(i):
            """The parent's part and each clone's: in proportion 1 - share : share : share ..."""
            whole = 1 - self.share + plan.parents.count(i) * self.share
            return (1 - self.share) / whole, self.share / whole

        units = [(i, parts(i)[0] if i in plan.parents else 1.0, False) for i in range(count)]
        return units + [(i, parts(i)[1], True) for i in plan.parents]


@st.composite
def exchanges(draw) -> Exchange:
    """Valid exchanges: one or two plans, parents cloned once or more, padding kept or not."""
    layers = draw(st.integers(2, 4))
    before = Topology(
        *(
            draw(st.lists(st.integers(1, most), min_size=layers, max_size=layers).map(tuple))
            for most in (4, 6)
        )
    )
    plans = []
    for unit in draw(st.sampled_from([UNITS, UNITS[:1], UNITS[1:]])):
        counts = before.of(unit)
        receiver = draw(st.integers(0, layers - 1))
        last_ones = {(layer, draw(st.integers(0, n - 1))) for layer, n in enumerate(counts)}
        spare = [
            (layer, i)
            for layer, n in enumerate(counts)
            if layer != receiver
            for i in range(n)
            if (layer, i) not in last_ones
        ]
        donors = draw(st.permutations(spare))[: draw(st.integers(0, 4))]
        parent = st.integers(0, counts[receiver] - 1)
        parents = draw(st.lists(parent, min_size=len(donors), max_size=len(donors)))
        plans.append(Plan(unit, receiver, tuple(donors), tuple(parents)))
    bucket = Budget(draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([1, 4])))
    share, waste = draw(st.sampled_from([0.5, 0.25, 0.7])), draw(st.sampled_from([0.0, 0.4]))
    return Exchange(before, tuple(plans), bucket, share, waste)
