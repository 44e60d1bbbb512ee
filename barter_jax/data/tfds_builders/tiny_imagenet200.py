"""A builder of Tiny-ImageNet-200 for TensorFlow Datasets.

Importing this module makes the data set known, whether or not TensorFlow is installed:

    import tensorflow_datasets as tfds
    import barter_jax.data.tfds_builders.tiny_imagenet200

    source = tfds.data_source(
        "tiny_imagenet200",
        split="train",
        # Only these files can be written and read without TensorFlow.
        download_and_prepare_kwargs={"file_format": "array_record"},
    )

`validation` is the archive's `val`; its own test images have no labels and are left out. Records
keep the order of `barter_jax.data.tiny_imagenet.scan`, so that the same images are held out by the
same seed whichever way the data set is read.
"""

import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow_datasets as tfds

from barter_jax.data import tfds_api, tiny_imagenet
from barter_jax.data.container import Container, open_container
from barter_jax.errors import UserError

URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
SIZE = 248_100_043

tfds_api.provide_importlib_resources()


class TinyImagenet200(tfds.core.GeneratorBasedBuilder):
    """200 classes of ImageNet as JPEG files of 64x64 pixels, some of them greyscale."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "The archive as it was published in 2015."}
    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        "Where there is no network, put tiny-imagenet-200.zip, or the folder extracted from it, "
        "into manual_dir."
    )
    MANUAL_FILES_ARE_OPTIONAL = True

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description="A cut of ImageNet: 200 classes, images of 64x64 pixels.",
            homepage="http://cs231n.stanford.edu/",
            features=tfds.features.FeaturesDict(
                {
                    # Greyscale files stay as they are and become RGB when decoded.
                    "image": tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg"),
                    # The names come with the data.
                    "label": tfds.features.ClassLabel(),
                    "file_name": tfds.features.Text(),
                }
            ),
            supervised_keys=("image", "label"),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator]:
        place = _manual(dl_manager) or _downloaded(dl_manager)
        container = open_container(place)
        layout = tiny_imagenet.scan(container, place)
        self.info.features["label"].names = list(layout.class_names)
        return {
            split: self._generate_examples(container, *layout.splits[source])
            for split, source in (("train", "train"), ("validation", "test"))
        }

    def _generate_examples(
        self, container: Container, names: Sequence[str], labels: Sequence[int]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        for index, (name, label) in enumerate(zip(names, labels, strict=True)):
            yield (
                index,
                {
                    "image": container.read(name),
                    "label": int(label),
                    "file_name": name.rpartition("/")[2],
                },
            )


def _manual(dl_manager: Any) -> pathlib.Path | None:
    """The archive or its folder in the directory for what is downloaded by hand."""
    try:
        return tiny_imagenet.find(dl_manager.manual_dir)
    except AssertionError:  # It is not there, or empty.
        return None


def _downloaded(dl_manager: Any) -> pathlib.Path:
    path = pathlib.Path(dl_manager.download(URL))
    size = os.path.getsize(path)
    # Its checksum is not published.
    if size != SIZE:
        path.unlink()
        raise UserError(
            f"{URL} gave {size:,} bytes instead of {SIZE:,}: start again, or set data.dir to an "
            "archive got elsewhere"
        )
    return path
