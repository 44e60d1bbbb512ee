"""ViT-S/16 on ImageNet-1k at 224 pixels, for one GPU or several hosts.

    python -m barter_jax.main --config=configs/vit_small_imagenet.py --config.data.dir=DIR
    srun python -m barter_jax.main --distributed --config=configs/vit_small_imagenet.py \\
        --config.data.dir=DIR

DIR is where TensorFlow Datasets keeps its data: ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar
go into DIR/downloads/manual and are prepared once. 1% of the training images are held out by seed
and select the model; the 50,000 validation images are the test set, touched once.

The recipe follows that of DeiT-S (Touvron et al. 2021), without distillation and repeated
augmentation; the running average's decay, 0.99996 there, suits runs of that length. Images are read
with the shorter side scaled to 256 pixels and cut to the central square; random crops of it are the
augmentation's. train.batch_size is that of all hosts together; where it does not fit into memory,
train.micro_batches takes it in parts.
"""

from barter_jax.config import default_config


def get_config():
    config = default_config("vit")
    config.density = 0.3

    config.data.name = "imagenet"
    config.data.image_size = 224
    config.data.load_size = 256
    config.data.resize = True
    config.data.num_classes = 1000
    config.data.num_train = 1_268_355
    config.data.validation_fraction = 0.01
    config.data.cache_mb = 0  # too many to keep: decoded as they come
    config.data.workers = 8
    config.data.threads = 4
    config.data.mean = (0.485, 0.456, 0.406)
    config.data.std = (0.229, 0.224, 0.225)

    config.augment.crop = "resized"
    config.augment.crop_interpolation = "bicubic"
    config.augment.policy = "randaugment"
    config.augment.policy_fill = (124, 116, 104)
    config.augment.erase_probability = 0.25
    config.augment.erase_mode = "pixel"
    config.augment.mixup_alpha = 0.8
    config.augment.cutmix_alpha = 1.0
    config.augment.mix_pairs = "flip"

    config.model.layers = 12
    config.model.width = 384
    config.model.heads = 6
    config.model.head_width = 64
    config.model.channels = 1536
    config.model.patch_size = 16
    config.model.drop_path = 0.1
    config.model.dtype = "bfloat16"

    config.train.epochs = 300
    config.train.batch_size = 1024
    config.train.eval_batch_size = 1024
    config.train.ema_decay = 0.99996

    config.optimizer.learning_rate = 1e-3
    config.optimizer.end_learning_rate = 1e-5
    config.optimizer.warmup_fraction = 5 / 300
    config.optimizer.weight_decay = 0.05
    config.optimizer.decay_mask = "kernels"
    config.optimizer.decay_exclude = "position,cls_token"

    config.bucket.channels = 64  # multiples that accelerators like
    return config
