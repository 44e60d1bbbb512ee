"""Learned position embeddings for a grid of another size."""

from __future__ import annotations

import math

import numpy as np

# Of the cubic convolution (Keys, 1981), as PyTorch's bicubic interpolation has it.
A = -0.75


def resize(position: np.ndarray, side: int, class_token: bool) -> np.ndarray:
    """Interpolates position embeddings on their square grid; the class token's stays as it is.

    Bicubic without antialiasing, pixel centres aligned (`align_corners=False`), in float32: what
    timm's `resample_abs_pos_embed` computes with `antialias=False`.

    Args:
      position: float32 `[1, n * n, d]`, or `[1, 1 + n * n, d]` with a class token in front.
      side: positions along a side of the new grid.
      class_token: whether there is one.

    Returns:
      float32 `[1, side * side, d]` or `[1, 1 + side * side, d]`.
    """
    kept, grid = position[:, : int(class_token)], position[0, int(class_token) :]
    old, width = math.isqrt(len(grid)), grid.shape[-1]
    if old == side:
        return position
    weights = cubic_weights(old, side).astype(np.float32)
    grid = grid.astype(np.float32).reshape(old, old, width)
    grid = np.tensordot(weights, grid, axes=(1, 0))
    grid = np.tensordot(weights, grid, axes=(1, 1)).swapaxes(0, 1)
    return np.concatenate([kept, grid.reshape(1, side * side, width)], axis=1)


def cubic_weights(old: int, new: int) -> np.ndarray:
    """What each old point along a line gives to each new one: float64 `[new, old]`.

    Four neighbours count; beyond the border the last point stands for what is missing.
    """
    weights = np.zeros((new, old))
    for i in range(new):
        centre = (i + 0.5) * old / new - 0.5
        first = math.floor(centre) - 1
        for j in range(first, first + 4):
            weights[i, min(max(j, 0), old - 1)] += _cubic(abs(centre - j))
    return weights


def _cubic(x: float) -> float:
    if x <= 1:
        return ((A + 2) * x - (A + 3)) * x * x + 1
    if x < 2:
        return ((A * x - 5 * A) * x + 8 * A) * x - 4 * A
    return 0.0
