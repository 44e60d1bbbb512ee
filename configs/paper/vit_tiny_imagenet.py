"""The paper's ViT on Tiny-ImageNet: 100 epochs of 1,054 steps (three passes) of 256 images."""

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
