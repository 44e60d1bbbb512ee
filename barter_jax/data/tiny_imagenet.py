"""Tiny-ImageNet-200: the archive as it is published, its extracted folder, or prepared by TFDS.

The layout, all within one folder `tiny-imagenet-200/` or at the top:

    wnids.txt                            the classes, a WordNet id a line
    words.txt                            names of many ids: id, tab, names with commas between
    train/<wnid>/images/*.JPEG           500 images a class
    val/val_annotations.txt              file, wnid and four box numbers, with tabs between
    val/images/*.JPEG                    50 images a class
    test/images/*.JPEG                   without labels: left alone

As is usual, `val` is the test set, and validation images are held out of `train` by seed. A label
is the position of its id in wnids.txt, whatever the order there. Boxes are not used.
"""

import collections
import logging
import os
import pathlib
from collections.abc import Iterator

import numpy as np

from barter_jax.data import tfds_source
from barter_jax.data.cache import cache_if_fits
from barter_jax.data.container import Container, open_container
from barter_jax.data.dataset import ImageDataset, ImageSource, Subset
from barter_jax.data.folder import EXTENSIONS, FileSource, Layout
from barter_jax.data.split import stratified_split
from barter_jax.data.tfds_api import tensorflow_datasets
from barter_jax.errors import UserError

log = logging.getLogger("barter_jax")

ARCHIVE = "tiny-imagenet-200.zip"
BUILDER = "tiny_imagenet200"
_FOLDER = "tiny-imagenet-200"
_CLASSES, _WORDS, _ANNOTATIONS = "wnids.txt", "words.txt", "val/val_annotations.txt"
_REMEDY = f"set data.dir to {ARCHIVE} or the folder extracted from it, whole"


def load(
    *,
    dir: str | os.PathLike[str] | None,
    image_size: int,
    validation_fraction: float,
    seed: int,
    resize: bool,
    cache_mb: float,
) -> ImageDataset:
    """Loads Tiny-ImageNet-200; see `barter_jax.data.sources.load`.

    `dir` is the archive, the folder extracted from it or the folder around either. Any other
    directory, or none, is TensorFlow Datasets' data_dir: read if the data set is prepared there,
    else downloaded to it.
    """
    place = find(dir)
    if place is None:
        return tfds_source.to_dataset(
            _open_prepared(dir),
            image_size=image_size,
            validation_fraction=validation_fraction,
            seed=seed,
            resize=resize,
            cache_mb=cache_mb,
        )
    container = open_container(place, _REMEDY)
    layout = scan(container, place)
    # Before decoding: a wrong fraction should not cost minutes to find out.
    held_out = stratified_split(layout.splits["train"][1], validation_fraction, seed)
    log.info(
        "%s: %s training images, of which %s are held out for validation, and %s in val/, which "
        "are the test images, of %d classes",
        place,
        *(
            f"{n:,}"
            for n in (sum(map(len, held_out)), len(held_out[1]), len(layout.splits["test"][0]))
        ),
        len(layout.class_names),
    )
    sources: dict[str, ImageSource] = {
        split: FileSource(container, names, labels, image_size, resize)
        for split, (names, labels) in layout.splits.items()
    }
    sources["train"][0]  # A wrong data.image_size fails here, also when decoding is put off.
    sources = cache_if_fits(sources, image_size, cache_mb)
    train, validation = (Subset(sources["train"], indices) for indices in held_out)
    return ImageDataset(train, validation, sources["test"], layout.class_names)


def class_names(dir: str | os.PathLike[str] | None) -> tuple[str, ...]:
    """Returns the class names without reading an image. Raises UserError as `load` does."""
    place = find(dir)
    if place is None:
        return _open_prepared(dir).class_names
    return scan(open_container(place, _REMEDY), place).class_names


def find(dir: str | os.PathLike[str] | None) -> pathlib.Path | None:
    """Returns the archive or folder to read, or None where `dir` is not set or has neither.

    Raises:
        UserError: `dir` is to be an archive, but is not there.
    """
    if not dir:
        return None
    path = pathlib.Path(dir).expanduser()
    if path.is_file():
        return path
    if path.suffix == ".zip" and not path.exists():
        raise UserError(f"data.dir={dir} does not exist: {_REMEDY}")
    # A part of the layout is enough: what is missing will be told.
    parts = (_CLASSES, _WORDS, "train", "val", _FOLDER)
    if any((path / part).exists() for part in parts):
        return path
    return path / ARCHIVE if (path / ARCHIVE).is_file() else None


def scan(container: Container, dir: str | os.PathLike[str]) -> Layout:
    """Finds the classes and image files, and checks that they are whole and go together.

    Args:
        container: where to look.
        dir: how errors name it.

    Returns:
        Class names in the order of wnids.txt: the first name of each in words.txt, with the id
        where two are the same. "train" has the files of each class in turn, sorted by name; "test"
        those of val/, in the order of val_annotations.txt.

    Raises:
        UserError: a file or a class is missing, or a line is wrong; names the file and the line.
    """
    try:
        files, folders = container.entries()
    except OSError as error:
        raise UserError(f"data.dir={dir} cannot be read ({error}): make it readable") from error
    root = _find_root(files, folders, dir)
    wnids = _read_classes(container, root)
    class_names = _read_names(container, root, files, wnids, dir)
    splits = {
        "train": _train(files, folders, root, wnids, dir),
        "test": _test(container, files, root, wnids, dir),
    }
    return Layout(class_names, splits)


def _open_prepared(dir: str | os.PathLike[str] | None) -> tfds_source.Prepared:
    with tensorflow_datasets():
        # Importing it makes it known. Here, as it imports TensorFlow Datasets.
        from barter_jax.data.tfds_builders import tiny_imagenet200  # noqa: F401

        return tfds_source.open_prepared(BUILDER, dir)


def _find_root(files: list[str], folders: list[str], dir: str | os.PathLike[str]) -> str:
    """Returns the prefix of the layout: nothing, or the one folder that has it."""
    known = {*files, *folders}
    for root in ("", f"{_FOLDER}/"):
        if any(root + part in known for part in (_CLASSES, "train", "val")):
            if root + _CLASSES not in known:
                raise UserError(f"data.dir={dir} has no {root}{_CLASSES}: {_REMEDY}")
            return root
    found = [file for file in files if file.count("/") == 1 and file.endswith(f"/{_CLASSES}")]
    if len(found) == 1:
        return found[0].removesuffix(_CLASSES)
    raise UserError(f"data.dir={dir} has no {_CLASSES}: {_REMEDY}")


def _lines(container: Container, name: str) -> Iterator[tuple[str, str]]:
    """Yields the lines that are not empty, each with how to name it to the user."""
    try:
        text = container.read(name).decode("utf-8", "replace")
    except OSError as error:
        place = container.describe(name)
        raise UserError(f"{place} cannot be read ({error.strerror}): make it readable") from error
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip("\r")
        if line.strip():
            yield f"{container.describe(name)}, line {number}", line


def _read_classes(container: Container, root: str) -> dict[str, int]:
    """Returns the label of each id."""
    wnids: dict[str, int] = {}
    for place, line in _lines(container, root + _CLASSES):
        wnid = line.strip()
        if wnid in wnids:
            raise UserError(f"{place}: {wnid} stands there twice: remove one")
        wnids[wnid] = len(wnids)
    if len(wnids) < 2:
        place = container.describe(root + _CLASSES)
        raise UserError(f"{place}: {len(wnids)} classes, but it takes two: {_REMEDY}")
    return wnids


def _read_names(
    container: Container,
    root: str,
    files: list[str],
    wnids: dict[str, int],
    dir: str | os.PathLike[str],
) -> tuple[str, ...]:
    if root + _WORDS not in files:
        raise UserError(f"data.dir={dir} has no {root}{_WORDS}: {_REMEDY}")
    names: dict[str, str] = {}
    for place, line in _lines(container, root + _WORDS):
        wnid, _, text = line.partition("\t")
        name = text.partition(",")[0].strip()
        if not name:
            raise UserError(f"{place}: expected an id, a tab and names, got {line[:60]!r}")
        if wnid in wnids:
            names[wnid] = name
    for wnid in wnids:
        if wnid not in names:
            place = container.describe(root + _WORDS)
            raise UserError(f"{place}: no line for {wnid}, a class of {_CLASSES}: {_REMEDY}")
    uses = collections.Counter(names.values())
    return tuple(
        names[wnid] if uses[names[wnid]] == 1 else f"{names[wnid]} ({wnid})" for wnid in wnids
    )


def _train(
    files: list[str],
    folders: list[str],
    root: str,
    wnids: dict[str, int],
    dir: str | os.PathLike[str],
) -> tuple[tuple[str, ...], np.ndarray]:
    prefix = f"{root}train/"
    found: dict[str, list[str]] = {}
    for folder in folders:
        wnid = folder.removeprefix(prefix)
        if folder.startswith(prefix) and "/" not in wnid:
            if wnid not in wnids:
                raise UserError(
                    f"data.dir={dir} has {folder}/, which is no class of {_CLASSES}: remove it, or "
                    f"add {wnid} there"
                )
            found[wnid] = []
    for file in files:
        parts = file.removeprefix(prefix).split("/")
        if file.startswith(prefix) and len(parts) == 3 and parts[1] == "images":
            if file.lower().endswith(EXTENSIONS):
                found[parts[0]].append(file)
    for wnid in wnids:
        if wnid not in found:
            raise UserError(f"data.dir={dir} has no {prefix}{wnid}/, a class of {_CLASSES}")
        if not found[wnid]:
            raise UserError(f"data.dir={dir} has no images in {prefix}{wnid}/images/: {_REMEDY}")
    members = tuple(file for wnid in wnids for file in sorted(found[wnid]))
    counts = [len(found[wnid]) for wnid in wnids]
    return members, np.repeat(np.arange(len(wnids), dtype=np.int32), counts)


def _test(
    container: Container,
    files: list[str],
    root: str,
    wnids: dict[str, int],
    dir: str | os.PathLike[str],
) -> tuple[tuple[str, ...], np.ndarray]:
    if root + _ANNOTATIONS not in files:
        raise UserError(f"data.dir={dir} has no {root}{_ANNOTATIONS}: {_REMEDY}")
    prefix = f"{root}val/images/"
    present = {
        file for file in files if file.startswith(prefix) and file.lower().endswith(EXTENSIONS)
    }
    labels: dict[str, int] = {}
    for place, line in _lines(container, root + _ANNOTATIONS):
        fields = line.split("\t")
        if len(fields) != 6:
            raise UserError(
                f"{place}: {len(fields)} fields instead of 6 (file, id and four box numbers, with "
                "tabs between)"
            )
        file, wnid = fields[:2]
        if wnid not in wnids:
            raise UserError(f"{place}: {wnid} is no class of {_CLASSES}")
        if prefix + file not in present:
            raise UserError(f"{place}: there is no image {prefix}{file}: {_REMEDY}")
        if prefix + file in labels:
            raise UserError(f"{place}: {file} has a line already: remove one")
        labels[prefix + file] = wnids[wnid]
    for file in sorted(present):
        if file not in labels:
            raise UserError(
                f"{container.describe(root + _ANNOTATIONS)}: no line for the image {file}: add "
                "one, or remove the image"
            )
    counts = np.bincount(list(labels.values()), minlength=len(wnids))
    for wnid, count in zip(wnids, counts, strict=True):
        if not count:
            raise UserError(
                f"{container.describe(root + _ANNOTATIONS)}: no image of {wnid}, a class of "
                f"{_CLASSES}: {_REMEDY}"
            )
    return tuple(labels), np.array(list(labels.values()), np.int32)
