"""The main job: a small ViT on 1,797 handwritten digits, in minutes on a CPU."""

from barter_jax.config import default_config


def get_config():
    config = default_config("vit")
    config.density = 0.3

    config.data.name = "digits"
    config.data.image_size = 8
    config.augment.flip = False  # a mirrored digit is another digit, or none
    config.augment.crop_padding = 1
    config.augment.label_smoothing = 0.1
    config.data.mean = (0.3, 0.3, 0.3)
    config.data.std = (0.37, 0.37, 0.37)

    config.model.layers = 4
    config.model.width = 96
    config.model.heads = 12
    config.model.head_width = 8
    config.model.channels = 192
    config.model.patch_size = 2
    config.model.drop_path = 0.0

    config.train.epochs = 160
    config.train.batch_size = 64
    config.train.eval_every_steps = 100

    config.optimizer.learning_rate = 3e-3
    config.optimizer.beta2 = 0.98

    config.topology.updates = 8
    # Digits are few and the run is short: move more than the paper's fraction, so that there is
    # something to see.
    config.topology.total_heads = 4
    config.topology.total_channels = 96
    config.scores.decay = 0.95
    return config
