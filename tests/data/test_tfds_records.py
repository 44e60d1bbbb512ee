"""The parts that read records: the parser of examples, the kept labels, the stand-in."""

import io
import sys
import types

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from PIL import Image

from barter_jax.data import label_cache, tf_example, tfds_api, tfds_standin
from barter_jax.data.tfds_api import tensorflow_datasets
from barter_jax.errors import RunError

from .helpers import encode, noise, without_network


@pytest.fixture(autouse=True)
def tried(monkeypatch):
    return without_network(monkeypatch)


# The parser, held to the classes that protobuf generates.


@pytest.fixture
def example():
    with tensorflow_datasets():
        from tensorflow_datasets.proto import tf_example_pb2

        return tf_example_pb2.Example()


@hypothesis.given(image=st.binary(max_size=300), label=st.integers(-(2**63), 2**63 - 1))
@hypothesis.settings(
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], max_examples=50
)
def test_values_are_those_that_were_written(example, image, label):
    example.Clear()
    feature = example.features.feature
    feature["image"].bytes_list.value.append(image)
    feature["label"].int64_list.value.append(label)
    feature["boxes"].float_list.value.extend([0.5, 1.5])
    feature["label_2"].int64_list.value.extend([1, 2])
    record = example.SerializeToString()
    assert tf_example.read_bytes(record, "image") == image
    assert tf_example.read_int(record, "label") == label


def test_what_is_not_there(example):
    example.features.feature["label"].int64_list.value.extend([1, 2])
    example.features.feature["image"].bytes_list.value.append(b"x")
    record = example.SerializeToString()
    for call, message in (
        (lambda: tf_example.read_int(record, "label"), "2 values of 'label' instead of one"),
        (lambda: tf_example.read_int(record, "other"), "0 values of 'other'"),
        (lambda: tf_example.read_int(record, "image"), "0 values of 'image'"),
        (lambda: tf_example.read_bytes(record, "label"), "0 values of 'label'"),
    ):
        with pytest.raises(tf_example.Malformed, match=message):
            call()


@hypothesis.given(st.binary(max_size=60))
def test_junk_is_refused(data):
    with pytest.raises(tf_example.Malformed):
        tf_example.read_int(data, "label")


def test_a_cut_record_is_refused(example):
    example.features.feature["image"].bytes_list.value.append(bytes(200))
    record = example.SerializeToString()
    for length in range(len(record)):
        with pytest.raises(tf_example.Malformed):
            tf_example.read_bytes(record[:length], "image")


# Kept labels.


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "barter_jax/labels"


def test_labels_are_read_once(kept):
    calls = []

    def read():
        calls.append(1)
        return np.arange(5, dtype=np.int32) - 1

    for _ in range(3):
        labels = label_cache.cached_labels({"name": "a"}, 5, read)
        assert labels.dtype == np.int32 and list(labels) == [-1, 0, 1, 2, 3]
    assert len(calls) == 1 and len(list(kept.iterdir())) == 1
    label_cache.cached_labels({"name": "b"}, 5, read)
    assert len(calls) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: b"",
        lambda content: content[:-4] + bytes([content[-4] ^ 1]) + content[-3:],
    ],
)
def test_damaged_labels_are_made_again(kept, monkeypatch, damage):
    told = []
    monkeypatch.setattr(label_cache.log, "warning", lambda text, *args: told.append(text % args))
    labels = np.arange(5, dtype=np.int32)
    label_cache.cached_labels("key", 5, lambda: labels)
    (path,) = kept.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    np.testing.assert_array_equal(label_cache.cached_labels("key", 5, lambda: labels), labels)
    assert path.read_bytes() == whole
    assert told == [f"{path} is damaged: reading the labels again"]


def test_nowhere_to_keep_labels(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(label_cache.log, "warning", lambda text, *args: told.append(text % args))
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    labels = np.arange(5, dtype=np.int32)
    assert label_cache.cached_labels("key", 5, lambda: labels) is labels
    assert len(told) == 2 and "the labels are not kept for the next run" in told[1]


def test_where_labels_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for unset in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert label_cache.default_directory() == tmp_path / ".cache/barter_jax/labels"


# What takes TensorFlow's place.


def test_png_keeps_every_value():
    tf = tfds_standin.make()
    deep = np.random.default_rng(0).integers(0, 2**16, (3, 5, 1), np.uint16)
    for image in (noise(0), noise(1)[..., :1], np.dstack([noise(2), noise(3)[..., :1]]), deep):
        data = tf.image.encode_png(image).numpy()
        decoded = np.asarray(Image.open(io.BytesIO(data)))
        np.testing.assert_array_equal(decoded.reshape(image.shape), image)
        if image.dtype == np.uint8:
            np.testing.assert_array_equal(tf.image.decode_png(data).numpy(), image)


def test_jpeg():
    tf = tfds_standin.make()
    image = np.broadcast_to(np.arange(16, dtype=np.uint8)[:, None, None] * 15, (16, 16, 3))
    data = tf.image.encode_jpeg(image, format="rgb", quality=100).numpy()
    decoded = tf.image.decode_jpeg(data).numpy()
    assert data[:2] == b"\xff\xd8" and np.abs(decoded.astype(int) - image).max() <= 3
    cmyk = encode(Image.fromarray(image).convert("CMYK"), "JPEG", quality=100)
    assert np.abs(tf.image.decode_jpeg(cmyk).numpy().astype(int) - image).max() <= 6
    assert tf.image.decode_jpeg(data, channels=1).numpy().shape == (16, 16, 1)


def test_files(tmp_path):
    gfile = tfds_standin.make().io.gfile
    gfile.makedirs(tmp_path / "a/b")
    with gfile.GFile(tmp_path / "a/b/x.txt", "w") as file:
        file.write("one\r\ntwo")
    with gfile.GFile(tmp_path / "a/b/x.txt", "rb") as file:
        assert file.read() == b"one\r\ntwo"
    gfile.copy(tmp_path / "a/b/x.txt", tmp_path / "a/y.txt")
    for call in (gfile.copy, gfile.rename):
        with pytest.raises(FileExistsError):
            call(tmp_path / "a/b/x.txt", tmp_path / "a/y.txt")
    gfile.rename(tmp_path / "a/b/x.txt", tmp_path / "a/y.txt", overwrite=True)
    assert gfile.listdir(tmp_path / "a") == ["b", "y.txt"] and gfile.isdir(tmp_path / "a/b")
    assert gfile.glob(str(tmp_path / "a/*.txt")) == [str(tmp_path / "a/y.txt")]
    assert [folders for _, folders, _ in gfile.walk(tmp_path / "a")] == [["b"], []]
    gfile.rmtree(tmp_path / "a")
    assert not gfile.exists(tmp_path / "a")


def test_the_rest_needs_tensorflow():
    tf = tfds_standin.make()
    for call, name in (
        (lambda: tf.constant(1), "tf.constant"),
        (lambda: tf.io.gfile.other, "tf.io.gfile.other"),
    ):
        with pytest.raises(tfds_standin.NeedsTensorFlow) as caught:
            call()
        assert caught.value.name == name
    with pytest.raises(tfds_standin.NeedsTensorFlow, match="encode_png of uint16"):
        tf.image.encode_png(np.zeros((2, 2, 3), np.uint16))


def test_everything_is_as_before(monkeypatch, capsys):
    from absl import logging

    monkeypatch.setitem(sys.modules, "tensorflow", None)
    verbosity, out = logging.get_verbosity(), sys.stdout
    with tensorflow_datasets() as tfds, tensorflow_datasets():
        lazy = tfds.core.utils.lazy_imports_utils.tensorflow
        print("not to be seen")
        assert lazy.executing_eagerly()
        assert "tensorflow" not in sys.modules
    assert sys.modules["tensorflow"] is None
    assert (logging.get_verbosity(), sys.stdout) == (verbosity, out)
    with pytest.raises(ImportError):
        lazy.executing_eagerly()
    assert "not to be seen" not in capsys.readouterr().out


def test_a_broken_installation(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", types.ModuleType("broken"))
    with pytest.raises(RunError, match="tensorflow-datasets cannot be imported: .* install it an"):
        with tensorflow_datasets():
            pass
    assert sys.modules["tensorflow"] is None


def test_another_version_of_the_libraries(monkeypatch):
    with pytest.raises(RunError, match=r"install tensorflow-datasets 4\.9\.10 and etils 1\.15"):
        tfds_api._resolved(types.SimpleNamespace())
