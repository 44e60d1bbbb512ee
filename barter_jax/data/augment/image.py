"""What happens to one image: drawn first, then done."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from barter_jax.data.augment import crop, erase, jitter, pixels, policy
from barter_jax.data.augment.randomness import image_keys, uniform
from barter_jax.data.augment.settings import Augmentation

# What is folded into the batch's key; 0 and 1 are what `jax.random.split` gives crop and flip.
_NUMBERS, _NOISE = 2, 3

Stage = Callable[["Choices", jax.Array, Augmentation], jax.Array]


class Choices(NamedTuple):
    """What to do to one image, or with a leading axis to each of a batch; None where off.

    Attributes:
        crop: top and left of a window, int32 [2], or a box to resize, int32 [4].
        flip: whether to mirror, bool.
        jitter: of the colours.
        policy: operations and their arguments.
        erase: a box.
    """

    crop: jax.Array | None
    flip: jax.Array | None
    jitter: jitter.Jitter | None
    policy: policy.Policy | None
    erase: erase.Erase | None


def draw(
    key: jax.Array, batch_size: int, settings: Augmentation, shape: tuple[int, int]
) -> Choices:
    """Draws what to do to each image of a batch.

    What happens to image i depends on the key and i alone, not on the size of the batch.

    Args:
        key: decides everything.
        batch_size: images in the batch, B.
        settings: what to draw.
        shape: height and width of the images as they come in.

    Returns:
        Choices whose arrays have a leading axis B.
    """
    height, width = settings.output_shape(shape)
    crop_key, flip_key = jax.random.split(key)

    s, out = settings, (height, width)

    def of_images(key: jax.Array, one: Callable[[jax.Array], jax.Array]) -> jax.Array:
        return jax.vmap(one)(image_keys(key, batch_size))

    # Each stage has its own part of an image's numbers, whether it is on or not, so that switching
    # one off leaves the others as they were.
    counts = (crop.NUMBERS, jitter.NUMBERS, erase.NUMBERS, policy.numbers(s))
    places = [sum(counts[:i]) for i in range(len(counts) + 1)]
    numbers = image_keys(jax.random.fold_in(key, _NUMBERS), batch_size)
    numbers = uniform(numbers, places[-1])
    for_crop, for_jitter, for_erase, for_policy = (
        numbers[:, a:b] for a, b in itertools.pairwise(places)
    )

    corners = flips = jitters = policies = erases = None
    if s.crop == "resized":
        corners = jax.vmap(lambda u: crop.draw_box(u, shape, s.crop_scale, s.crop_ratio))(for_crop)
    elif s.crop == "padded" and (s.crop_padding > 0 or shape != out):
        corners = of_images(
            crop_key, lambda k: crop.draw_window(k, shape, s.crop_padding, height, width)
        )
    if s.flip:
        flips = of_images(flip_key, jax.random.bernoulli)
    if jitter.is_on(s):
        jitters = jax.vmap(lambda u: jitter.draw(u, s))(for_jitter)
    if s.policy != "none":
        policies = jax.vmap(lambda u: policy.draw(u, s, out))(for_policy)
    if s.erase_probability > 0:
        boxes = jax.vmap(lambda u: erase.draw(u, s, out))(for_erase)
        noisy = s.erase_mode == "pixel"
        noise = image_keys(jax.random.fold_in(key, _NOISE), batch_size) if noisy else None
        erases = erase.Erase(boxes, noise)
    return Choices(corners, flips, jitters, policies, erases)


def apply(choices: Choices, image: jax.Array, settings: Augmentation) -> jax.Array:
    """Does to one image what was drawn for it.

    Args:
        choices: of one image.
        image: uint8 [H, W, 3].
        settings: what the choices were drawn for.

    Returns:
        float32 [h, w, 3], normalised.
    """
    for _, stage in _stages(settings):
        image = stage(choices, image, settings)
    return image


def apply_batch(choices: Choices, images: jax.Array, settings: Augmentation) -> jax.Array:
    """Does to every image of a batch what was drawn for it: `apply`, mapped stage by stage.

    Args:
        choices: arrays with a leading axis B.
        images: uint8 [B, H, W, 3].
        settings: what the choices were drawn for.

    Returns:
        float32 [B, h, w, 3], normalised.
    """
    for mapped, stage in _stages(settings):
        images = mapped(functools.partial(stage, settings=settings), choices, images)
    return images


def all_at_once(function: Callable[..., jax.Array], *batches: Any) -> jax.Array:
    """Maps a function of one image over pytrees whose arrays have a leading axis of the batch."""
    return jax.vmap(function)(*batches)


def one_by_one_on_cpus(function: Callable[..., jax.Array], *batches: Any) -> jax.Array:
    """Maps a function of one image over pytrees whose arrays have a leading axis of the batch.

    On CPUs one image after the other, so that of a `lax.switch` or `lax.cond` only the branch taken
    runs; elsewhere all at once, where every branch runs and the one taken is selected. The values
    are the same.
    """
    return jax.lax.platform_dependent(
        *batches,
        cpu=lambda *b: jax.lax.map(lambda one: function(*one), b),
        default=jax.vmap(function),
    )


def _stages(settings: Augmentation) -> list[tuple[Callable[..., jax.Array], Stage]]:
    """Returns what is done in a row, and how each is best mapped over a batch."""
    resized = settings.crop == "resized"
    noisy = settings.erase_probability > 0 and settings.erase_mode == "pixel"
    stages = [(one_by_one_on_cpus if resized else all_at_once, _place)]
    if _is_recoloured(settings):
        stages.append((one_by_one_on_cpus, _recolour))
    return [*stages, (one_by_one_on_cpus if noisy else all_at_once, _finish)]


def _is_recoloured(settings: Augmentation) -> bool:
    return settings.policy != "none" or jitter.is_on(settings)


def _place(choices: Choices, image: jax.Array, settings: Augmentation) -> jax.Array:
    """Crops and flips: uint8 [h, w, 3], or packed if that is how this or a later stage works."""
    height, width = settings.output_shape(image.shape[:2])
    if settings.crop == "resized" or _is_recoloured(settings):
        image = pixels.pack(image)
    if settings.crop == "resized":
        image = crop.resized(image, choices.crop, height, width, settings.crop_interpolation)
    elif choices.crop is not None:
        image = crop.window(image, choices.crop, settings.crop_padding, height, width)
    else:
        image = crop.centre(image, height, width)
    if choices.flip is not None:
        image = jnp.where(choices.flip, image[:, ::-1], image)
    return image


def _recolour(choices: Choices, image: jax.Array, settings: Augmentation) -> jax.Array:
    """Jitter and policy of a packed image."""
    if choices.jitter is not None:
        image = jitter.apply(choices.jitter, image, settings)
    if choices.policy is not None:
        image = policy.apply(choices.policy, image, settings)
    return image


def _finish(choices: Choices, image: jax.Array, settings: Augmentation) -> jax.Array:
    """Normalises and erases."""
    if image.ndim == 2:
        image = pixels.unpack(image)
    image = pixels.normalise(image, settings.mean, settings.std)
    if choices.erase is not None:
        image = erase.apply(choices.erase, image, settings)
    return image
