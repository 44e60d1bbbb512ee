"""How the same numbers lie in a PyTorch tensor and in ours, both ways.

PyTorch keeps a linear layer as `[out, in]` and a convolution as `[out, in, height, width]`; here
inputs stand first, and heads have an axis of their own. A layout moves values and computes
nothing, so there and back is the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Shape = tuple[int, ...]


class Layout(NamedTuple):
    """One tensor of theirs against one or more of ours.

    Attributes:
      read: `(theirs, shapes of ours) -> ours`.
      write: `(ours) -> theirs`.
    """

    read: Callable[[np.ndarray, Sequence[Shape]], tuple[np.ndarray, ...]]
    write: Callable[[Sequence[np.ndarray]], np.ndarray]

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """The shape of theirs for shapes of ours."""
        return self.write([np.empty(shape, np.float32) for shape in shapes]).shape


def _single(
    read: Callable[[np.ndarray, Shape], np.ndarray], write: Callable[[np.ndarray], np.ndarray]
) -> Layout:
    return Layout(
        lambda theirs, shapes: (read(theirs, shapes[0]),),
        lambda ours: write(ours[0]),
    )


def _patch_side(rows: int) -> int:
    return math.isqrt(rows // 3)


SAME = _single(lambda a, shape: a, lambda a: a)
# Biases with an axis for the heads `[h, dh]` against `[h * dh]`.
FLAT = _single(lambda a, shape: a.reshape(shape), lambda a: a.reshape(-1))
# `[in, ...]` against `[out, in]`: also `[d, h, dh]` of query, key and value.
LINEAR = _single(
    lambda a, shape: a.T.reshape(shape),
    lambda a: a.reshape(len(a), -1).T,
)
# `[h, dh, d]` of the output projection against `[d, h * dh]`.
FROM_HEADS = _single(
    lambda a, shape: a.T.reshape(shape),
    lambda a: a.reshape(-1, a.shape[-1]).T,
)
# `[3, 3, 3, d]` (height, width, in, out) against `[d, 3, 3, 3]`.
CONVOLUTION = _single(
    lambda a, shape: a.transpose(2, 3, 1, 0),
    lambda a: a.transpose(3, 2, 0, 1),
)
# `[p * p * 3, d]`, a patch row by row with its colours innermost, against `[d, 3, p, p]`.
PATCHES = _single(
    lambda a, shape: a.transpose(2, 3, 1, 0).reshape(shape),
    lambda a: a.reshape(_patch_side(len(a)), _patch_side(len(a)), 3, -1).transpose(3, 2, 0, 1),
)


def fused(layout: Layout) -> Layout:
    """Several of ours in one of theirs, one after the other along its first axis."""

    def read(theirs: np.ndarray, shapes: Sequence[Shape]) -> tuple[np.ndarray, ...]:
        parts = np.split(theirs, len(shapes))
        return tuple(
            layout.read(part, [shape])[0] for part, shape in zip(parts, shapes, strict=True)
        )

    return Layout(read, lambda ours: np.concatenate([layout.write([a]) for a in ours]))
