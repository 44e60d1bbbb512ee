"""Data sets of TensorFlow Datasets: preparing, reading, and what is said when that fails."""

import pathlib
import pickle
import re
import socket
import subprocess
import sys
import threading
import time
from concurrent import futures

import numpy as np
import pytest

from barter_jax.data import label_cache, sources, tfds_prepare, tfds_source
from barter_jax.data.tfds_api import tensorflow_datasets
from barter_jax.errors import UserError

from .helpers import encode, noise, tiny_imagenet, without_network, write_tar, write_zip

with tensorflow_datasets() as tfds:

    class BarterToy(tfds.core.GeneratorBasedBuilder):
        """Sets of noise: image i of a split looks like noise(base + i) and has the label i % 3."""

        VERSION = tfds.core.Version("1.0.0")
        SPLITS = {
            "plain": {"train": (0, 9), "test": (20, 3)},
            "three": {"train": (0, 9), "validation": (10, 4), "test": (20, 3)},
            "unlabelled": {"train": (0, 9), "validation": (10, 4), "test": (20, 3)},
            "blind": {"train": (0, 9), "test": (20, 3)},
            "alone": {"train": (0, 9)},
            "wrong": {"train": (0, 9), "test": (20, 3)},
            "odd": {"train": (0, 9), "test": (20, 3)},
            "boxes": {"train": (0, 9)},
            "failing": {"train": (0, 9)},
            "foreign": {"train": (0, 9)},
            "needy": {"train": (0, 9)},
        }
        BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=name, description=name) for name in SPLITS]

        def _info(self):
            supervised = self.builder_config.name != "boxes"
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict(
                    {
                        "image": tfds.features.Image(shape=(None, None, 3)),
                        "label": tfds.features.ClassLabel(names=["a", "b", "c"]),
                        "id": tfds.features.Text(),
                    }
                ),
                supervised_keys=("image", "label") if supervised else ("image", "id"),
                disable_shuffling=True,
            )

        def _split_generators(self, dl_manager):
            name = self.builder_config.name
            if name == "failing":
                raise KeyError("something odd\nand more")
            if name == "foreign":
                tfds.core.utils.lazy_imports_utils.tensorflow.audio.decode_wav(b"")
            if name == "needy":
                import a_package_that_is_not_there  # noqa: F401
            return {
                split: self._generate_examples(split, *size)
                for split, size in self.SPLITS[name].items()
            }

        def _generate_examples(self, split, base, count):
            kept_back = {"unlabelled": "test", "blind": "test", "wrong": "train"}
            for i in range(count):
                hidden = kept_back.get(self.builder_config.name) == split
                if self.builder_config.name == "wrong":
                    hidden = hidden and i == 5
                image = noise(base + i)
                if i == 1:
                    image = image[..., 0]
                elif self.builder_config.name == "odd" and i == 2:
                    image = noise(0, 6)
                yield i, {"image": encode(image), "label": -1 if hidden else i % 3, "id": str(i)}


@pytest.fixture(autouse=True)
def tried(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("xdg")))
    return without_network(monkeypatch)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A data_dir where data sets that tests only read may be prepared."""
    return tmp_path_factory.mktemp("data")


def load(name, path, **changes):
    options = {"image_size": 4, "validation_fraction": 0.34, "seed": 0, "resize": False}
    return sources.load(name, dir=path, **({"cache_mb": 0} | options | changes))


def read(source):
    return source.read(np.arange(len(source)))


def expected(i):
    image = noise(i)
    return np.repeat(image[..., :1], 3, -1) if i % 10 == 1 else image


# Reading.


@pytest.mark.parametrize("cache_mb", [0, 1])
def test_splits_labels_and_pixels(shared, tried, cache_mb):
    data = load("tfds/barter_toy/plain", shared, cache_mb=cache_mb)
    assert data.class_names == ("a", "b", "c")
    assert sources.class_names("tfds/barter_toy/plain:1.0.0", shared) == ("a", "b", "c")
    assert (len(data.train), len(data.validation), len(data.test)) == (6, 3, 3)
    assert list(np.bincount(data.validation.labels)) == [1, 1, 1]
    seen = {}
    for source in (data.train, data.validation):
        for index in range(len(source)):
            item = source[index]
            assert item["image"].dtype == np.uint8 and item["label"].dtype == np.int32
            assert item["label"] == source.labels[index]
            seen[item["image"].tobytes()] = int(item["label"])
    assert seen == {expected(i).tobytes(): i % 3 for i in range(9)}
    np.testing.assert_array_equal(read(data.test)["image"], [expected(i) for i in (20, 21, 22)])
    np.testing.assert_array_equal(data.test.labels, [0, 1, 2])
    assert tried == []


def test_validation_beside_a_labelled_test(shared):
    data = load("tfds/barter_toy/three", shared, validation_fraction=7)
    assert (len(data.train), len(data.validation), len(data.test)) == (9, 4, 3)
    np.testing.assert_array_equal(data.validation[2]["image"], noise(12))


def test_validation_is_the_test_set_where_test_has_no_labels(shared):
    data = load("tfds/barter_toy/unlabelled", shared)
    assert (len(data.train), len(data.validation), len(data.test)) == (6, 3, 4)
    np.testing.assert_array_equal(data.test[2]["image"], noise(12))


def test_the_seed_decides_the_validation_split(shared):
    held = [read(load("tfds/barter_toy", shared, seed=s).validation)["image"] for s in (0, 1, 2, 0)]
    np.testing.assert_array_equal(held[0], held[3])
    assert any((held[0] != other).any() for other in held[1:3])


def test_indices(shared):
    source = load("tfds/barter_toy", shared).test
    np.testing.assert_array_equal(source[-1]["image"], source[2]["image"])
    for index in (3, -4):
        with pytest.raises(IndexError):
            source[index]


def test_several_files(tmp_path, shared):
    """Records come in the order of the files, each from where a split begins to where it ends."""
    prepared = tfds_source.open_prepared("barter_toy/three", shared)
    files = [prepared.splits[split].shards[0].path for split in ("train", "validation")]
    shards = tuple(
        tfds_source.Shard(path, start, stop)
        for path, start, stop in ((files[0], 6, 9), (files[1], 1, 3), (files[0], 0, 2))
    )
    records = tfds_source.Records("toy", shards, "image", "label", 1000)
    labels = tfds_source._read_labels(records)
    assert len(records) == 7 and list(labels) == [0, 1, 2, 1, 2, 0, 1]
    source = tfds_source.RecordSource(records, labels, 4, False)
    wanted = [expected(i) for i in (6, 7, 8, 11, 12, 0, 1)]
    np.testing.assert_array_equal(read(source)["image"], wanted)
    named = [tfds_source._shard_of(records, index) for index in range(7)]
    assert named == [files[0]] * 3 + [files[1]] * 2 + [files[0]] * 2


def test_many_threads(shared):
    data = load("tfds/barter_toy", shared)
    wanted = read(data.train)["image"]
    indices = np.random.default_rng(0).permutation(np.tile(np.arange(len(data.train)), 100))
    with futures.ThreadPoolExecutor(8) as pool:
        items = pool.map(data.train.__getitem__, map(int, indices))
        for index, item in zip(indices, items, strict=True):
            np.testing.assert_array_equal(item["image"], wanted[index])


def test_another_process_reads_a_copy(tmp_path, shared):
    source = load("tfds/barter_toy", shared).train
    item = source[1]["image"]  # The reader is open.
    copied = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(copied[1]["image"], item)
    (tmp_path / "source").write_bytes(pickle.dumps(source))
    code = (
        "import pathlib, pickle, sys\n"
        "source = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "print(int(source[1]['image'].astype('int64').sum()))\n"
        "assert not {'tensorflow_datasets', 'tensorflow'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "source")], check=True, stdout=subprocess.PIPE
    )
    assert int(done.stdout) == int(item.astype(np.int64).sum())


def test_labels_of_large_sets_are_kept(shared, monkeypatch):
    load("tfds/barter_toy", shared)
    assert not label_cache.default_directory().exists()
    monkeypatch.setattr(tfds_source, "_KEPT_FROM_BYTES", 0)
    first = load("tfds/barter_toy", shared)
    assert len(list(label_cache.default_directory().iterdir())) == 2

    reading = tfds_source._read_labels

    def one_only(records):
        assert len(records) == 1  # Whether a split is labelled.
        return reading(records)

    monkeypatch.setattr(tfds_source, "_read_labels", one_only)
    again = load("tfds/barter_toy", shared)
    np.testing.assert_array_equal(first.train.labels, again.train.labels)


def test_progress_is_logged_while_labels_are_read(shared, monkeypatch):
    told = []
    monkeypatch.setattr(tfds_source.log, "info", lambda text, *args: told.append(text % args))
    monkeypatch.setattr(tfds_source, "_SECONDS_BETWEEN_LOGS", -1)
    monkeypatch.setattr(tfds_source, "_CHUNK_BYTES", 400)
    load("tfds/barter_toy", shared)
    assert any(re.fullmatch(r".*, split train: read \d of 9 labels", line) for line in told)


# Preparing.


def cifar(path, classes):
    """An archive in the layout of CIFAR's binary version; image i has label i % classes."""
    rng = np.random.default_rng(0)

    def batch(count):
        rows = (
            bytes([i % 20, i % 100] if classes == 100 else [i % 10]) + rng.bytes(3072)
            for i in range(count)
        )
        return b"".join(rows)

    if classes == 100:
        files = {
            "train.bin": batch(200),
            "test.bin": batch(100),
            "coarse_label_names.txt": "".join(f"coarse{i}\n" for i in range(20)).encode(),
            "fine_label_names.txt": "".join(f"fine{i}\n" for i in range(100)).encode(),
        }
        prefix = "cifar-100-binary/"
    else:
        files = {f"data_batch_{i}.bin": batch(10) for i in range(1, 6)}
        files |= {"test_batch.bin": batch(10)}
        files |= {"batches.meta.txt": "".join(f"kind{i}\n" for i in range(10)).encode() + b"\n"}
        prefix = "cifar-10-batches-bin/"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tar(path, {prefix + name: content for name, content in files.items()}, "w:gz")
    return files


@pytest.mark.parametrize("classes", [10, 100])
def test_cifar_from_its_archive(tmp_path, monkeypatch, tried, classes):
    archive = tmp_path / f"downloads/manual/cifar-{classes}-binary.tar.gz"
    files = cifar(archive, classes)
    with tensorflow_datasets() as tfds:
        from tensorflow_datasets.core.download import checksums

        infos = tfds.builder_cls(f"cifar{classes}").url_infos
        (url,) = infos
        monkeypatch.setitem(infos, url, checksums.compute_url_info(archive))
    data = load(f"cifar{classes}", tmp_path, image_size=32, validation_fraction=0.5)
    archive.unlink()
    again = load(f"cifar{classes}", tmp_path, image_size=32, validation_fraction=0.5)
    assert data.class_names[3] == ("fine3" if classes == 100 else "kind3")
    assert len(data.class_names) == classes and tried == []
    size = 3073 + (classes == 100)
    batches = [
        files[name] for name in sorted(files) if name.endswith(".bin") and "test" not in name
    ]
    stored = b"".join(batches)
    images = {}
    for start in range(0, len(stored), size):
        row = np.frombuffer(stored[start : start + size], np.uint8)
        images[row[-3072:].reshape(3, 32, 32).transpose(1, 2, 0).tobytes()] = row[size - 3073]
    seen = {}
    for source, other in ((data.train, again.train), (data.validation, again.validation)):
        np.testing.assert_array_equal(read(source)["image"], read(other)["image"])
        for item in map(source.__getitem__, range(len(source))):
            seen[item["image"].tobytes()] = item["label"]
    assert seen == images
    assert (tmp_path / f"cifar{classes}/3.0.2/dataset_info.json").exists()


def test_imagenet_from_its_archives(tmp_path, tried):
    manual = tmp_path / "downloads/manual"
    manual.mkdir(parents=True)

    def jpeg(seed, grey=False):
        return encode(noise(seed, 8)[..., 0] if grey else noise(seed, 8), "JPEG")

    inner = {}
    for label, wnid in enumerate(("n01440764", "n01443537")):
        images = {f"{wnid}_{i}.JPEG": jpeg(10 * label + i, grey=i == 1) for i in range(4)}
        inner[f"{wnid}.tar"] = write_tar(tmp_path / "inner.tar", images).read_bytes()
    write_tar(manual / "ILSVRC2012_img_train.tar", inner)
    images = {f"ILSVRC2012_val_{i:08}.JPEG": jpeg(30 + i) for i in range(1, 4)}
    write_tar(manual / "ILSVRC2012_img_val.tar", images)
    images = {f"ILSVRC2012_test_{i:08}.JPEG": jpeg(40 + i) for i in range(1, 3)}
    write_tar(manual / "ILSVRC2012_img_test.tar", images)
    data = load("imagenet", tmp_path, image_size=8, validation_fraction=0.25)
    assert (len(data.train), len(data.validation), len(data.test)) == (6, 2, 3)
    assert len(data.class_names) == 1000 and data.class_names[1] == "n01443537"
    assert list(np.bincount(data.train.labels)) == [3, 3]
    for source in (data.train, data.validation, data.test):
        assert read(source)["image"].shape == (len(source), 8, 8, 3)
    assert tried == []


def test_two_processes_prepare_together(tmp_path):
    # Threads hold one lock here; the file lock is what processes meet at.
    code = (
        "import sys; from barter_jax.data import sources\n"
        "data = sources.load('tiny_imagenet', dir=sys.argv[1], image_size=8,"
        " validation_fraction=.25, seed=0, resize=False, cache_mb=0)\n"
        "print(len(data.train), len(data.test))"
    )
    (tmp_path / "downloads/manual").mkdir(parents=True)
    write_zip(tmp_path / "downloads/manual/tiny-imagenet-200.zip", tiny_imagenet())
    command = [sys.executable, "-c", code, str(tmp_path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    assert [process.communicate()[0] for process in running] == [b"9 6\n"] * 2
    assert [process.returncode for process in running] == [0, 0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["downloads", "tiny_imagenet200"]


def test_data_prepared_since_the_builder_looked_is_read(tmp_path):
    with tensorflow_datasets():
        early = tfds_prepare.open_builder("barter_toy", tmp_path)
        tfds_prepare.prepare(tfds_prepare.open_builder("barter_toy", tmp_path))
        assert not early.info.initialized
        tfds_prepare.prepare(early)
        assert early.info.file_format.value == "array_record"


def test_progress_is_logged_while_preparing(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(tfds_prepare.log, "info", lambda text, *args: told.append(text % args))
    monkeypatch.setattr(tfds_prepare, "_SECONDS_BETWEEN_LOGS", 0.001)
    load("tfds/barter_toy", tmp_path)
    assert told[0].startswith("preparing barter_toy/plain/1.0.0 in ")
    assert "barter_toy: 0 MiB downloaded, 0 MiB written" in told
    assert told[-1] == "prepared barter_toy/plain/1.0.0"


def test_where_the_data_go(tmp_path, monkeypatch):
    with tensorflow_datasets() as tfds:
        default = pathlib.Path(tfds.core.constants.DATA_DIR).expanduser()
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        for dir, root in (("~/x", tmp_path / "x"), ("y", tmp_path / "y"), (None, default)):
            builder = tfds_prepare.open_builder("barter_toy", dir)
            assert builder.data_dir == str(root / "barter_toy/plain/1.0.0")


def test_nothing_but_the_data_is_left(tmp_path, monkeypatch, capfd):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    load("tfds/barter_toy", tmp_path / "data")
    assert list(temporary.iterdir()) == []
    assert capfd.readouterr() == ("", "")
    found = sorted(path.name for path in (tmp_path / "data/barter_toy").iterdir())
    assert found == [".config", "plain"]


# What is wrong, and what to say about it.


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "cifar100",
            r"put cifar-100-binary\.tar\.gz into {dir}/downloads/manual, or the prepared ",
        ),
        ("cifar10", r"\(www\.cs\.toronto\.edu: Name or service not known\): connect to the networ"),
        ("tfds/eurosat", r"eurosat/rgb/2\.0\.0 is not in {dir} and cannot be downloaded"),
        ("imagenet", r"by hand: put ILSVRC2012_img_train\.tar and .*_val\.tar into {dir}/downloa"),
        ("tfds/resisc45", r"has to be downloaded by hand: put its files into {dir}/downloads/man"),
        ("tfds/barter_toy/failing", r"cannot be prepared in {dir} \(KeyError: .*something odd"),
        ("tfds/barter_toy/foreign", r"by TensorFlow only \(its code uses tf\.audio\): prepare it"),
        ("tfds/barter_toy/needy", r"needs the package a_package_that_is_not_there to be prepared"),
        ("tfds/barter_toy/boxes", r"not for image classification \(its supervised keys are \('im"),
        ("tfds/imdb_reviews", r"data\.name: imdb_reviews/.* is not for image classification"),
        ("tfds/celeb_a", r"celeb_a/.* is not for image classification \(its supervised keys are N"),
        (
            "tfds/coco",
            r"data\.name=tfds/coco can be opened by TensorFlow only \(its code uses tf\.",
        ),
        ("tfds/cifar1", r"data\.name=tfds/cifar1 is unknown .*\(did you mean tfds/cifar10\?\)"),
        ("tfds/zzzzzz", r"data\.name=tfds/zzzzzz is unknown to TensorFlow Datasets$"),
        ("tfds/eurosat/x", r"names a config that does not exist: choose one of rgb, all"),
        ("tfds/cifar10/x", r"names a config that does not exist: choose none"),
        ("tfds/cifar10:1.0.0", r"cannot be opened: Dataset cifar10 cannot be loaded at version 1"),
        ("tfds/", r"data\.name=tfds/ is no name: write tfds/<name>"),
        ("tfds/huggingface:mnist", r"is no name: write tfds/<name>"),
        ("tfds/eurosat/a=1", r"is no name: write tfds/<name>"),
    ],
)
def test_one_line_and_nothing_left(tmp_path, name, message):
    path = tmp_path / "parent/data"
    for call in (load, sources.class_names):
        start = time.monotonic()
        with pytest.raises(UserError, match=message.replace("{dir}", str(path))) as caught:
            call(name, path)
        assert time.monotonic() - start < 10
        assert "\n" not in str(caught.value)
        assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_what_was_there(tmp_path):
    load("tfds/barter_toy/plain", tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="something odd"):
        load("tfds/barter_toy/failing", tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_interrupt_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(BarterToy, "_generate_examples", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load("tfds/barter_toy", tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_another_archive(tmp_path):
    archive = tmp_path / "downloads/manual/cifar-10-binary.tar.gz"
    cifar(archive, 10)
    with pytest.raises(UserError, match=r"wrong checksum.*is damaged or is another one, remove it"):
        load("cifar10", tmp_path, image_size=32)
    assert archive.exists() and not (tmp_path / "cifar10").exists()


def test_a_file_or_a_closed_folder_as_data_dir(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match=r"data\.dir=.*/file.* cannot be made \(.*\): set it to"):
        load("tfds/barter_toy", tmp_path / "file/data")


def test_no_labelled_test(shared):
    for name in ("alone", "blind"):
        with pytest.raises(UserError, match=r"has no images to test with \(its splits: train"):
            load(f"tfds/barter_toy/{name}", shared)


def test_a_label_of_no_class(shared):
    with pytest.raises(UserError, match=r"split train, record 5: label -1 is not one of the 3 cla"):
        load("tfds/barter_toy/wrong", shared)


@pytest.mark.parametrize("cache_mb", [0, 1])
def test_an_image_of_another_size_is_named(shared, cache_mb):
    message = r"barter_toy/odd/1\.0\.0, split t.*, record 2: 6x6 pixels, but data\.image_size=4"
    with pytest.raises(UserError, match=message):
        data = load("tfds/barter_toy/odd", shared, cache_mb=cache_mb)
        read(data.train), read(data.validation)
    data = load("tfds/barter_toy/odd", shared, cache_mb=cache_mb, resize=True)
    assert read(data.train)["image"].shape == (6, 4, 4, 3)


def test_bad_fraction_is_found_before_decoding(shared):
    with pytest.raises(UserError, match=r"data\.validation_fraction=2"):
        load("tfds/barter_toy", shared, validation_fraction=2, image_size=99)


@pytest.fixture
def own(tmp_path):
    """A prepared data set to damage."""
    load("tfds/barter_toy", tmp_path)
    return tmp_path / "barter_toy/plain/1.0.0"


def test_a_missing_file(tmp_path, own):
    (path,) = own.glob("*test*")
    path.unlink()
    with pytest.raises(UserError, match=rf"{path} is missing: remove {own} and start again"):
        load("tfds/barter_toy", tmp_path)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_a_cut_file(tmp_path, own, part):
    (path,) = own.glob("*train*")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    with pytest.raises(
        UserError, match=rf"split train.*: {path} cannot be read \(.*\): remove {own}"
    ):
        data = load("tfds/barter_toy", tmp_path)
        read(data.train), read(data.validation)


def test_a_file_damaged_after_opening(tmp_path, own):
    data = load("tfds/barter_toy", tmp_path)
    (path,) = own.glob("*test*")
    content = bytearray(path.read_bytes())
    content[200:3000] = bytes(2800)
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"split test, record \d: .* cannot be "):
        read(data.test)


def test_without_splits(tmp_path, own):
    (own / "dataset_info.json").unlink()
    with pytest.raises(UserError, match=rf"{own} has no splits: remove {own} and start again"):
        load("tfds/barter_toy", tmp_path)


def test_another_file_format(tmp_path, own):
    info = own / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(
        UserError, match=rf"{own} is kept as tfrecord, which cannot be read by rand"
    ):
        load("tfds/barter_toy", tmp_path)


# Whether a host answers.


def test_a_silent_host(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x"
        start = time.monotonic()
        with pytest.raises(tfds_prepare.Unreachable, match=r"^127\.0\.0\.1:\d+: "):
            tfds_prepare.check_reachable(url, seconds=0.2)
        assert time.monotonic() - start < 2
    with pytest.raises(tfds_prepare.Unreachable, match="Connection refused"):
        tfds_prepare.check_reachable(url, seconds=2)


def test_a_name_that_takes_long_to_look_up(monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **o: [released.wait(5)][1:])
    with pytest.raises(tfds_prepare.Unreachable, match=r"^some\.host: no answer in 0\.1 s$"):
        tfds_prepare.check_reachable("https://some.host/x", seconds=0.1)
    released.set()
