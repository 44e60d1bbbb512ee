"""Image classification sets of TensorFlow Datasets, read by random access, without TensorFlow.

A split `test` whose images are labelled is the test set, and `validation`, where both exist, holds
the validation images. Where test images have no labels (imagenet2012) or there are none,
`validation` is the test set, and validation images are held out of `train` by seed.
"""

import dataclasses
import logging
import os
import pathlib
import time
from typing import Any

import numpy as np
from array_record.python import array_record_data_source, array_record_module

from barter_jax.data import label_cache, tf_example, tfds_prepare
from barter_jax.data.cache import cache_if_fits
from barter_jax.data.dataset import ImageDataset, ImageSource, Item, Subset
from barter_jax.data.images import decode_image
from barter_jax.data.split import stratified_split
from barter_jax.data.tfds_api import tensorflow_datasets
from barter_jax.errors import UserError

log = logging.getLogger("barter_jax")

_CHUNK_BYTES = 2**24
_SECONDS_BETWEEN_LOGS = 5.0
# Reading the labels means reading the images: below this it takes about a second.
_KEPT_FROM_BYTES = 2**28
# What array_record raises for a damaged file, by kind and version.
_DAMAGE = (ValueError, RuntimeError, IndexError, OSError)


@dataclasses.dataclass(frozen=True)
class Shard:
    """Records `start` to `stop` (excluded) of one array_record file."""

    path: str
    start: int
    stop: int

    @property
    def count(self) -> int:
        return self.stop - self.start


@dataclasses.dataclass(frozen=True)
class Records:
    """One split of a prepared data set, on disk.

    Attributes:
        name: how messages name it, as "cifar10/3.0.2, split train".
        shards: its files, in order.
        image: the name of the image in a record.
        label: the name of the label.
        size: bytes of all records.
    """

    name: str
    shards: tuple[Shard, ...]
    image: str
    label: str
    size: int

    def __len__(self) -> int:
        return sum(shard.count for shard in self.shards)


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A data set on disk: all that is needed to read it without TensorFlow Datasets."""

    name: str
    directory: str
    class_names: tuple[str, ...]
    splits: dict[str, Records]


class RecordSource(ImageSource):
    """Images decoded from records whenever they are asked for.

    One reader a file serves all threads, as array_record promises; a process that gets a copy
    opens readers of its own.
    """

    def __init__(self, records: Records, labels: np.ndarray, image_size: int, resize: bool):
        self._records = records
        self._reader = array_record_data_source.ArrayRecordDataSource(
            [f"{shard.path}[{shard.start}:{shard.stop}]" for shard in records.shards]
        )
        self._image_size = image_size
        self._resize = resize
        self.labels = labels

    def __getitem__(self, index: int) -> Item:
        index = range(len(self.labels))[index]
        name = f"{self._records.name}, record {index}"
        try:
            record = self._reader[index]
            data = tf_example.read_bytes(record, self._records.image)
        except _DAMAGE as error:
            raise _damaged(name, _shard_of(self._records, index), error) from error
        image = decode_image(data, name, self._image_size, self._resize)
        return {"image": image, "label": self.labels[index]}


def load(
    name: str,
    *,
    dir: str | os.PathLike[str] | None,
    image_size: int,
    validation_fraction: float,
    seed: int,
    resize: bool,
    cache_mb: float,
) -> ImageDataset:
    """Loads `<name>[/<config>][:<version>]`; see `barter_jax.data.sources.load`.

    `dir` is what TensorFlow Datasets calls data_dir: `~/tensorflow_datasets` if not set. What is
    not there is downloaded and prepared.
    """
    return to_dataset(
        open_prepared(name, dir),
        image_size=image_size,
        validation_fraction=validation_fraction,
        seed=seed,
        resize=resize,
        cache_mb=cache_mb,
    )


def class_names(name: str, dir: str | os.PathLike[str] | None) -> tuple[str, ...]:
    """Returns the class names without reading an image. Raises UserError as `load` does."""
    return open_prepared(name, dir).class_names


def open_prepared(name: str, dir: str | os.PathLike[str] | None) -> Prepared:
    """Finds a data set on disk, or downloads and prepares it.

    Raises:
        UserError: it is not for image classification, cannot be got, or is kept in files that only
            TensorFlow reads, or some of them are missing.
    """
    with tensorflow_datasets() as tfds:
        builder = tfds_prepare.open_builder(name, dir)
        # Before the download: it may be long.
        image, label = _supervised_keys(tfds, builder)
        tfds_prepare.prepare(builder)
        return _describe(builder, image, label)


def to_dataset(
    prepared: Prepared,
    *,
    image_size: int,
    validation_fraction: float,
    seed: int,
    resize: bool,
    cache_mb: float,
) -> ImageDataset:
    """Makes the three splits of a data set on disk; the arguments are those of `load`."""
    splits = dict(prepared.splits)
    if "test" in splits and not _is_labelled(splits["test"]):
        log.info("%s has no labels: validation is the test set", splits.pop("test").name)
    roles = {"train": "train", "test": "test" if "test" in splits else "validation"}
    if {"test", "validation"} <= set(splits):
        roles["validation"] = "validation"
    missing = [split for split in roles.values() if split not in splits]
    if missing:
        raise UserError(
            f"{prepared.name} has no images to {'train' if 'train' in missing else 'test'} with "
            f"(its splits: {', '.join(prepared.splits)}): choose a data set with the splits train "
            "and test or validation"
        )
    labels = {role: _labels(prepared, splits[split]) for role, split in roles.items()}
    held_out = None
    if "validation" not in roles:
        held_out = stratified_split(labels["train"], validation_fraction, seed)
    sources: dict[str, ImageSource] = {
        role: RecordSource(splits[split], labels[role], image_size, resize)
        for role, split in roles.items()
    }
    sources["train"][0]  # A wrong data.image_size fails here, also when decoding is put off.
    sources = cache_if_fits(sources, image_size, cache_mb)
    train = sources["train"]
    if held_out is None:
        log.info("%s has a validation split: data.validation_fraction is not used", prepared.name)
        validation = sources["validation"]
    else:
        train, validation = (Subset(train, indices) for indices in held_out)
    return ImageDataset(train, validation, sources["test"], prepared.class_names)


def _supervised_keys(tfds: Any, builder: Any) -> tuple[str, str]:
    """Returns the names of the image and of the label in a record."""
    features, keys = builder.info.features, builder.info.supervised_keys
    name = builder.info.full_name
    fits = (
        isinstance(keys, tuple)
        and len(keys) == 2
        and all(isinstance(key, str) and key in features for key in keys)
        and isinstance(features[keys[0]], tfds.features.Image)
        and isinstance(features[keys[1]], tfds.features.ClassLabel)
    )
    if not fits:
        raise UserError(
            f"data.name: {name} is not for image classification (its supervised keys are {keys}, "
            "not an Image and a ClassLabel): choose another data set"
        )
    if np.dtype(features[keys[0]].np_dtype).kind == "f":
        raise UserError(f"data.name: the images of {name} are floating-point: choose another")
    return keys


def _describe(builder: Any, image: str, label: str) -> Prepared:
    info = builder.info
    name, directory = info.full_name, os.fspath(builder.data_dir)
    again = f"remove {directory} and start again, to prepare it anew"
    if not info.splits:
        raise UserError(f"{name}: {directory} has no splits: {again}")
    format = info.file_format.value if info.file_format else "an unknown format"
    if format != "array_record":
        raise UserError(
            f"{name}: {directory} is kept as {format}, which cannot be read by random access "
            "without TensorFlow: set data.dir to another directory, to prepare it there as "
            "array_record"
        )
    splits = {}
    for split, split_info in info.splits.items():
        shards = []
        for instruction in split_info.file_instructions:
            path = os.fspath(instruction.filename)
            if not os.path.exists(path):
                raise UserError(f"{name}: {path} is missing: {again}")
            shards.append(Shard(path, instruction.skip, instruction.skip + instruction.take))
        if shards:
            splits[str(split)] = Records(
                f"{name}, split {split}", tuple(shards), image, label, int(split_info.num_bytes)
            )
    return Prepared(name, directory, tuple(info.features[label].names), splits)


def _is_labelled(records: Records) -> bool:
    """Whether the first image has a label: where labels are kept back, all are -1."""
    first = dataclasses.replace(records.shards[0], stop=records.shards[0].start + 1)
    return int(_read_labels(dataclasses.replace(records, shards=(first,)))[0]) != -1


def _labels(prepared: Prepared, records: Records) -> np.ndarray:
    """Returns the labels of a split, int32 [N], all of them those of a class."""

    def read() -> np.ndarray:
        labels = _read_labels(records)
        wrong = np.flatnonzero((labels < 0) | (labels >= len(prepared.class_names)))
        if len(wrong):
            raise UserError(
                f"{records.name}, record {wrong[0]}: label {labels[wrong[0]]} is not one of the "
                f"{len(prepared.class_names)} classes: prepare the data set anew, or choose another"
            )
        return labels

    if records.size < _KEPT_FROM_BYTES:
        return read()
    # Sizes and times tell when other files have come to the same place.
    stats = [os.stat(shard.path) for shard in records.shards]
    key = {
        "name": records.name,
        "directory": os.path.realpath(prepared.directory),
        "count": len(records),
        "classes": len(prepared.class_names),
        "files": [[stat.st_size, stat.st_mtime_ns] for stat in stats],
    }
    return label_cache.cached_labels(key, len(records), read)


def _read_labels(records: Records) -> np.ndarray:
    """Reads the labels from the records, whatever they are."""
    labels = np.empty(len(records), np.int32)
    chunk = max(1, _CHUNK_BYTES * len(records) // max(records.size, 1))
    done, logged = 0, time.monotonic()
    for shard in records.shards:
        try:
            reader = array_record_module.ArrayRecordReader(
                shard.path, options="readahead_buffer_size:0"
            )
            for start in range(shard.start, shard.stop, chunk):
                stop = min(start + chunk, shard.stop)
                for record in reader.read(start, stop):
                    labels[done] = tf_example.read_int(record, records.label)
                    done += 1
                if time.monotonic() - logged > _SECONDS_BETWEEN_LOGS:
                    logged = time.monotonic()
                    log.info("%s: read %d of %d labels", records.name, done, len(records))
            reader.close()  # It raises what was wrong before: no use after an error.
        except (*_DAMAGE, OverflowError) as error:
            raise _damaged(f"{records.name}, record {done}", shard.path, error) from error
    return labels


def _shard_of(records: Records, index: int) -> str:
    for shard in records.shards:
        if index < shard.count:
            return shard.path
        index -= shard.count
    raise IndexError(index)


def _damaged(name: str, path: str, error: BaseException) -> UserError:
    reason = (str(error).splitlines() or [repr(error)])[0]
    return UserError(
        f"{name}: {path} cannot be read ({reason}): remove {pathlib.Path(path).parent} and start "
        "again, to prepare it anew"
    )
