"""Where arrays live: batches are split over the local devices, everything else is on each."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from barter_jax.errors import UserError

PyTree = Any


class Placement:
    """Data parallelism over the devices of all processes.

    Args:
      batch_sizes: config field name to batch size; each must split over the devices.
      devices: defaults to all devices of all processes, which have equally many.

    Raises:
      UserError: a batch size does not.
    """

    def __init__(self, batch_sizes: dict[str, int], devices: list[jax.Device] | None = None):
        devices = devices or jax.devices()
        for field, size in batch_sizes.items():
            if size % len(devices):
                raise UserError(
                    f"config.{field}={size} does not split evenly over {len(devices)} devices: "
                    f"use a multiple of {len(devices)}"
                )
        self.devices = len(devices)
        mesh = Mesh(np.array(devices), ("data",))
        self.everywhere = NamedSharding(mesh, PartitionSpec())
        self.split = NamedSharding(mesh, PartitionSpec("data"))
        # Several steps that do not wait for each other can, on CPU devices that share their
        # threads, wait for each other's sums for ever.
        self._one_at_a_time = len(devices) > 1 and devices[0].platform == "cpu"

    def queued(self, result: PyTree) -> PyTree:
        """The result of a step that no later step takes in; waited for where it has to be."""
        return jax.block_until_ready(result) if self._one_at_a_time else result

    def replicate(self, tree: PyTree) -> PyTree:
        """The tree on every device; arrays that are there already are not moved.

        The result may be donated: where a device array shares memory with a numpy array, JAX does
        not write into it.
        """
        return jax.tree.map(
            lambda x: (
                x
                if isinstance(x, jax.Array) and x.sharding == self.everywhere
                else _placed(x, self.everywhere)
            ),
            tree,
        )

    def shard(self, batch: PyTree) -> PyTree:
        """The batch, its leading axis split over the devices.

        Of several processes each gives its own part of the batch, in their order.
        """
        return jax.tree.map(lambda x: _placed(x, self.split), batch)

    def abstract_state(self, tree: PyTree) -> PyTree:
        """Shape structs of a replicated tree."""
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self.everywhere), tree
        )

    def abstract_batch(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        """Shape struct of a split batch."""
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self.split)


def _placed(x: Any, sharding: NamedSharding) -> jax.Array:
    if jax.process_count() == 1:
        return jax.device_put(x, sharding)
    if jax.dtypes.issubdtype(getattr(x, "dtype", np.float32), jax.dtypes.prng_key):
        data = _placed(np.asarray(jax.random.key_data(x)), sharding)
        return jax.jit(jax.random.wrap_key_data, out_shardings=sharding)(data)
    return jax.make_array_from_process_local_data(sharding, np.asarray(x))
