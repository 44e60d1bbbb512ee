"""The paper's CCT-7/3x1 on CIFAR-100: 200 epochs of 351 steps of 128 images."""

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
    config.augment.label_smoothing = 0.1

    config.train.epochs = 200
    config.train.batch_size = 128

    config.optimizer.learning_rate = 3e-4
    config.optimizer.end_learning_rate = 0.0
    config.optimizer.warmup_fraction = 0.05
    config.optimizer.weight_decay = 0.05
    config.optimizer.decay_mask = "kernels"
    return config
