"""Labels images with a compact model.

    python -m barter_jax.predict --model=runs/vit_tiny digit.png another.jpg

--model is a work directory, its model directory or the model file. Images of another size are
scaled so that the shorter side fits, and cropped to the centre.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from barter_jax import cli
from barter_jax.data.crops import centre
from barter_jax.data.images import decode_image
from barter_jax.deploy.model import CompactModel, load
from barter_jax.errors import UserError
from barter_jax.training import compile_cache

MODEL = flags.DEFINE_string("model", None, "Work directory, model directory or model file.")
TOP = flags.DEFINE_integer("top", 3, "How many labels to print for each image.", lower_bound=1)
flags.declare_key_flag("json")

# Decoded images kept at once; any number of files may be given.
BATCH = 256


def predict(model: CompactModel, paths: Sequence[str], top: int) -> list[dict[str, Any]]:
    """The likeliest labels of each image file.

    Args:
      model: a compact model.
      paths: image files.
      top: labels per image, at most as many as the model has.

    Returns:
      `{"image": path, "labels": [{"label": name, "probability": p}, ...]}` for each file, the
      likeliest label first.

    Raises:
      UserError: a file is missing or no image.
    """
    for path in map(Path, paths):
        if path.is_dir():
            raise UserError(f"{path} is a directory: name the images in it, as {path / '*.png'}")
        if not path.is_file():
            raise UserError(f"{path}: there is no such file")
    rows = []
    for start in range(0, len(paths), BATCH):
        batch = paths[start : start + BATCH]
        load_size = model.card.load_size or model.image_size
        images = [decode_image(Path(p).read_bytes(), p, load_size, True) for p in batch]
        found = model(centre(np.stack(images), model.image_size))
        for path, probabilities in zip(batch, found, strict=True):
            order = np.argsort(-probabilities, kind="stable")[:top]
            labels = [
                {"label": model.labels[i], "probability": float(probabilities[i])} for i in order
            ]
            rows.append({"image": path, "labels": labels})
    return rows


def main(paths: Sequence[str]) -> None:
    if not MODEL.value:
        raise UserError("--model is missing: give a work directory, as --model=runs/vit_tiny")
    if not paths:
        raise UserError("no image is given: name image files after the flags")
    compile_cache.set_up()
    rows = predict(load(MODEL.value), paths, TOP.value)
    if cli.JSON.value:
        cli.print_json(rows)
        return
    for row in rows:
        found = "  ".join(f"{x['label']} {x['probability']:.3f}" for x in row["labels"])
        print(f"{row['image']}: {found}")


if __name__ == "__main__":
    cli.run_plain(main)
