"""A run of seconds: 12 steps of a two-layer ViT on the digits, with two topology updates.

Steps 3 and 8 open with an update; step 8 is evaluated too, step 3 saved too, and lines of the log
fall beside the checkpoints.
"""

from barter_jax.config import default_config


def get_config():
    config = default_config("vit")
    config.density = 0.5

    config.data.name = "digits"
    config.data.image_size = 8
    config.augment.flip = False
    config.augment.crop_padding = 1
    config.data.threads = 1
    config.data.validation_fraction = 0.05

    config.model.layers = 2
    config.model.width = 16
    config.model.heads = 4
    config.model.head_width = 4
    config.model.channels = 12
    config.model.patch_size = 4
    config.model.attention_dropout = 0.1
    config.model.drop_path = 0.2

    config.train.steps = 12
    config.train.batch_size = 16
    config.train.eval_every_steps = 4
    config.train.eval_batch_size = 32

    config.optimizer.learning_rate = 1e-2

    config.topology.updates = 2
    config.topology.start_fraction = 0.25
    config.topology.end_fraction = 0.67
    config.topology.total_heads = 2
    config.topology.total_channels = 5

    config.bucket.channels = 1
    config.bucket.waste = 0.0
    config.checkpoint.every_steps = 3
    config.log.every_steps = 5
    config.log.tensorboard = False
    return config
