"""The paper's ViT on Tiny-ImageNet: 100 epochs of 1,054 steps (three passes) of 256 images.

    python -m barter_jax.main --config=configs/paper/vit_tiny_imagenet.py --config.density=0.3 \\
        --config.data.dir=tiny-imagenet-200.zip

data.dir is the archive, the folder extracted from it, or where TensorFlow Datasets keeps its data;
without one the archive is downloaded. 10,000 of the 100,000 training images are held out by seed
and select the model; the archive's val/ images are the test set, touched once.

The recipe follows the public one for ViTs on small data sets (hananshafi,
vits-for-small-scale-datasets), but for the paper's own learning rate, weight decay and epochs, and
for details of AutoAugment: rotations go both ways, as in most implementations, and what is rotated,
sheared or shifted is interpolated linearly. On accelerators add --config.model.dtype=bfloat16.
"""

from barter_jax.config import default_config


def get_config():
    config = default_config("vit")

    config.data.name = "tiny_imagenet"
    config.data.image_size = 64
    config.data.num_classes = 200
    config.data.num_train = 90_000
    config.data.validation_fraction = 0.1
    config.data.mean = (0.4802, 0.4481, 0.3975)
    config.data.std = (0.2770, 0.2691, 0.2821)

    config.augment.crop = "padded"
    config.augment.crop_padding = 4
    config.augment.flip = True
    config.augment.policy = "autoaugment_imagenet"
    config.augment.erase_probability = 0.25
    config.augment.erase_area = (0.02, 0.4)
    config.augment.erase_ratio_law = "uniform"
    # The public code fills with the data's mean after normalisation, that is, with these values
    # where 0 would be the mean colour.
    config.augment.erase_value = (0.4802, 0.4481, 0.3975)
    config.augment.mix_probability = 0.5
    config.augment.mixup_alpha = 1.0
    config.augment.cutmix_alpha = 1.0
    config.augment.label_smoothing = 0.1

    config.model.patch_size = 8

    config.train.epochs = 100
    config.train.batch_size = 256
    config.train.passes_per_epoch = 3.0

    config.optimizer.learning_rate = 2e-3
    config.optimizer.end_learning_rate = 1e-6
    config.optimizer.warmup_fraction = 0.1
    config.optimizer.weight_decay = 0.05
    return config
