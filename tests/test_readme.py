"""The README's code runs as it stands."""

import pathlib
import re

import numpy as np
import optax

README = (pathlib.Path(__file__).parents[1] / "README.md").read_text()


def test_the_snippet_for_a_model_of_ones_own():
    (snippet,) = [b for b in re.findall(r"```python\n(.*?)```", README, re.S) if "bj." in b]
    rng = np.random.default_rng(0)

    def weights(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    params = {
        f"layer_{i}": {"gate": weights(4, 30), "up": weights(4, 30), "down": weights(30, 4)}
        for i in range(12)
    }
    tx = optax.adamw(1e-3)
    names = {
        "params": params,
        "grads": {k: {n: weights(*w.shape) for n, w in v.items()} for k, v in params.items()},
        "tx": tx,
        "opt_state": tx.init(params),
        "step": 1000,
    }
    exec(snippet, names)
    moved = names["progress"].moved.channels
    assert moved > 0, "no update was due at the step that the snippet's schedule begins with"
    counts = [layer["gate"].shape[1] for layer in names["params"].values()]
    assert sum(counts) == 12 * 30 and max(counts) == 30 + moved
    assert (
        names["opt_state"][0].mu["layer_0"]["down"].shape
        == names["params"]["layer_0"]["down"].shape
    )
