"""The paper's fine-tuning of a ViT on CIFAR-100: 100 epochs of 527 steps (three passes) of 256.

    python -m barter_jax.main --config=configs/paper/vit_finetune_cifar100.py \\
        --config.init.from=runs/vit_tiny_imagenet_dense --config.density=0.3

init.from is a dense model: a work directory of configs/paper/vit_tiny_imagenet.py with
--config.method=dense, or a safetensors file of timm or Hugging Face. Images are scaled to the 64
pixels of that model. With --config.train.match_flops_of=rigl the run gets the training FLOPs that a
full-size method takes in 100 epochs: 906.17 epochs at density 0.1, 324.28 at 0.3.
"""

from barter_jax.config import default_config


def get_config():
    config = default_config("vit")

    config.data.name = "cifar100"
    config.data.image_size = 64
    config.data.resize = True
    config.data.num_classes = 100
    config.data.num_train = 45_000
    config.data.validation_fraction = 0.1
    config.data.mean = (0.5070, 0.4865, 0.4409)
    config.data.std = (0.2673, 0.2564, 0.2762)

    config.augment.crop = "padded"
    config.augment.crop_padding = 4
    config.augment.flip = True
    config.augment.policy = "autoaugment_cifar"
    config.augment.erase_probability = 0.25
    config.augment.erase_area = (0.02, 0.4)
    config.augment.erase_ratio_law = "uniform"
    # As in configs/paper/vit_tiny_imagenet.py: the data's mean, after normalisation.
    config.augment.erase_value = (0.5070, 0.4865, 0.4409)
    config.augment.mix_probability = 0.5
    config.augment.mixup_alpha = 1.0
    config.augment.cutmix_alpha = 1.0
    config.augment.label_smoothing = 0.1

    config.model.patch_size = 8

    config.train.epochs = 100
    config.train.batch_size = 256
    config.train.passes_per_epoch = 3.0

    config.optimizer.learning_rate = 1e-3
    config.optimizer.end_learning_rate = 1e-6
    config.optimizer.warmup_fraction = 0.1
    config.optimizer.weight_decay = 0.05
    return config
