"""Position embeddings on another grid, against PyTorch's numbers and a second formula."""

import numpy as np
import pytest

from barter_jax.pretrained import positions

GRID = np.array([[1, 2, 0], [4, -1, 3], [0, 5, 2]], np.float32)
# torch.nn.functional.interpolate(mode="bicubic", align_corners=False, antialias=False) of GRID,
# PyTorch 2.13.
TORCH = {
    2: [[1.6731109619, 0.7792358398], [1.6257324219, 2.6933288574]],
    4: [
        [0.6819787025, 1.9668307304, 1.4966158867, -0.3897986412],
        [3.6409516335, 0.5540010929, -0.0711917877, 2.2159273624],
        [3.0357336998, 1.3385343552, 1.3766474724, 3.1226062775],
        [-0.6975159645, 3.7550451756, 4.7967271805, 1.6768267155],
    ],
}


def direct(grid, side):
    """Each value as the sum over its 16 neighbours, in float64; `grid` is `[n, n, d]`."""
    n = len(grid)

    def weight(x):
        x, a = abs(x), -0.75
        near = (a + 2) * x**3 - (a + 3) * x**2 + 1
        far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0))

    out = np.zeros((side, side, grid.shape[-1]))
    for row in range(side):
        for column in range(side):
            y, x = ((i + 0.5) * n / side - 0.5 for i in (row, column))
            for i in range(int(np.floor(y)) - 1, int(np.floor(y)) + 3):
                for j in range(int(np.floor(x)) - 1, int(np.floor(x)) + 3):
                    value = np.float64(grid[np.clip(i, 0, n - 1), np.clip(j, 0, n - 1)])
                    out[row, column] += weight(y - i) * weight(x - j) * value
    return out


@pytest.mark.parametrize("side", TORCH)
def test_torchs_numbers(side):
    found = positions.resize(GRID.reshape(1, 9, 1), side, class_token=False)
    np.testing.assert_allclose(found.reshape(side, side), TORCH[side], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("old", "new"), [(4, 7), (7, 4), (3, 12), (14, 8), (1, 3), (5, 1)])
@pytest.mark.parametrize("class_token", [True, False])
def test_the_formula(old, new, class_token):
    rng = np.random.default_rng(0)
    position = rng.standard_normal((1, old * old + class_token, 6)).astype(np.float32)
    found = positions.resize(position, new, class_token)
    assert found.dtype == np.float32 and found.shape == (1, new * new + class_token, 6)
    np.testing.assert_array_equal(found[:, : int(class_token)], position[:, : int(class_token)])
    want = direct(position[0, int(class_token) :].reshape(old, old, 6), new)
    np.testing.assert_allclose(found[0, int(class_token) :], want.reshape(-1, 6), atol=1e-5)


def test_the_same_grid_is_the_same_array():
    position = np.ones((1, 10, 4), np.float32)
    assert positions.resize(position, 3, class_token=True) is position
