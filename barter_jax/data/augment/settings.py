"""What to do to a batch, as one hashable value."""

import dataclasses

from ml_collections import config_dict

from barter_jax.errors import UserError

_CHOICES = {
    "crop": ("none", "padded", "resized"),
    "crop_interpolation": ("bilinear", "bicubic"),
    "policy": ("none", "randaugment", "autoaugment_imagenet", "autoaugment_cifar"),
    "policy_interpolation": ("nearest", "bilinear"),
    "erase_ratio_law": ("log", "uniform"),
    "erase_mode": ("constant", "pixel"),
    "mix_pairs": ("permutation", "flip"),
}


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """What to do to a batch; hashable, so that a jitted function can take it as a static argument.

    The fields from `crop` on are those of a config's section `augment`, which says what they mean.

    Attributes:
        mean: per channel, on the scale 0..1.
        std: per channel, on the same scale.
        flip: mirror each training image left to right with probability 1/2.
        crop_padding: zeros on every side of a training image before a padded crop.
        label_smoothing: the part of a training label that is spread evenly over all classes.
        num_classes: the width of a label.
        image_size: height and width of what comes out; None: as it came in.

    Raises:
        UserError: if made with a name that is none of a field's choices.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool
    crop_padding: int
    label_smoothing: float
    num_classes: int
    image_size: int | None = None
    crop: str = "padded"
    crop_scale: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    crop_interpolation: str = "bilinear"
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    policy: str = "none"
    policy_ops: int = 2
    policy_probability: float = 0.5
    policy_magnitude: float = 9.0
    policy_noise: float = 0.5
    policy_increasing: bool = True
    policy_interpolation: str = "bilinear"
    policy_fill: tuple[int, int, int] = (128, 128, 128)
    erase_probability: float = 0.0
    erase_area: tuple[float, float] = (0.02, 1 / 3)
    erase_ratio: tuple[float, float] = (0.3, 1 / 0.3)
    erase_ratio_law: str = "log"
    erase_mode: str = "constant"
    erase_value: tuple[float, float, float] = (0.0, 0.0, 0.0)
    mix_probability: float = 1.0
    mixup_alpha: float = 0.0
    cutmix_alpha: float = 0.0
    cutmix_probability: float = 0.5
    mix_pairs: str = "permutation"

    def __post_init__(self):
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise UserError(
                    f"config.augment.{name} must be one of {', '.join(choices)}, got {value!r}"
                )

    def output_shape(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Returns height and width of what becomes of images of height and width `shape`.

        Raises:
            UserError: if the images are too small for it.
        """
        if self.image_size is None:
            return shape
        padding = self.crop_padding if self.crop == "padded" else 0
        if self.crop != "resized" and min(shape) + 2 * padding < self.image_size:
            raise UserError(
                f"images of {shape[0]}x{shape[1]} are too small for "
                f"config.data.image_size={self.image_size} with config.augment.crop={self.crop}: "
                f"load them at config.data.load_size={self.image_size} or larger"
            )
        return self.image_size, self.image_size


def from_config(config: config_dict.ConfigDict, num_classes: int) -> Augmentation:
    """Returns what a validated config asks for.

    Raises:
        UserError: if images of config.data.load_size give none of config.data.image_size.
    """
    values = {
        name: tuple(value) if isinstance(value, (tuple, list)) else value
        for name, value in config.augment.items()
    }
    size = config.data.image_size
    settings = Augmentation(
        mean=tuple(config.data.mean),
        std=tuple(config.data.std),
        num_classes=num_classes,
        image_size=size,
        **values,
    )
    load_size = config.data.load_size
    if load_size is not None and load_size < size:
        raise UserError(
            f"config.data.load_size={load_size} must not be below config.data.image_size={size}, "
            "which is cut out of the images: leave it out or set it to a larger number"
        )
    return settings
