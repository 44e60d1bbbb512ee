"""Augmentation and normalisation on the device: pure functions that know no model.

What happens to an image is drawn first (`draw`), apart from the work on pixels (`apply`), which is
deterministic; `prepare_train` does both for a batch and mixes it. Operations are Pillow's to the
level where that is possible, since that is what the recipes that this package follows were run
with. dm-pix (0.4), the library of image operations for JAX, defines most of them differently, on
float images in 0..1, after TensorFlow:

| operation | here, after Pillow | dm-pix |
| --- | --- | --- |
| brightness | times a factor | adds an amount |
| contrast | about the rounded mean grey value | about the mean of each channel, unrounded |
| saturation | blend with the grey image | scales the saturation of HSV |
| hue | shift in HSV | the same, on floats |
| solarize | 8 bits, threshold in 0..256 | float; the same but for rounding |
| rotation, shear, translation | fill outside the pixels | fill outside their centres |
| resized crop | antialiased, part by part | none |
| equalize, autocontrast, posterize, sharpness, erasing, mixup, CutMix | as cited | none |
| flip, crop | slices | the same slices |

So it is not used.
"""

from barter_jax.data.augment.image import Choices, apply, draw
from barter_jax.data.augment.pixels import normalise
from barter_jax.data.augment.prepare import prepare_eval, prepare_train, smooth_labels
from barter_jax.data.augment.settings import Augmentation, from_config

__all__ = [
    "Augmentation",
    "Choices",
    "apply",
    "draw",
    "from_config",
    "normalise",
    "prepare_eval",
    "prepare_train",
    "smooth_labels",
]
