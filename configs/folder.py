"""Your own images: a directory or a zip of class folders.

    python -m barter_jax.main --config=configs/folder.py --config.data.dir=PATH

PATH holds train/<class>/* and test/<class>/* (or val/). Images of another size are scaled and
cropped to data.image_size; for larger images raise it together with model.patch_size.
"""

from barter_jax.config import default_config


def get_config():
    config = default_config("vit")
    config.density = 0.3

    config.data.name = "folder"
    config.data.image_size = 32
    config.data.resize = True
    config.data.mean = (0.485, 0.456, 0.406)
    config.data.std = (0.25, 0.25, 0.25)

    config.model.layers = 6
    config.model.width = 128
    config.model.heads = 8
    config.model.head_width = 16
    config.model.channels = 256
    config.model.patch_size = 4

    config.train.epochs = 30
    config.train.batch_size = 128
    config.train.eval_batch_size = 500

    config.optimizer.learning_rate = 1e-3
    config.optimizer.clip_norm = 1.0
    return config
