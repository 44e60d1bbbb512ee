"""Random bits as `jax.random.bits` has them, in one elementwise pass.

Dropout of attention's weights draws more bits than a small model computes numbers. JAX's own
generator is a loop on CPUs, so that it compiles fast: there it takes ten times as long as this.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def bits(keys: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Bits of each key: `[keys, *shape]` uint32, bit-equal to `jax.random.bits(key, shape)`.

    The generator is Threefry-2x32 with 20 rounds (Salmon et al., 2011) of the key and the number
    of the element, the two words of the result combined by exclusive or.

    Args:
      keys: PRNG keys `[keys]` of JAX's default generator.
      shape: of the bits of one key; fewer than 2^32 elements.
    """
    size = int(np.prod(shape))
    data = jax.random.key_data(keys)
    count = jax.lax.broadcasted_iota(jnp.uint32, (len(data), size), 1)
    first, second = _threefry(data[:, :1], data[:, 1:2], jnp.zeros_like(count), count)
    return (first ^ second).reshape(len(data), *shape)


def _threefry(key0, key1, x0, x1):
    schedule = (key0, key1, key0 ^ key1 ^ _PARITY)
    x0, x1 = x0 + schedule[0], x1 + schedule[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = (x1 << np.uint32(rotation)) | (x1 >> np.uint32(32 - rotation))
            x1 = x1 ^ x0
        x0 = x0 + schedule[(group + 1) % 3]
        x1 = x1 + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return x0, x1
