"""The paper's CCT-7/3x1 on CIFAR-100: 200 epochs of 351 steps of 128 images.

    python -m barter_jax.main --config=configs/paper/cct_cifar100.py --config.density=0.3

The data comes through TensorFlow Datasets into data.dir (by default ~/tensorflow_datasets). 5,000
of the 50,000 training images are held out by seed and select the model; the test images are touched
once. The recipe follows the public one of the model (SHI-Labs, Compact-Transformers), but for the
paper's own learning rate, weight decay and epochs; and where timm draws bilinear or bicubic
interpolation at random, crops are bicubic here and RandAugment bilinear. On accelerators add
--config.model.dtype=bfloat16.
"""

from barter_jax.config import default_config


def get_config():
    config = default_config("cct")

    config.data.name = "cifar100"
    config.data.image_size = 32
    config.data.num_classes = 100
    config.data.num_train = 45_000
    config.data.validation_fraction = 0.1
    config.data.mean = (0.5071, 0.4867, 0.4408)
    config.data.std = (0.2675, 0.2565, 0.2761)

    config.augment.crop = "resized"
    config.augment.crop_scale = (0.8, 1.0)
    config.augment.crop_interpolation = "bicubic"
    config.augment.flip = True
    config.augment.policy = "randaugment"  # "rand-m9-mstd0.5-inc1"
    config.augment.policy_fill = (129, 124, 112)  # the mean colour
    config.augment.erase_probability = 0.25
    config.augment.erase_mode = "pixel"
    config.augment.mixup_alpha = 0.8
    config.augment.cutmix_alpha = 1.0
    config.augment.mix_pairs = "flip"
    config.augment.label_smoothing = 0.1

    config.train.epochs = 200
    config.train.batch_size = 128

    config.optimizer.learning_rate = 3e-4
    config.optimizer.end_learning_rate = 0.0
    config.optimizer.warmup_fraction = 0.05
    config.optimizer.weight_decay = 0.05
    config.optimizer.decay_mask = "kernels"
    return config
