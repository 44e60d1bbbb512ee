"""RandAugment and AutoAugment: what is drawn, how often, and what it does."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from barter_jax.data.augment import geometry, jitter, pixels, policy, randomness
from tests.data.augment.helpers import PLAIN, assert_close, assert_rate, assert_uniform, images

COUNT = 30000
RAND = dataclasses.replace(PLAIN, policy="randaugment", policy_ops=2, policy_noise=1.5)
NUMBER = {name: number for number, name in enumerate(policy.OPERATIONS)}
GEOMETRIC = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")
ENHANCING = ("Color", "Contrast", "Brightness", "Sharpness")


def drawn(settings, seed=0, shape=(32, 48)):
    keys = jax.random.split(jax.random.key(seed), COUNT)
    numbers = randomness.uniform(keys, policy.numbers(settings))
    choice = jax.jit(jax.vmap(lambda u: policy.draw(u, settings, shape)))(numbers)
    return jax.tree.map(np.asarray, choice)


@pytest.fixture(scope="module")
def increasing():
    return drawn(RAND)


def arguments(choice, name):
    return choice.argument[choice.operation == NUMBER[name]]


def test_every_operation_is_equally_likely_and_independent_of_the_one_before(increasing):
    first, second = increasing.operation.T
    assert_rate(first == 0, 0.5)
    for number in range(1, 16):
        assert_rate(first == number, 0.5 / 15)
        assert_rate(second == number, 0.5 / 15)
        assert_rate(second[first == 4] == number, 0.5 / 15)
    for probability in (0.0, 1.0):
        sure = drawn(dataclasses.replace(RAND, policy_probability=probability))
        assert ((sure.operation > 0) == bool(probability)).all()


def test_magnitudes_are_normal_and_clipped(increasing):
    degrees = arguments(increasing, "Rotate")
    magnitude = np.abs(degrees) / 3
    assert_rate(degrees < 0, 0.5)
    # N(9, 1.5) is above 10 with probability Phi(-2/3), below 7.5 with Phi(-1).
    assert_rate(magnitude > 9.9999, 0.252493)
    assert_rate(magnitude < 7.5, 0.158655)
    assert magnitude.max() <= 10.0001
    exact = drawn(dataclasses.replace(RAND, policy_noise=0.0, policy_magnitude=4.0))
    np.testing.assert_allclose(np.abs(arguments(exact, "Rotate")), 12, rtol=1e-6)


def test_arguments_at_magnitude_9():
    choice = drawn(dataclasses.replace(RAND, policy_noise=0.0))
    expected = {
        "Rotate": (-27, 27),
        "Posterize": (1,),  # 4 - int(3.6)
        "Solarize": (26,),  # 256 - int(230.4)
        "SolarizeAdd": (99,),
        **{name: (0.19, 1.81) for name in ENHANCING},
        **{name: (-0.27, 0.27) for name in ("ShearX", "ShearY")},
        **{name: (-0.405, 0.405) for name in ("TranslateX", "TranslateY")},
        **{name: (0,) for name in ("AutoContrast", "Equalize", "Invert", "Identity")},
    }
    assert set(expected) == set(policy.OPERATIONS)
    for name, values in expected.items():
        found = np.unique(np.round(arguments(choice, name), 5))
        np.testing.assert_allclose(found, values, atol=1e-5, err_msg=name)
    plain = drawn(dataclasses.replace(RAND, policy_noise=0.0, policy_increasing=False))
    for name, value in {"Posterize": 3, "Solarize": 230, "SolarizeAdd": 99, "Color": 1.72}.items():
        np.testing.assert_allclose(arguments(plain, name), value, rtol=1e-6)


def test_the_largest_magnitude():
    choice = drawn(dataclasses.replace(RAND, policy_noise=0.0, policy_magnitude=10.0))
    assert not arguments(choice, "Posterize").any() and not arguments(choice, "Solarize").any()
    np.testing.assert_allclose(np.unique(arguments(choice, "Contrast")), [0.1, 1.9], rtol=1e-6)


def test_matrices_are_those_of_the_arguments(increasing):
    made = {
        "Rotate": lambda v: geometry.rotation(v, 32, 48),
        "ShearX": geometry.shear_x,
        "ShearY": geometry.shear_y,
        "TranslateX": lambda v: geometry.translation_x(v * 48),
        "TranslateY": lambda v: geometry.translation_y(v * 32),
    }
    for name, make in made.items():
        here = increasing.operation == NUMBER[name]
        np.testing.assert_allclose(
            increasing.matrix[here], make(increasing.argument[here]), rtol=1e-5, atol=1e-4
        )


# The sums over the 25 pairs of what each operation is applied with, by position, counted by hand
# in the paper's tables.
FIRST = {
    "autoaugment_imagenet": {"Rotate": 2.2, "Equalize": 3.4, "Invert": 1.2, "Sharpness": 0.4},
    "autoaugment_cifar": {"TranslateY": 2.0, "ShearY": 0.7, "Color": 2.0, "Rotate": 0.7},
}
SECOND = {
    "autoaugment_imagenet": {"Equalize": 7.8, "Rotate": 1.4, "Contrast": 2.0, "Invert": 0.6},
    "autoaugment_cifar": {"Equalize": 2.6, "TranslateX": 0.8, "AutoContrast": 2.8, "Invert": 0.1},
}


@pytest.mark.parametrize("name", FIRST)
def test_autoaugment_draws_pairs_of_its_table(name):
    settings = dataclasses.replace(PLAIN, policy=name)
    pairs = policy.sub_policies(name)
    assert len(pairs) == 25
    choice = drawn(settings)
    for position, expected in ((0, FIRST[name]), (1, SECOND[name])):
        for operation, total in expected.items():
            assert_rate(choice.operation[:, position] == NUMBER[operation], total / 25)
    # Which pairs occur at all: those of the table whose probabilities are not 0.
    both = {tuple(row) for row in choice.operation if row.all()}
    assert both == {
        tuple(NUMBER[op] for op, _, _ in pair) for pair in pairs if all(p for _, p, _ in pair)
    }
    for operation in set(np.unique(choice.operation)) - {0}:
        found = arguments(choice, policy.OPERATIONS[operation])
        if policy.OPERATIONS[operation] in GEOMETRIC:
            assert_rate(found > 0, 0.5)
        if policy.OPERATIONS[operation] in ENHANCING:
            assert found.min() >= 0.0999 and found.max() <= 1.9001


def test_autoaugment_arguments():
    imagenet = drawn(dataclasses.replace(PLAIN, policy="autoaugment_imagenet"))
    expected = {
        "Posterize": (4, 5, 6),  # magnitudes 8, 7 and 6, 5
        "Solarize": tuple(256 * (9 - m) / 9 for m in (8, 7, 5, 4, 3)),
        "Rotate": tuple(30 * s * m / 9 for s, m in ((-1, 9), (-1, 8), (-1, 3))) + (10, 80 / 3, 30),
        "ShearX": (-0.3 * 5 / 9, 0.3 * 5 / 9),
    }
    for name, values in expected.items():
        found = np.unique(np.round(arguments(imagenet, name), 4))
        np.testing.assert_allclose(found, sorted(values), atol=1e-4, err_msg=name)
    cifar = drawn(dataclasses.replace(PLAIN, policy="autoaugment_cifar"))
    found = np.unique(np.round(np.abs(arguments(cifar, "TranslateX")), 4))
    np.testing.assert_allclose(found, [150 / 331 * 8 / 9, 150 / 331], atol=1e-4)


def test_operations_are_done_in_a_row_as_pillow_does_them():
    batch = images(32)
    row = [("Equalize", 0), ("Brightness", 1.4), ("Posterize", 3), ("Rotate", 17)]
    row += [("SolarizeAdd", 44), ("Identity", 0), ("Color", 0.3), ("Invert", 0), ("Solarize", 90)]
    matrices = np.zeros((len(row), 6), np.float32)
    matrices[3] = geometry.rotation(jnp.float32(17), 32, 32)
    choice = policy.Policy(
        jnp.array([NUMBER[name] for name, _ in row]),
        jnp.array([value for _, value in row], jnp.float32),
        jnp.asarray(matrices),
    )
    settings = dataclasses.replace(RAND, policy_interpolation="nearest", policy_fill=(1, 2, 3))
    one = jax.jit(lambda x: policy.apply(choice, x, settings))
    for image in batch:
        ours = np.asarray(pixels.unpack(one(pixels.pack(jnp.asarray(image)))))
        theirs = ImageOps.equalize(Image.fromarray(image))
        theirs = ImageOps.posterize(ImageEnhance.Brightness(theirs).enhance(1.4), 3)
        theirs = theirs.rotate(17, fillcolor=(1, 2, 3))
        theirs = theirs.point([min(i + 44, 255) if i < 128 else i for i in range(256)] * 3)
        theirs = ImageOps.invert(ImageEnhance.Color(theirs).enhance(0.3))
        assert_close(ours, np.asarray(ImageOps.solarize(theirs, 90)), 0, message="row")


def test_jitter_is_uniform_and_every_order_occurs():
    settings = dataclasses.replace(PLAIN, brightness=0.4, saturation=1.0, hue=0.2)
    keys = jax.random.split(jax.random.key(3), COUNT)
    numbers = randomness.uniform(keys, jitter.NUMBERS)
    amounts, order = jax.tree.map(
        np.asarray, jax.jit(jax.vmap(lambda u: jitter.draw(u, settings)))(numbers)
    )
    for column, bounds in ((0, (0.6, 1.4)), (2, (0, 2)), (3, (-0.2, 0.2))):
        assert_uniform(amounts[:, column], *bounds)
    assert (amounts[:, 1] == 1).all()
    orders, counts = np.unique(order, axis=0, return_counts=True)
    assert len(orders) == 6
    for count in counts:
        assert_rate(count, 1 / 6, COUNT)


def test_jitter_adjusts_in_the_order_drawn():
    batch = images(32)
    settings = dataclasses.replace(PLAIN, brightness=0.5, contrast=0.5, saturation=0.5)
    enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    amounts = (1.5, 0.6, 1.3)
    one = jax.jit(lambda c, x: jitter.apply(c, x, settings))
    for order in ((0, 1, 2), (2, 0, 1)):
        choice = jitter.Jitter(jnp.array([*amounts, 0.0]), jnp.array(order))
        for image in batch:
            theirs = Image.fromarray(image)
            for index in order:
                theirs = enhancers[index](theirs).enhance(amounts[index])
            ours = pixels.unpack(one(choice, pixels.pack(jnp.asarray(image))))
            # One level at first, times the later factors.
            assert_close(np.asarray(ours), np.asarray(theirs), 2, 0.01)
