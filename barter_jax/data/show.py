"""Shows what a config's model will be trained on: a picture of one batch, and figures of the data.

    python -m barter_jax.data.show --config=configs/vit_tiny.py --output=batch.png --step=100

The batch is the one that the training step of that number takes: the same images, in the same
order, with the same augmentation, drawn without the normalisation. Under each image stands its
class, or the two classes it is mixed of, with their shares. Below are the training images of each
class. Printed are the images and classes of each split, and the mean and deviation of the pixels
of a sample of the training images, ready to be given to --config.data.mean and --config.data.std.

An --output that is there is replaced if it is a PNG, and left alone if it is anything else.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags
from ml_collections import config_dict

from barter_jax import blueprint, cli
from barter_jax.data import grid, survey
from barter_jax.data.dataset import ImageDataset
from barter_jax.errors import UserError
from barter_jax.training import compile_cache
from barter_jax.training.distributed import Placement
from barter_jax.training.inputs import Inputs

flags.declare_key_flag("config")
flags.declare_key_flag("json")
OUTPUT = flags.DEFINE_string("output", "batch.png", "The picture, a .png file.")
STEP = flags.DEFINE_integer("step", 0, "The training step whose batch is drawn.", lower_bound=0)
IMAGES = flags.DEFINE_integer(
    "images", 64, "How many images of the batch to draw, at most.", lower_bound=1
)

# Training images that are looked at for the mean and deviation of the pixels.
SAMPLE = 1024
_PNG = b"\x89PNG\r\n\x1a\n"
_SPLIT_NAMES = {"train": "training", "validation": "validation", "test": "test"}


def training_batch(
    config: config_dict.ConfigDict, dataset: ImageDataset, step: int
) -> tuple[np.ndarray, np.ndarray]:
    """What the training step of that number takes.

    Args:
        config: a validated config.
        dataset: the data it names.
        step: 0 is the first.

    Returns:
        Normalised images (float32 [B, size, size, 3]) and targets (float32 [B, C]).

    Raises:
        UserError: an image of the batch cannot be read, or the batch does not fit the devices.
    """
    config = config.copy_and_resolve_references()
    config.data.workers = 0  # No processes for a single batch; they would read the same.
    placement = Placement({"train.batch_size": config.train.batch_size})
    key = jax.random.fold_in(jax.random.key(config.seed), 2)
    with contextlib.closing(Inputs(config, dataset, placement, key)) as inputs:
        inputs.set_state({"next_index": step})
        images, targets = inputs.prepare(step, inputs.next())
    return np.asarray(images), np.asarray(targets)


def pixels(images: np.ndarray, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    """Undoes the normalisation: uint8 [..., 3] from float32 [..., 3]; what is outside is cut."""
    values = np.asarray(images) * np.float32(std) + np.float32(mean)
    return np.rint(255 * np.clip(values, 0, 1)).astype(np.uint8)


def shares(targets: np.ndarray, smoothing: float) -> list[list[tuple[int, float]]]:
    """The classes that each image is made of.

    Args:
        targets: smoothed labels, float [n, C].
        smoothing: the part of a label that is spread over all classes, in [0, 1).

    Returns:
        For each image [(label, share)], the larger share first; one entry, or two where a second
        class has a share of half a percent or more.
    """
    whole = (np.asarray(targets, np.float64) - smoothing / targets.shape[1]) / (1 - smoothing)
    found = []
    for row in whole:
        first, *others = np.argsort(-row, kind="stable")[:2].tolist()
        second = [label for label in others if row[label] >= 0.005]
        found.append([(label, float(row[label])) for label in (first, *second)])
    return found


def captions(made_of: list[list[tuple[int, float]]], names: Sequence[str]) -> list[list[str]]:
    """The lines below each image: its class, or its classes with their shares."""
    return [
        [names[row[0][0]]]
        if len(row) == 1
        else [f"{share:.0%} {names[label]}" for label, share in row]
        for row in made_of
    ]


def render(doc: dict[str, Any]) -> str:
    """The document that `--json` prints, as text for a person."""
    lines = [f"{'':<12}{'images':>10}{'classes':>9}   smallest class / largest class"]
    for split, name in _SPLIT_NAMES.items():
        row = doc["splits"][split]
        smallest, largest = row["smallest"], row["largest"]
        ends = f"{smallest['class']} {smallest['images']:,} / {largest['class']} "
        ends += f"{largest['images']:,}"
        if smallest["images"] == largest["images"]:
            ends = f"{largest['images']:,} images in each"
        lines.append(f"{name:<12}{row['images']:>10,}{row['classes']:>9,}   {ends}")
    if len(doc["classes"]) <= grid.MOST_BARS:
        lines += ["", f"{'class':<24}" + "".join(f"{n:>12}" for n in _SPLIT_NAMES.values())]
        lines += [
            f"{row['name']:<24}" + "".join(f"{row[split]:>12,}" for split in _SPLIT_NAMES)
            for row in doc["classes"]
        ]
    sample, config = doc["sample"], doc["config"]
    lines += [
        "",
        f"of {sample['images']:,} training images, {sample['greyscale']:,} are greyscale; per "
        "channel, their pixels have",
    ]
    for field in ("mean", "std"):
        values, given = (" ".join(f"{x:.3f}" for x in d[field]) for d in (sample, config))
        lines.append(f"  {field:<5} {values}   (config.data.{field}: {given})")
    pasted = " ".join(
        f"'--config.data.{field}=({', '.join(f'{x:.3f}' for x in sample[field])})'"
        for field in ("mean", "std")
    )
    lines += [
        f"  {pasted}",
        "",
        f"{len(doc['batch'])} of the {doc['batch_size']} images of step {doc['step']} are in "
        f"{doc['output']}",
    ]
    return "\n".join(lines)


def main(config: config_dict.ConfigDict) -> None:
    output = Path(OUTPUT.value)
    check_output(output)
    dataset = blueprint.load_data(config)
    blueprint.check_data(config, dataset)
    plan = blueprint.make(config, len(dataset.class_names), len(dataset.train))
    if STEP.value >= plan.total_steps:
        raise UserError(
            f"--step={STEP.value} is not in the run: its steps are 0 to {plan.total_steps - 1}"
        )
    cache = config.compile_cache
    compile_cache.set_up(cache.enabled, cache.dir, cache.max_mb)
    names = dataset.class_names
    counts = survey.class_counts(dataset)
    images, targets = training_batch(config, dataset, STEP.value)
    images = pixels(images[: IMAGES.value], config.data.mean, config.data.std)
    made_of = shares(targets[: IMAGES.value], config.augment.label_smoothing)
    document = {
        "output": str(output),
        "step": STEP.value,
        "batch_size": config.train.batch_size,
        "splits": {split: survey.extremes(names, counts[split]) for split in survey.SPLITS},
        "classes": [
            {"name": name, **{split: int(counts[split][label]) for split in survey.SPLITS}}
            for label, name in enumerate(names)
        ],
        "sample": survey.sample_figures(dataset.train, SAMPLE, config.seed),
        "config": {"mean": list(config.data.mean), "std": list(config.data.std)},
        "batch": [
            [{"label": names[label], "share": round(share, 4)} for label, share in row]
            for row in made_of
        ],
    }
    batch = grid.tiles(images, captions(made_of, names))
    width = max(batch.width, 640)
    title = (
        f"step {STEP.value}: {len(images)} of {config.train.batch_size} images, as the model "
        "takes them"
    )
    picture = grid.stacked(
        [
            title,
            batch,
            f"training images of each class, {len(dataset.train):,} in all",
            grid.balance(names, counts["train"].tolist(), width),
        ]
    )
    write_png(picture, output)
    if cli.JSON.value:
        cli.print_json(document)
    else:
        print(render(document))


def check_output(path: Path) -> None:
    """Refuses a file that is not to be written, before any work is done.

    Raises:
        UserError: it has another extension than .png, its directory is missing, or it is there and
            no PNG.
    """
    if path.suffix.lower() != ".png":
        raise UserError(f"--output={path}: the picture is a PNG: name a file that ends in .png")
    if not path.parent.is_dir():
        raise UserError(f"--output={path}: there is no directory {path.parent}: make it first")
    if path.is_dir():
        raise UserError(f"--output={path} is a directory: name a file in it")
    if path.exists():
        with path.open("rb") as file:
            if file.read(len(_PNG)) != _PNG:
                raise UserError(
                    f"--output={path} is there and no PNG: remove it, or name another file"
                )


def write_png(picture: Any, path: Path) -> None:
    """Writes a Pillow image. Raises UserError when the file cannot be written."""
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    try:
        path.write_bytes(stream.getvalue())
    except OSError as error:
        raise UserError(
            f"--output={path} cannot be written ({error.strerror}): name another file"
        ) from error


if __name__ == "__main__":
    cli.run(main)
