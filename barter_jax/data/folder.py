"""Image folders: `train/<class>/*` with `test/<class>/*` or `val/<class>/*`, in a folder or a zip.

An image's class is the folder directly under the split's; folders inside it are searched as well.
"""

import dataclasses
import logging
import os
from collections.abc import Iterable, Mapping

import numpy as np

from barter_jax.data.cache import cache_if_fits
from barter_jax.data.container import Container, open_container
from barter_jax.data.dataset import ImageDataset, ImageSource, Item, Subset
from barter_jax.data.images import decode_image
from barter_jax.data.split import stratified_split
from barter_jax.errors import UserError

log = logging.getLogger("barter_jax")

EXTENSIONS = (
    ".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm",
)  # fmt: skip
_EXPECTED = "expected train/<class>/<image> and test/<class>/<image> (or val/)"


@dataclasses.dataclass(frozen=True)
class Layout:
    """What a container holds, before any image is read.

    Attributes:
        class_names: sorted; a label is an index into it.
        splits: for "train", "test" and, where it exists, "validation": the file names and their
            labels (int32).
        test_folder: of the test split: "test", or "val" where that is all there is.
    """

    class_names: tuple[str, ...]
    splits: Mapping[str, tuple[tuple[str, ...], np.ndarray]]
    test_folder: str = "test"


class FileSource(ImageSource):
    """Images decoded from a container whenever they are asked for."""

    def __init__(
        self,
        container: Container,
        names: tuple[str, ...],
        labels: np.ndarray,
        image_size: int,
        resize: bool,
    ):
        self._container = container
        self._names = names
        self._image_size = image_size
        self._resize = resize
        self.labels = labels

    def identity(self) -> bytes:
        return "\n".join(self._names).encode() + self.labels.tobytes()

    def __getitem__(self, index: int) -> Item:
        place = self._container.describe(self._names[index])
        try:
            data = self._container.read(self._names[index])
        except OSError as error:
            raise UserError(
                f"{place}: cannot be read ({error.strerror or error}): make it readable, or "
                "remove it"
            ) from error
        image = decode_image(data, place, self._image_size, self._resize)
        return {"image": image, "label": self.labels[index]}


def load(
    *,
    dir: str | os.PathLike[str] | None,
    image_size: int,
    validation_fraction: float,
    seed: int,
    resize: bool,
    cache_mb: float,
) -> ImageDataset:
    """Loads an image folder or zip; see `barter_jax.data.sources.load`."""
    container = open_container(dir)
    layout = scan(container, dir)
    held_out = None
    if "validation" not in layout.splits:
        # Before decoding: a wrong fraction should not cost minutes to find out.
        held_out = stratified_split(layout.splits["train"][1], validation_fraction, seed)
    sources = {
        split: FileSource(container, names, labels, image_size, resize)
        for split, (names, labels) in layout.splits.items()
    }
    _tell_missing_classes(dir, layout, "test", layout.splits["test"][1])
    if held_out is None:
        _tell_missing_classes(dir, layout, "validation", layout.splits["validation"][1])
    else:
        _tell_missing_classes(dir, layout, "validation", layout.splits["train"][1][held_out[1]])
    sources["train"][0]  # A wrong data.image_size fails here, also when decoding is put off.
    sources = cache_if_fits(sources, image_size, cache_mb)
    train = sources["train"]
    if held_out is not None and layout.test_folder == "val":
        log.info("there is no test/: val/ is the test split, and validation is held out of train/")
    if held_out is None:
        log.info("val/ is the validation split: data.validation_fraction is not used")
        validation = sources["validation"]
    else:
        train, validation = (Subset(train, indices) for indices in held_out)
    return ImageDataset(train, validation, sources["test"], layout.class_names)


def class_names(dir: str | os.PathLike[str] | None) -> tuple[str, ...]:
    """Returns the class names without reading an image. Raises UserError as `load` does."""
    return scan(open_container(dir), dir).class_names


def scan(container: Container, dir: str | os.PathLike[str] | None) -> Layout:
    """Finds the splits, classes and image files of a container.

    Args:
        container: where to look.
        dir: how errors name it.

    Raises:
        UserError: for another layout than the expected, a class without training images, a class
            whose folder another split lacks, a test class that training lacks, or a split without
            images.
    """
    try:
        files, folders = container.entries()
    except OSError as error:
        raise UserError(
            f"data.dir={dir} cannot be read ({error}): make all of it readable, or set data.dir to "
            "another place"
        ) from error
    root = _find_root(folders, dir)
    present = {name for name in ("train", "test", "val") if root + name in folders}
    if present == {"train"}:
        raise UserError(f"data.dir={dir} has train/ but neither test/ nor val/: {_EXPECTED}")
    splits = {"train": "train", "test": "test" if "test" in present else "val"}
    if present == {"train", "test", "val"}:
        splits["validation"] = "val"

    names = tuple(sorted(_children(folders, f"{root}train/")))
    if not names:
        raise UserError(f"data.dir={dir} has no class folders in train/: {_EXPECTED}")
    if len(names) < 2:
        raise UserError(f"data.dir={dir} has the one class {names[0]} in train/: add another")
    images: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    for split, folder in splits.items():
        prefix = f"{root}{folder}/"
        for name in sorted(_children(folders, prefix)):
            if name not in names:
                raise UserError(
                    f"data.dir={dir} has {folder}/{name}/ but no train/{name}/: "
                    f"remove it, or add training images of that class"
                )
        absent = [name for name in names if f"{prefix}{name}" not in folders]
        if absent:
            raise UserError(
                f"data.dir={dir} has no {folder}/{absent[0]}/ to go with train/{absent[0]}/"
                f"{f', nor {len(absent) - 1} other classes' if absent[1:] else ''}: add images of "
                "that class, or an empty folder if there are none to spare"
            )
        by_class = _group_images(files, prefix, names)
        if split == "train":
            for name in names:
                if not by_class[name]:
                    raise UserError(
                        f"data.dir={dir} has no images in train/{name}/: add some, or remove it"
                    )
        members = tuple(member for name in names for member in by_class[name])
        if not members:
            raise UserError(f"data.dir={dir} has no images in {folder}/<class>/: {_EXPECTED}")
        counts = [len(by_class[name]) for name in names]
        images[split] = members, np.repeat(np.arange(len(names), dtype=np.int32), counts)
    return Layout(names, images, splits["test"])


def _tell_missing_classes(
    dir: str | os.PathLike[str] | None, layout: Layout, split: str, labels: np.ndarray
) -> None:
    """Warns of classes that a split has no images of: they pull its macro-F1 down.

    No error where an empty folder says so, or the images were held out by this program: with few
    images of one's own a class may have none to spare.
    """
    missing = np.setdiff1d(np.arange(len(layout.class_names)), labels)
    if len(missing):
        names = ", ".join(layout.class_names[label] for label in missing[:5])
        log.warning(
            "data.dir=%s: %d of %d classes have no %s images, and F1 there is 0 for them: %s%s",
            dir,
            len(missing),
            len(layout.class_names),
            split,
            names,
            ", ..." if len(missing) > 5 else "",
        )


def _find_root(folders: Iterable[str], dir: str | os.PathLike[str] | None) -> str:
    """Returns the prefix of the split folders: nothing, or the single top-level folder."""
    folders = set(folders)
    top = sorted(_children(folders, ""))
    if "train" in top:
        return ""
    if len(top) == 1 and f"{top[0]}/train" in folders:
        return f"{top[0]}/"
    found = ", ".join(f"{name}/" for name in top[:5]) + (", ..." if len(top) > 5 else "")
    raise UserError(f"data.dir={dir} has no train/ (found {found or 'no folders'}): {_EXPECTED}")


def _children(folders: Iterable[str], prefix: str) -> set[str]:
    return {
        name[len(prefix) :]
        for name in folders
        if name.startswith(prefix) and "/" not in name[len(prefix) :]
    }


def _group_images(files: Iterable[str], prefix: str, names: Iterable[str]) -> dict[str, list[str]]:
    """Returns the sorted image files of each class in the folder `prefix`."""
    by_class: dict[str, list[str]] = {name: [] for name in names}
    outside = 0
    others: list[str] = []
    for file in files:
        if not file.startswith(prefix):
            continue
        name, slash, _ = file[len(prefix) :].partition("/")
        image = file.lower().endswith(EXTENSIONS)
        if image and slash:
            by_class[name].append(file)
        elif image:
            outside += 1
        elif slash:
            others.append(file)
    if outside:
        log.warning("%d images directly in %s are in no class and left out", outside, prefix)
    if others:
        log.warning(
            "%d files in %s do not have the extension of an image and are left out, as %s",
            len(others),
            prefix,
            min(others),
        )
    return {name: sorted(members) for name, members in by_class.items()}
