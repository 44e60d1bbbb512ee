"""RandAugment and AutoAugment: a few operations of a fixed set, drawn anew for every image.

RandAugment (Cubuk et al., 2020) is the variant of timm's "m9-mstd0.5-inc1" strings: 15 operations,
each applied with a probability, at a magnitude with normal noise. AutoAugment (Cubuk et al., 2019)
draws one of 25 pairs of operations whose probabilities and magnitudes were searched for.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from barter_jax.data.augment import colour, geometry
from barter_jax.data.augment.randomness import below, normal, sign
from barter_jax.data.augment.settings import Augmentation

# An operation's index in here is its number; 0 does nothing.
OPERATIONS = (
    "Identity",
    "AutoContrast",
    "Equalize",
    "Invert",
    "Rotate",
    "Posterize",
    "Solarize",
    "SolarizeAdd",
    "Color",
    "Contrast",
    "Brightness",
    "Sharpness",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
)
_NUMBER = {name: number for number, name in enumerate(OPERATIONS)}
_GEOMETRIC = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")

# A pair a line: name, probability and magnitude in 0..9, twice. From the paper's appendix;
# operations without a magnitude have 0.
_IMAGENET = """
    Posterize .4 8     Rotate .6 9
    Solarize .6 5      AutoContrast .6 0
    Equalize .8 0      Equalize .6 0
    Posterize .6 7     Posterize .6 6
    Equalize .4 0      Solarize .2 4
    Equalize .4 0      Rotate .8 8
    Solarize .6 3      Equalize .6 0
    Posterize .8 5     Equalize 1 0
    Rotate .2 3        Solarize .6 8
    Equalize .6 0      Posterize .4 6
    Rotate .8 8        Color .4 0
    Rotate .4 9        Equalize .6 0
    Equalize 0 0       Equalize .8 0
    Invert .6 0        Equalize 1 0
    Color .6 4         Contrast 1 8
    Rotate .8 8        Color 1 2
    Color .8 8         Solarize .8 7
    Sharpness .4 7     Invert .6 0
    ShearX .6 5        Equalize 1 0
    Color .4 0         Equalize .6 0
    Equalize .4 0      Solarize .2 4
    Solarize .6 5      AutoContrast .6 0
    Invert .6 0        Equalize 1 0
    Color .6 4         Contrast 1 8
    Equalize .8 0      Equalize .6 0
"""
_CIFAR = """
    Invert .1 0        Contrast .2 6
    Rotate .7 2        TranslateX .3 9
    Sharpness .8 1     Sharpness .9 3
    ShearY .5 8        TranslateY .7 9
    AutoContrast .5 0  Equalize .9 0
    ShearY .2 7        Posterize .3 7
    Color .4 3         Brightness .6 7
    Sharpness .3 9     Brightness .7 9
    Equalize .6 0      Equalize .5 0
    Contrast .6 7      Sharpness .6 5
    Color .7 7         TranslateX .5 8
    Equalize .3 0      AutoContrast .4 0
    TranslateY .4 3    Sharpness .2 6
    Brightness .9 6    Color .2 8
    Solarize .5 2      Invert 0 0
    Equalize .2 0      AutoContrast .6 0
    Equalize .2 0      Equalize .6 0
    Color .9 9         Equalize .6 0
    AutoContrast .8 0  Solarize .2 8
    Brightness .1 3    Color .7 0
    Solarize .4 5      AutoContrast .9 0
    TranslateY .9 9    TranslateY .7 9
    AutoContrast .9 0  Solarize .8 3
    Equalize .8 0      Invert .1 0
    TranslateY .7 9    AutoContrast .9 0
"""


class Policy(NamedTuple):
    """What to do to one image, or with a leading axis to each of a batch.

    Attributes:
        operation: numbers of the operations in a row, indices into OPERATIONS, int32 [ops].
        argument: of each, float32 [ops]: degrees, slope, part of the side to move by, factor, bits
            to keep, threshold or amount to add; 0 where there is none.
        matrix: of each that is geometric, float32 [ops, 6]; see `geometry`.
    """

    operation: jax.Array
    argument: jax.Array
    matrix: jax.Array


def numbers(settings: Augmentation) -> int:
    """Returns how many random numbers `draw` takes."""
    if settings.policy == "none":
        return 0
    return 4 * settings.policy_ops if settings.policy == "randaugment" else 5


def draw(uniform: jax.Array, settings: Augmentation, shape: tuple[int, int]) -> Policy:
    """Draws what to do to one image.

    Args:
        uniform: random numbers in (0, 1), float32 [numbers(settings)]; they decide everything.
        settings: of which the fields `policy` and `policy_*` matter.
        shape: height and width of the image.
    """
    rand = settings.policy == "randaugment"
    draw_row = _rand_augment if rand else _auto_augment
    operation, argument = draw_row(uniform, settings)
    return Policy(operation, argument, _matrices(operation, argument, shape))


def apply(choice: Policy, image: jax.Array, settings: Augmentation) -> jax.Array:
    """Applies the operations in a row to one packed image, uint32 [H, W]."""
    names, branch_of = _branches(settings.policy)
    branches = [_step(name, settings) for name in names]

    def step(image: jax.Array, what: Policy) -> tuple[jax.Array, None]:
        which = jnp.asarray(branch_of)[what.operation]
        return jax.lax.switch(which, branches, image, what), None

    return jax.lax.scan(step, image, choice)[0]


def sub_policies(policy: str) -> list[list[tuple[str, float, int]]]:
    """Returns the 25 pairs of (operation, probability, magnitude in 0..9) of an AutoAugment policy.

    Args:
        policy: autoaugment_imagenet or autoaugment_cifar.
    """
    pairs = []
    for line in _TABLES[policy].strip().splitlines():
        words = line.split()
        pairs.append([(w[0], float(w[1]), int(w[2])) for w in (words[:3], words[3:])])
    return pairs


def _rand_augment(uniform: jax.Array, settings: Augmentation) -> tuple[jax.Array, jax.Array]:
    which, apply_at, side, noise = uniform.reshape(4, settings.policy_ops)
    operation = 1 + below(which, len(OPERATIONS) - 1)
    operation = jnp.where(apply_at < settings.policy_probability, operation, 0)
    magnitude = jnp.clip(settings.policy_magnitude + settings.policy_noise * normal(noise), 0, 10)
    arguments = _rand_arguments(magnitude / 10, sign(side), settings.policy_increasing)
    return operation, _pick(arguments, operation)


def _rand_arguments(level: jax.Array, side: jax.Array, increasing: bool) -> dict[str, jax.Array]:
    """Returns the arguments, as timm 1.0 scales them, at levels in 0..1, float32 [ops]."""
    bits = jnp.floor(4 * level)
    threshold = jnp.floor(256 * level)
    factor = jnp.maximum(1 + side * 0.9 * level, 0.1) if increasing else 0.1 + 1.8 * level
    return {
        "Rotate": side * 30 * level,
        "Posterize": 4 - bits if increasing else bits,
        "Solarize": 256 - threshold if increasing else threshold,
        "SolarizeAdd": jnp.floor(110 * level),
        "ShearX": side * 0.3 * level,
        "ShearY": side * 0.3 * level,
        "TranslateX": side * 0.45 * level,
        "TranslateY": side * 0.45 * level,
    } | dict.fromkeys(("Color", "Contrast", "Brightness", "Sharpness"), factor)


def _auto_augment(uniform: jax.Array, settings: Augmentation) -> tuple[jax.Array, jax.Array]:
    pairs = sub_policies(settings.policy)
    operations = np.array([[_NUMBER[name] for name, _, _ in pair] for pair in pairs], np.int32)
    probabilities = np.array([[p for _, p, _ in pair] for pair in pairs], np.float32)
    magnitudes = np.array([[m for _, _, m in pair] for pair in pairs], np.float32)
    pair = below(uniform[0], len(pairs))
    apply_at, side = uniform[1:3], uniform[3:5]
    operation = jnp.where(
        apply_at < jnp.asarray(probabilities)[pair], jnp.asarray(operations)[pair], 0
    )
    arguments = _auto_arguments(jnp.asarray(magnitudes)[pair] / 9, sign(side))
    return operation, _pick(arguments, operation)


def _auto_arguments(level: jax.Array, side: jax.Array) -> dict[str, jax.Array]:
    """Returns the arguments, scaled as in torchvision, at levels in 0..1.

    Some implementations rotate one way only.
    """
    return {
        "Rotate": side * 30 * level,
        "Posterize": 8 - jnp.round(4 * level),
        "Solarize": 256 * (1 - level),
        "ShearX": side * 0.3 * level,
        "ShearY": side * 0.3 * level,
        "TranslateX": side * (150 / 331) * level,
        "TranslateY": side * (150 / 331) * level,
    } | dict.fromkeys(("Color", "Contrast", "Brightness", "Sharpness"), 1 + side * 0.9 * level)


def _pick(arguments: dict[str, jax.Array], operation: jax.Array) -> jax.Array:
    picked = jnp.zeros(operation.shape, jnp.float32)
    for name, argument in arguments.items():
        picked = jnp.where(operation == _NUMBER[name], argument, picked)
    return picked


def _matrices(operation: jax.Array, argument: jax.Array, shape: tuple[int, int]) -> jax.Array:
    height, width = shape
    matrices = {
        "Rotate": geometry.rotation(argument, height, width),
        "ShearX": geometry.shear_x(argument),
        "ShearY": geometry.shear_y(argument),
        "TranslateX": geometry.translation_x(argument * width),
        "TranslateY": geometry.translation_y(argument * height),
    }
    picked = geometry.shear_x(jnp.zeros_like(argument))
    for name, matrix in matrices.items():
        picked = jnp.where((operation == _NUMBER[name])[:, None], matrix, picked)
    return picked


def _branches(policy: str) -> tuple[list[str], np.ndarray]:
    """Returns the kinds of step that a policy has, and the index of each operation's kind.

    All geometric operations are of one kind, Rotate: they differ in the matrix only.
    """
    used = set(OPERATIONS)
    if policy != "randaugment":
        used = {"Identity"} | {name for pair in sub_policies(policy) for name, _, _ in pair}
    kind = {name: "Rotate" if name in _GEOMETRIC else name for name in OPERATIONS}
    names = list(dict.fromkeys(kind[name] for name in OPERATIONS if name in used))
    indices = [names.index(kind[name]) if name in used else 0 for name in OPERATIONS]
    return names, np.array(indices, np.int32)


def _step(name: str, settings: Augmentation) -> Callable[[jax.Array, Policy], jax.Array]:
    if name == "Rotate":
        return lambda image, what: geometry.transform(
            image, what.matrix, settings.policy_interpolation, settings.policy_fill
        )
    if name in _PLAIN:
        return lambda image, what: _PLAIN[name](image)
    if name in _WHOLE:
        return lambda image, what: _WHOLE[name](image, what.argument.astype(jnp.int32))
    return lambda image, what: _REAL[name](image, what.argument)


_TABLES = {"autoaugment_imagenet": _IMAGENET, "autoaugment_cifar": _CIFAR}
_PLAIN = {
    "Identity": lambda image: image,
    "AutoContrast": colour.auto_contrast,
    "Equalize": colour.equalize,
    "Invert": colour.invert,
}
_WHOLE = {"Posterize": colour.posterize, "SolarizeAdd": colour.solarize_add}
_REAL = {
    "Solarize": colour.solarize,
    "Color": colour.saturation,
    "Contrast": colour.contrast,
    "Brightness": colour.brightness,
    "Sharpness": colour.sharpness,
}
