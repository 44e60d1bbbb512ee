"""Whole batches: the stages together."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from barter_jax.data import augment
from barter_jax.data.augment import image as image_lib
from tests.data.augment.helpers import PLAIN, images

FULL = dataclasses.replace(
    PLAIN,
    mean=(0.5, 0.4, 0.3),
    std=(0.25, 0.2, 0.3),
    flip=True,
    image_size=16,
    crop="resized",
    crop_scale=(0.3, 1.0),
    brightness=0.4,
    contrast=0.4,
    saturation=0.4,
    hue=0.1,
    policy="randaugment",
    policy_ops=2,
    policy_probability=0.9,
    erase_probability=0.5,
    erase_mode="pixel",
    mixup_alpha=0.8,
    cutmix_alpha=1.0,
    mix_pairs="flip",
    label_smoothing=0.1,
)
COUNT = 35
MANY = 5000
prepare = jax.jit(augment.prepare_train, static_argnames="augmentation")
draw = jax.jit(image_lib.draw, static_argnums=(1, 2, 3))
apply_batch = jax.jit(image_lib.apply_batch, static_argnums=2)


def batch(count=COUNT, size=20):
    return np.concatenate([images(size, seed) for seed in range(count // 5)])


def labels(count=COUNT):
    return np.arange(count, dtype=np.int32) % 4


def key(seed=0):
    return jax.random.key(seed)


def test_the_same_key_gives_the_same_bits_and_another_another_batch():
    first, second, other = (prepare(key(s), batch(), labels(), FULL) for s in (0, 0, 1))
    assert first[0].shape == (COUNT, 16, 16, 3) and first[1].shape == (COUNT, 4)
    assert first[0].dtype == first[1].dtype == jnp.float32
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.isfinite(first[0]).all()
    assert (np.asarray(first[0]) != other[0]).mean() > 0.5
    np.testing.assert_allclose(first[1].sum(1), 1, rtol=1e-5)


def test_one_by_one_and_all_at_once_agree():
    """To the bit in what is drawn and in pixels; normalisation may round differently."""
    choices = draw(key(), COUNT, FULL, (20, 20))
    together = jax.jit(lambda c, x: jax.vmap(lambda c, x: image_lib.apply(c, x, FULL))(c, x))
    np.testing.assert_allclose(
        apply_batch(choices, batch(), FULL),
        together(choices, jnp.asarray(batch())),
        rtol=1e-6,
        atol=1e-6,
    )


def test_an_image_depends_neither_on_the_others_nor_on_how_many_there_are():
    many, few = draw(key(), MANY, FULL, (20, 20)), draw(key(), COUNT, FULL, (20, 20))
    data = jax.tree.map(
        lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x,
        (many, few),
    )
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:COUNT], b), *data)


def test_switching_a_stage_off_leaves_the_draws_of_the_others():
    full = draw(key(), COUNT, FULL, (20, 20))
    less = dataclasses.replace(FULL, brightness=0, contrast=0, saturation=0, hue=0, policy="none")
    less = draw(key(), COUNT, less, (20, 20))
    assert less.jitter is None and less.policy is None
    np.testing.assert_array_equal(full.crop, less.crop)
    np.testing.assert_array_equal(full.flip, less.flip)
    np.testing.assert_array_equal(full.erase.box, less.erase.box)


def test_the_stages_are_drawn_independently():
    choices = draw(key(), MANY, FULL, (20, 20))
    columns = np.stack(
        [
            choices.flip,
            choices.crop[:, 2],
            choices.crop[:, 1],
            choices.jitter.amounts[:, 0],
            choices.jitter.order[:, 0],
            choices.policy.operation[:, 0],
            choices.policy.operation[:, 1],
            choices.erase.box[:, 2] > 0,
        ]
    ).astype(float)
    correlation = np.corrcoef(columns)
    linked = np.abs(correlation[~np.eye(len(columns), dtype=bool)])
    # The width and the place of a crop are linked by its having to fit.
    assert np.sort(linked)[-3] < 4.5 / np.sqrt(MANY)


def test_mixing_comes_last_with_the_smoothed_labels():
    targets = np.asarray(augment.smooth_labels(jnp.asarray(labels()), 4, 0.1))
    for seed in range(4):
        plain = apply_batch(draw(key(seed), COUNT, FULL, (20, 20)), batch(), FULL)
        mixed, soft = prepare(key(seed), batch(), labels(), FULL)
        # The share can be read off any target of two classes.
        own, partner = targets[0], targets[-1]
        share = (soft[0][0] - partner[0]) / (own[0] - partner[0])
        np.testing.assert_allclose(soft[0], share * own + (1 - share) * partner, atol=1e-5)
        blended = share * plain + (1 - share) * plain[::-1]
        from_one = np.minimum(np.abs(mixed - plain), np.abs(mixed - plain[::-1])) < 1e-4
        assert from_one.all() or np.abs(mixed - blended).max() < 1e-4


def test_one_image_is_its_own_partner():
    settings = dataclasses.replace(PLAIN, mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1)
    one = images(32)[:1]
    output, targets = prepare(key(), one, labels()[:1], settings)
    np.testing.assert_allclose(output, one, rtol=1e-5)
    np.testing.assert_allclose(targets, [[0.925, 0.025, 0.025, 0.025]], rtol=1e-5)


def test_without_anything_the_centre_comes_out():
    settings = dataclasses.replace(PLAIN, image_size=16)
    output, _ = prepare(key(), batch(), labels(), settings)
    np.testing.assert_allclose(output, batch()[:, 2:18, 2:18], rtol=1e-5)
    np.testing.assert_allclose(output, augment.prepare_eval(batch(), settings), rtol=1e-6)


def test_a_padded_crop_of_larger_images():
    # Rotations, shears and the rest of white on black lead to neither of the two alone.
    settings = dataclasses.replace(
        PLAIN, image_size=16, crop="padded", crop_padding=3, policy="autoaugment_cifar"
    )
    output, _ = prepare(key(), np.full((COUNT, 20, 20, 3), 255, np.uint8), labels(), settings)
    assert output.shape == (COUNT, 16, 16, 3)
    choices = draw(key(), COUNT, settings, (20, 20))
    untouched = ~np.asarray(choices.policy.operation).any(1)
    assert untouched.sum() >= 5
    for corner, result in zip(
        np.asarray(choices.crop)[untouched], np.asarray(output)[untouched], strict=True
    ):
        window = np.pad(np.full((20, 20, 3), 255), ((3, 3), (3, 3), (0, 0)))
        top, left = corner
        np.testing.assert_allclose(result, window[top : top + 16, left : left + 16], rtol=1e-6)


def test_what_is_off_costs_nothing():
    def loops(settings):
        lowered = jax.jit(
            lambda c, x: image_lib.apply_batch(c, x, settings),
        ).lower(draw(key(), COUNT, settings, (20, 20)), batch())
        return lowered.as_text().count("stablehlo.while")

    plain = dataclasses.replace(FULL, crop="padded", crop_padding=2, policy="none")
    plain = dataclasses.replace(plain, brightness=0, contrast=0, saturation=0, hue=0)
    plain = dataclasses.replace(plain, erase_mode="constant")
    assert loops(plain) == 0
    assert loops(dataclasses.replace(plain, policy="randaugment")) > 0


def test_only_one_formulation_is_lowered():
    settings = dataclasses.replace(FULL, erase_mode="constant", crop="padded")
    choices = draw(key(), COUNT, settings, (20, 20))
    traced = apply_batch.trace(choices, jnp.asarray(batch()), settings)
    # How far a loop over the batch counts.
    bound = f"dense<{COUNT}> : tensor<i32>"
    assert bound in traced.lower(lowering_platforms=("cpu",)).as_text()
    assert bound not in traced.lower(lowering_platforms=("cuda",)).as_text()
