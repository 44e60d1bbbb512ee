"""The held-out validation split."""

import numpy as np

from barter_jax.errors import UserError


def stratified_split(
    labels: np.ndarray, fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Splits the training images into those to train on and those to validate on.

    In all round(fraction * N) images are held out; each class gives its share rounded down or up
    (the largest remainders up, ties to the lower label), but never its last image.

    Args:
        labels: integers [N], the label of every image.
        fraction: the part to hold out, between 0 and 1, both excluded.
        seed: a non-negative integer; the split is a function of it and the labels.

    Returns:
        (train, validation): int64 indices, each sorted, disjoint, together 0..N-1.

    Raises:
        UserError: for a fraction outside (0, 1), or one that leaves either side empty.
    """
    if not 0 < fraction < 1:
        raise UserError(
            f"data.validation_fraction={fraction} is not between 0 and 1: set it to, say, 0.1"
        )
    counts = np.bincount(labels)
    shares = fraction * counts
    held = np.floor(shares).astype(np.int64)
    missing = max(round(fraction * len(labels)) - int(held.sum()), 0)
    held[np.argsort(held - shares, kind="stable")[:missing]] += 1
    held = np.minimum(held, np.maximum(counts - 1, 0))

    generator = np.random.default_rng(seed)
    chosen = [
        generator.permutation(np.flatnonzero(labels == label))[:count]
        for label, count in enumerate(held)
        if counts[label]
    ]
    validation = np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)
    train = np.setdiff1d(np.arange(len(labels)), validation)
    for name, part, change in (("validation", validation, "raise"), ("training", train, "lower")):
        if not len(part):
            raise UserError(
                f"data.validation_fraction={fraction} leaves no {name} image of the {len(labels)} "
                f"in {np.count_nonzero(counts)} classes: {change} it, or add images"
            )
    return train, validation
