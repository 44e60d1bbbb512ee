"""Tiny-ImageNet-200 from its archive, its folder, and through TensorFlow Datasets."""

import http.server
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from barter_jax.data import sources, tiny_imagenet
from barter_jax.data.container import Folder, open_container
from barter_jax.data.images import decode_image
from barter_jax.errors import UserError

from .helpers import encode, noise, without_network, write, write_zip
from .helpers import tiny_imagenet as tiny

NAMES = ("red fox", "crane (n10)", "crane (n20)")


@pytest.fixture(autouse=True)
def tried(monkeypatch):
    return without_network(monkeypatch)


def load(path, **changes):
    options = {"image_size": 8, "validation_fraction": 0.25, "seed": 0, "resize": False}
    return sources.load("tiny_imagenet", dir=path, **({"cache_mb": 0} | options | changes))


def read(source):
    return source.read(np.arange(len(source)))


def assert_equal(first, second):
    assert first.class_names == second.class_names
    for split in ("train", "validation", "test"):
        a, b = read(getattr(first, split)), read(getattr(second, split))
        for key, value in a.items():
            np.testing.assert_array_equal(value, b[key])


def pixels(files, name):
    return decode_image(files[f"tiny-imagenet-200/{name}"], name, 8, False)


@pytest.mark.parametrize("cache_mb", [0, 1])
def test_splits_labels_and_pixels(tmp_path, cache_mb):
    files = tiny()
    data = load(write_zip(tmp_path / "a.zip", files), cache_mb=cache_mb)
    assert data.class_names == NAMES
    assert (len(data.train), len(data.validation), len(data.test)) == (9, 3, 6)
    assert list(np.bincount(data.train.labels)) == [3, 3, 3]
    assert list(np.bincount(data.validation.labels)) == [1, 1, 1]
    expected = {
        pixels(files, f"train/{wnid}/images/{wnid}_{i}.JPEG").tobytes(): label
        for label, wnid in enumerate(("n30", "n10", "n20"))
        for i in range(4)
    }
    parts = [read(data.train), read(data.validation)]
    seen = {
        image.tobytes(): label
        for part in parts
        for image, label in zip(part["image"], part["label"], strict=True)
    }
    assert seen == expected
    lines = files["tiny-imagenet-200/val/val_annotations.txt"].decode().splitlines()
    for index, line in enumerate(lines):
        item = data.test[index]
        name, wnid = line.split("\t")[:2]
        np.testing.assert_array_equal(item["image"], pixels(files, f"val/images/{name}"))
        assert item["label"] == ("n30", "n10", "n20").index(wnid)


def test_greyscale_becomes_rgb(tmp_path):
    files = tiny()
    image = pixels(files, "train/n10/images/n10_1.JPEG")
    assert (image == image[..., :1]).all()
    data = load(write_zip(tmp_path / "a.zip", files))
    grey = [
        (source[i]["image"] == source[i]["image"][..., :1]).all()
        for source in (data.train, data.validation)
        for i in range(len(source))
    ]
    assert sum(grey) == 1 and data.test[0]["image"].shape == (8, 8, 3)


def test_wherever_the_data_lie(tmp_path):
    archive = write_zip(tmp_path / "any name.zip", tiny())
    expected = load(archive)
    extracted = write(tmp_path / "extracted", tiny())
    assert_equal(load(extracted), expected)
    assert_equal(load(extracted / "tiny-imagenet-200"), expected)
    assert_equal(load(write_zip(tmp_path / "flat.zip", tiny(""))), expected)
    assert_equal(load(write_zip(tmp_path / "other.zip", tiny("renamed/"))), expected)
    (tmp_path / "beside").mkdir()
    write_zip(tmp_path / "beside/tiny-imagenet-200.zip", tiny())
    assert_equal(load(tmp_path / "beside"), expected)
    assert sources.class_names("tiny_imagenet", extracted) == NAMES


def test_the_seed_decides_the_validation_split(tmp_path):
    archive = write_zip(tmp_path / "a.zip", tiny())
    held = [read(load(archive, seed=seed).validation)["image"] for seed in (0, 1, 2, 0)]
    np.testing.assert_array_equal(held[0], held[3])
    assert (held[0] != held[1]).any() or (held[0] != held[2]).any()
    np.testing.assert_array_equal(
        read(load(archive, seed=1).test)["image"], read(load(archive).test)["image"]
    )


def test_one_line_tells_what_was_found(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(tiny_imagenet.log, "info", lambda text, *args: told.append(text % args))
    archive = write_zip(tmp_path / "a.zip", tiny())
    load(archive)
    assert told == [
        f"{archive}: 12 training images, of which 3 are held out for validation, and 6 in val/, "
        "which are the test images, of 3 classes"
    ]


@pytest.mark.parametrize("place", ["zip", "folder"])
def test_prepared_data_are_the_same(tmp_path, tried, place):
    manual = tmp_path / "data/downloads/manual"
    manual.mkdir(parents=True)
    if place == "zip":
        direct = write_zip(manual / "tiny-imagenet-200.zip", tiny())
    else:
        direct = write(manual, tiny())
    expected = load(direct, cache_mb=1)
    assert_equal(load(tmp_path / "data"), expected)
    for path in manual.iterdir():
        path.rename(tmp_path / path.name)
    assert_equal(load(tmp_path / "data", cache_mb=1), expected)
    assert sources.class_names("tiny_imagenet", tmp_path / "data") == NAMES
    assert tried == []


def test_others_can_use_the_builder(tmp_path):
    manual = tmp_path / "downloads/manual"
    manual.mkdir(parents=True)
    write_zip(manual / "tiny-imagenet-200.zip", tiny())
    code = (
        "import sys, tensorflow_datasets as tfds\n"
        "tfds.disable_progress_bar()\n"  # They hold up the exit by ten seconds.
        "import barter_jax.data.tfds_builders.tiny_imagenet200\n"
        "source = tfds.data_source('tiny_imagenet200', split='validation', data_dir=sys.argv[1],"
        " decoders={'image': tfds.decode.SkipDecoding()},"
        " download_and_prepare_kwargs={'file_format': 'array_record'})\n"
        "assert [item['label'] for item in source] == [0, 0, 1, 1, 2, 2]\n"
        "assert source[0]['image'][:2] == b'\\xff\\xd8'\n"
        "assert 'tensorflow' not in sys.modules"
    )
    # On its own, it leaves a temporary directory behind.
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env=environment)


# Downloading.


class Handler(http.server.BaseHTTPRequestHandler):
    content = b""
    status = 200

    def do_GET(self):
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch, tmp_path):
    """Serves the archive where the builder looks for it."""
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    from barter_jax.data.tfds_api import tensorflow_datasets

    with tensorflow_datasets():
        from barter_jax.data.tfds_builders import tiny_imagenet200

    class Mine(Handler):
        content = write_zip(tmp_path / "served.zip", tiny()).read_bytes()

    http_server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mine)
    thread = threading.Thread(target=http_server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{http_server.server_port}/tiny-imagenet-200.zip"
    monkeypatch.setattr(tiny_imagenet200, "URL", url)
    monkeypatch.setattr(tiny_imagenet200, "SIZE", len(Mine.content))
    yield Mine
    http_server.shutdown()
    thread.join()
    http_server.server_close()


def test_download(tmp_path, server):
    data = load(tmp_path / "data")
    server.status = 500
    assert_equal(load(tmp_path / "data"), data)
    assert_equal(data, load(tmp_path / "served.zip"))


def test_a_download_of_another_size(tmp_path, server):
    server.content = server.content[:-1]
    with pytest.raises(UserError, match=r"zip gave [\d,]+ bytes instead of [\d,]+: start again"):
        load(tmp_path / "data")
    assert not list((tmp_path / "data").rglob("*.zip"))


@pytest.mark.parametrize("status", [404, 503])
def test_a_refused_download(tmp_path, server, status):
    server.status = status
    with pytest.raises(UserError, match=rf"cannot be downloaded \(127.*: HTTP status {status}\)"):
        load(tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_no_network(tmp_path, tried):
    with pytest.raises(
        UserError,
        match=r"tiny_imagenet200/1\.0\.0 is not in .*/data and cannot be downloaded "
        r"\(cs231n\.stanford\.edu: Name or service not known\): .* put tiny-imagenet-200\.zip into "
        r".*/data/downloads/manual, or ",
    ):
        load(tmp_path / "data")
    assert tried and not (tmp_path / "data").exists()


# What is wrong, and what to say about it.

ANNOTATIONS = "val/val_annotations.txt"
TAIL = "\t0\t1\t7\t7\n"


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize(
    ("remove", "add", "message"),
    [
        ("wnids.txt", {}, r"^data\.dir={dir} has no tiny-imagenet-200/wnids\.txt: set data\.dir"),
        ("words.txt", {}, r"^data\.dir={dir} has no tiny-imagenet-200/words\.txt: set data\.dir"),
        (ANNOTATIONS, {}, r"^data\.dir={dir} has no tiny-imagenet-200/val/val_annotations\.txt"),
        ("train/n10/", {}, r"^data\.dir={dir} has no tiny-imagenet-200/train/n10/, a class of wn"),
        ("train/n10/images/", {}, r"^data\.dir={dir} has no images in .*/train/n10/images/: set"),
        ("", {"train/n99/images/a.JPEG": b""}, r"train/n99/, which is no class of wnids\.txt: rem"),
        ("", {"wnids.txt": b"n30\nn10\n\nn30\nn20"}, r"wnids\.txt, line 4: n30 stands there twi"),
        ("", {"wnids.txt": b"n30\n"}, r"wnids\.txt: 1 classes, but it takes two"),
        ("", {"words.txt": b"n10\tx\nn20\ty\n"}, r"words\.txt: no line for n30, a class of wnids"),
        ("", {"words.txt": b"n10\tx\nn20 y\n"}, r"words\.txt, line 2: expected an id, a tab and "),
        ("val/images/val_2.JPEG", {}, r"val_annotations\.txt, line \d: there is no image .*val_2"),
        ("", {"val/images/b.JPEG": b""}, r"val_annotations\.txt: no line for the image .*/b\.JPEG"),
        ("", {ANNOTATIONS: b"\n"}, r"val_annotations\.txt: no line for the image .*val_0\.JPEG"),
        ("", {ANNOTATIONS: b"val_0.JPEG\tn30\n"}, r"val_annotations\.txt, line 1: 2 fields inst"),
        ("", {ANNOTATIONS: f"a\tn9{TAIL}".encode()}, r"annotations\.txt, line 1: n9 is no class"),
        (
            "",
            {ANNOTATIONS: 2 * f"val_0.JPEG\tn30{TAIL}".encode()},
            r"val_annotations\.txt, line 2: val_0\.JPEG has a line already",
        ),
        (
            "val/",
            {
                ANNOTATIONS: f"a.JPEG\tn30{TAIL}b.JPEG\tn20{TAIL}".encode(),
                "val/images/a.JPEG": b"",
                "val/images/b.JPEG": b"",
            },
            r"val_annotations\.txt: no image of n10, a class of wnids\.txt",
        ),
    ],
)
def test_wrong_files(tmp_path, archive, remove, add, message):
    root = "tiny-imagenet-200/"
    files = {k: v for k, v in tiny().items() if not (remove and k.startswith(root + remove))}
    if remove == "train/n10/images/":
        assert f"{root}train/n10/n10_boxes.txt" in files
    files |= {root + name: content for name, content in add.items()}
    path = write_zip(tmp_path / "a.zip", files) if archive else write(tmp_path / "a", files)
    for call in (load, lambda path: sources.class_names("tiny_imagenet", path)):
        with pytest.raises(UserError, match=message.replace("{dir}", str(path))) as caught:
            call(path)
        assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_a_damaged_image_is_named(tmp_path):
    files = tiny() | {"tiny-imagenet-200/train/n20/images/n20_2.JPEG": b"junk"}
    path = write_zip(tmp_path / "a.zip", files)
    with pytest.raises(UserError, match=r"a\.zip: .*/n20_2\.JPEG: cannot be decoded"):
        load(path, cache_mb=1)


def test_another_size(tmp_path):
    path = write_zip(tmp_path / "a.zip", tiny())
    with pytest.raises(UserError, match=r"n30_\d\.JPEG: 8x8 pixels, but data\.image_size=64"):
        load(path, image_size=64)
    assert load(path, image_size=64, resize=True).train[0]["image"].shape == (64, 64, 3)


def test_what_cannot_be_read(tmp_path):
    path = write(tmp_path, tiny(""))
    (path / "words.txt").unlink()
    (path / "words.txt").symlink_to("nowhere")
    with pytest.raises(UserError, match=r"/words\.txt cannot be read \(No such file.*make it read"):
        load(path)

    class Closed(Folder):
        def entries(self):
            raise PermissionError(13, "Permission denied", "val")

    with pytest.raises(UserError, match=r"data\.dir=here cannot be read \(.*denied: 'val'\): make"):
        tiny_imagenet.scan(Closed(path), "here")


def test_other_places(tmp_path):
    with pytest.raises(UserError, match=r"data\.dir=.*/absent\.zip does not exist: set data\.dir"):
        load(tmp_path / "absent.zip")
    (tmp_path / "a.zip").write_bytes(b"no archive")
    with pytest.raises(UserError, match=r"a\.zip is a file but no zip archive"):
        load(tmp_path / "a.zip")
    other = write_zip(tmp_path / "b.zip", {"cats/a.png": encode(noise(0))})
    with pytest.raises(UserError, match=r"data\.dir=.*/b\.zip has no wnids\.txt: set data\.dir to"):
        load(other)


def test_bad_fraction_is_found_before_decoding(tmp_path):
    files = {k: b"junk" if k.endswith("JPEG") else v for k, v in tiny().items()}
    with pytest.raises(UserError, match=r"data\.validation_fraction=2"):
        load(write_zip(tmp_path / "a.zip", files), validation_fraction=2)


def test_lines_of_any_kind(tmp_path):
    files = tiny("")
    for name in ("wnids.txt", "words.txt", "val/val_annotations.txt"):
        files[name] = b"\r\n".join(files[name].splitlines()) + b"\r\n\r\n"
    container = open_container(write(tmp_path, files))
    assert tiny_imagenet.scan(container, tmp_path).class_names == NAMES
