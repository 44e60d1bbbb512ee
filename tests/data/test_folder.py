"""Image folders and archives."""

import os
import pathlib
import shutil
import threading
import zipfile
from concurrent import futures

import numpy as np
import pytest

from barter_jax.data import folder, pipeline, sources
from barter_jax.data.dataset import ArraySource, ImageDataset
from barter_jax.errors import UserError

from .helpers import animals, encode, noise, write, write_zip


def load(path, **changes):
    options = {"image_size": 4, "validation_fraction": 0.3, "seed": 0, "resize": False}
    return sources.load("folder", dir=path, **({"cache_mb": 1} | options | changes))


def read(source):
    return source.read(np.arange(len(source)))


def assert_equal(first, second):
    assert first.class_names == second.class_names
    for split in ("train", "validation", "test"):
        a, b = getattr(first, split), getattr(second, split)
        np.testing.assert_array_equal(a.labels, b.labels)
        for key, value in read(a).items():
            np.testing.assert_array_equal(value, read(b)[key])


def test_classes_labels_and_pixels(tmp_path):
    data = load(write(tmp_path, animals()))
    assert data.class_names == ("cat", "dog")
    assert sources.class_names("folder", tmp_path) == ("cat", "dog")
    assert (len(data.train), len(data.validation), len(data.test)) == (5, 2, 2)
    seen = {}
    for source in (data.train, data.validation):
        for index in range(len(source)):
            item = source[index]
            assert item["image"].dtype == np.uint8 and item["label"].dtype == np.int32
            assert item["label"] == source.labels[index]
            seen[item["image"].tobytes()] = int(item["label"])
    assert seen == {noise(i).tobytes(): int(i >= 3) for i in range(7)}
    test = read(data.test)
    np.testing.assert_array_equal(test["image"], [noise(7), noise(8)])
    np.testing.assert_array_equal(test["label"], [0, 1])


@pytest.mark.parametrize("cache_mb", [0, 1])
def test_zip_equals_folder(tmp_path, cache_mb):
    folder = load(write(tmp_path / "folder", animals()), cache_mb=cache_mb)
    assert_equal(folder, load(write_zip(tmp_path / "a.zip", animals()), cache_mb=cache_mb))


def test_eager_equals_lazy(tmp_path):
    folder = write(tmp_path, animals())
    eager, lazy = load(folder), load(folder, cache_mb=0)
    assert_equal(eager, lazy)
    for file in folder.rglob("*.png"):
        file.unlink()
    read(eager.train)
    with pytest.raises(UserError, match=r"\.png: cannot be read \(No such file or directory\)"):
        read(lazy.train)


def test_cache_mb_counts_the_decoded_bytes(tmp_path):
    size = 256  # An image takes 3/16 of a MiB, nine of them 1.6875.
    files = {name: encode(noise(0, size)) for name in animals()}
    write(tmp_path, files)
    changed = write(tmp_path, {"test/dog/a.png": encode(noise(1, size))}) / "test/dog/a.png"
    eager = load(tmp_path, image_size=size, cache_mb=1.6875)
    lazy = load(tmp_path, image_size=size, cache_mb=1.6874)
    changed.write_bytes(encode(noise(2, size)))
    np.testing.assert_array_equal(eager.test[1]["image"], noise(1, size))
    np.testing.assert_array_equal(lazy.test[1]["image"], noise(2, size))


def test_cached_images_cannot_be_written(tmp_path):
    image = load(write(tmp_path, animals())).train[0]["image"]
    with pytest.raises(ValueError, match="read-only"):
        image[0] = 0


@pytest.mark.parametrize("archive", [False, True])
def test_one_top_level_folder_and_clutter(tmp_path, archive):
    clutter = {
        "__MACOSX/animals/train/cat/._0.png": b"junk",
        "animals/.DS_Store": b"junk",
        "animals/readme.txt": b"hello",
        "animals/train/.cache/x.png": b"junk",
        "animals/train/cat/.hidden.png": b"junk",
        "animals/train/cat/Thumbs.db": b"junk",
        "animals/train/stray.png": b"junk",
        "readme.txt": b"hello",
    }
    files = clutter | {f"animals/{name}": content for name, content in animals().items()}
    path = write_zip(tmp_path / "a.zip", files) if archive else write(tmp_path / "a", files)
    assert_equal(load(path), load(write(tmp_path / "plain", animals())))


def test_a_zip_made_with_folder_entries(tmp_path):
    with zipfile.ZipFile(path := tmp_path / "a.zip", "w") as archive:
        for name in ("train/", "train/cat/", "train/dog/", "test/"):
            archive.mkdir(name)
        for name, content in animals().items():
            archive.writestr(name, content)
    assert_equal(load(path), load(write(tmp_path / "plain", animals())))


def test_extensions_of_any_case_and_folders_within_a_class(tmp_path):
    files = animals() | {
        "train/cat/more/3.JPEG": encode(noise(0), "JPEG"),
        "train/cat/4.Tif": encode(noise(1), "TIFF"),
        "train/cat/5.WebP": encode(noise(1), "WEBP"),
        "train/cat/6.pgm": encode(noise(1)[..., 0], "PPM"),
    }
    data = load(write(tmp_path, files))
    assert list(np.bincount([*data.train.labels, *data.validation.labels])) == [7, 4]


@pytest.mark.parametrize("archive", [False, True])
def test_val_alone_is_the_test_set(tmp_path, archive):
    files = animals("val")
    path = write_zip(tmp_path / "a.zip", files) if archive else write(tmp_path / "a", files)
    assert_equal(load(path), load(write(tmp_path / "plain", animals())))


def test_val_beside_test_is_the_validation_split(tmp_path):
    files = animals() | {"val/dog/x.png": encode(noise(9)), "val/cat/notes.txt": b""}
    data = load(write(tmp_path, files), validation_fraction=7)
    assert (len(data.train), len(data.validation), len(data.test)) == (7, 1, 2)
    np.testing.assert_array_equal(data.validation[0]["image"], noise(9))
    assert data.validation[0]["label"] == 1


@pytest.mark.parametrize("archive", [False, True])
def test_a_class_may_have_an_empty_folder_in_test(tmp_path, archive):
    root = write(tmp_path / "data", animals())
    (root / "test/cat/a.png").unlink()
    if archive:
        root = pathlib.Path(shutil.make_archive(str(tmp_path / "data"), "zip", root))
    np.testing.assert_array_equal(load(root).test.labels, [1])


def test_the_seed_decides_the_validation_split(tmp_path):
    folder = write(tmp_path, animals())
    held = [load(folder, seed=seed).validation for seed in range(20)]
    assert len({read(source)["image"].tobytes() for source in held}) > 1
    first, again = read(load(folder, seed=3).validation), read(held[3])
    np.testing.assert_array_equal(first["image"], again["image"])


def test_links_are_followed_but_not_in_circles(tmp_path):
    write(tmp_path / "elsewhere", {"0.png": encode(noise(0)), "1.png": encode(noise(1))})
    folder = write(tmp_path / "data", animals())
    for split in ("train", "test"):
        (folder / split / "emu").symlink_to(tmp_path / "elsewhere")
    (folder / "train/cat/loop").symlink_to(folder / "train")
    data = load(folder)
    assert data.class_names == ("cat", "dog", "emu")
    assert list(np.bincount([*data.train.labels, *data.validation.labels])) == [3, 4, 2]


def test_home_is_expanded(tmp_path, monkeypatch):
    write(tmp_path, animals())
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert sources.class_names("folder", f"~/{tmp_path.name}") == ("cat", "dog")


def test_lazy_zip_in_many_threads(tmp_path, monkeypatch):
    class Owned(zipfile.ZipFile):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.owner = threading.get_ident()

        def read(self, *args, **options):
            # Python's reference count of open members is not safe to share.
            assert self.owner == threading.get_ident()
            return super().read(*args, **options)

    files = animals() | {f"train/cat/{i:03}.png": encode(noise(i, 16)) for i in range(100, 200)}
    files = {name: encode(noise(i, 16)) for i, name in enumerate(sorted(files))}
    path = write_zip(tmp_path / "a.zip", files)
    monkeypatch.setattr(zipfile, "ZipFile", Owned)
    source = load(path, image_size=16, cache_mb=0).train
    expected = read(source)["image"]
    indices = np.random.default_rng(0).permutation(np.tile(np.arange(len(source)), 5))
    with futures.ThreadPoolExecutor(8) as pool:
        for index, item in zip(
            indices, pool.map(source.__getitem__, map(int, indices)), strict=True
        ):
            np.testing.assert_array_equal(item["image"], expected[index])


# What is wrong, and what to say about it.


@pytest.mark.parametrize(
    ("remove", "add", "message"),
    [
        ("train", {}, r"has no train/ \(found test/\): expected train/<class>/<image>"),
        ("", {"train/emu/notes.txt": b""}, r"has no images in train/emu/: add some"),
        ("", {"test/emu/0.png": b""}, r"has test/emu/ but no train/emu/"),
        ("", {"val/emu/0.png": b""}, r"has val/emu/ but no train/emu/"),
        ("test", {}, r"has train/ but neither test/ nor val/: expected train/<class>/<image>"),
        (
            "test",
            {"test/cat/a.txt": b"", "test/dog/a.txt": b""},
            r"has no images in test/<class>/",
        ),
        ("test", {"test/cat/a.txt": b""}, r"has no test/dog/ to go with train/dog/"),
        ("train", {"train/0.png": b""}, r"has no class folders in train/"),
    ],
)
@pytest.mark.parametrize("archive", [False, True])
def test_wrong_layout(tmp_path, archive, remove, add, message):
    files = {k: v for k, v in animals().items() if not (remove and k.startswith(remove))} | add
    path = write_zip(tmp_path / "a.zip", files) if archive else write(tmp_path / "a", files)
    for call in (load, lambda path: sources.class_names("folder", path)):
        with pytest.raises(UserError, match=message) as caught:
            call(path)
        assert str(caught.value).startswith(f"data.dir={path} ")
        assert "\n" not in str(caught.value)


def test_classes_without_splits(tmp_path):
    write(tmp_path, {"cat/0.png": b"", "dog/0.png": b""})
    expected = r"no train/ \(found cat/, dog/\): expected train/<class>/<image> and test/<class>/"
    with pytest.raises(UserError, match=expected):
        load(tmp_path)


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_an_empty_class_folder(tmp_path, kind):
    if kind == "folder":
        path = write(tmp_path, animals())
        (path / "train/emu").mkdir()
    else:
        path = write_zip(tmp_path / "a.zip", animals())
        with zipfile.ZipFile(path, "a") as archive:
            archive.mkdir("train/emu")
    with pytest.raises(UserError, match="no images in train/emu/"):
        load(path)


def test_nothing_there(tmp_path):
    with pytest.raises(UserError, match=r"data\.dir=.*/absent does not exist: set data\.dir to"):
        load(tmp_path / "absent")
    for unset in (None, ""):
        with pytest.raises(UserError, match=r"data\.dir is not set: set data\.dir to"):
            load(unset)


def test_no_archive(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"no archive")
    cut = write_zip(tmp_path / "b.zip", animals())
    cut.write_bytes(cut.read_bytes()[:-30])
    for path in (tmp_path / "a.zip", cut):
        with pytest.raises(UserError, match=r"data\.dir=.*zip is a file but no zip archive"):
            load(path)


@pytest.mark.parametrize("archive", [False, True])
def test_a_damaged_image_is_named(tmp_path, archive):
    files = animals() | {"train/dog/2.png": encode(noise(5))[:60], "train/dog/3.png": b"junk"}
    path = write_zip(tmp_path / "a.zip", files) if archive else write(tmp_path / "a", files)
    name = f"{path}: train/dog/2.png" if archive else f"{path}/train/dog/2.png"
    with pytest.raises(UserError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{name}: cannot be decoded (")


def test_a_damaged_zip_member_is_named(tmp_path):
    with zipfile.ZipFile(path := tmp_path / "a.zip", "w") as archive:
        for name, content in animals().items():
            archive.writestr(name, content)
    content = path.read_bytes()
    pixels = animals()["train/dog/1.png"]
    position = content.index(pixels) + len(pixels) // 2
    changed = bytes([content[position] ^ 1])
    path.write_bytes(content[:position] + changed + content[position + 1 :])
    with pytest.raises(UserError, match=r"a\.zip: train/dog/1\.png: cannot be read \(.*CRC"):
        load(path)


@pytest.mark.parametrize("threads", [0, 3])
def test_a_damaged_image_met_while_training(tmp_path, threads):
    files = animals() | {"train/dog/2.png": b"junk"}
    data = load(write(tmp_path, files), cache_mb=0, validation_fraction=0.2)
    (train,) = (s for s in (data.train, data.validation) if len(s) > 2)
    options = {"seed": 0, "num_threads": threads, "prefetch": 2}
    batches = pipeline.train_batches(train, batch_size=len(train), **options)
    with pytest.raises(UserError, match=r"/train/dog/2\.png: cannot be decoded") as caught:
        next(batches)
    assert type(caught.value) is UserError
    assert batches.get_state() == {"next_index": 0}


@pytest.mark.parametrize("cache_mb", [0, 1])
def test_the_first_image_of_another_size_is_named(tmp_path, cache_mb):
    path = write(tmp_path, {name: encode(noise(0, 6)) for name in animals()})
    with pytest.raises(
        UserError, match=r"train/cat/0\.png: 6x6 .*data\.image_size=4.*data\.resize"
    ):
        load(path, cache_mb=cache_mb)
    assert load(path, cache_mb=cache_mb, resize=True).train[0]["image"].shape == (4, 4, 3)


def test_bad_fraction_is_found_before_decoding(tmp_path):
    files = animals() | {"train/cat/0.png": b"junk"}
    with pytest.raises(UserError, match=r"data\.validation_fraction=2"):
        load(write(tmp_path, files), validation_fraction=2)


def test_one_class_is_not_enough(tmp_path):
    files = {name: data for name, data in animals().items() if "/cat/" in name}
    with pytest.raises(UserError, match="the one class cat in train/: add another"):
        load(write(tmp_path, files))


def warnings_of(path, monkeypatch, **changes):
    told = []
    monkeypatch.setattr(folder.log, "warning", lambda text, *args: told.append(text % args))
    load(path, **changes)
    return told


def test_classes_without_test_or_validation_images_are_told(tmp_path, monkeypatch):
    assert warnings_of(write(tmp_path / "all", animals()), monkeypatch) == []
    files = {name: data for name, data in animals().items() if not name.startswith("test/cat/")}
    files |= {f"train/{name}/0.png": encode(noise(0)) for name in "abcdef"}
    files |= {"val/dog/0.png": encode(noise(1))}
    root = write(tmp_path / "fewer", files)
    for split in ("test", "val"):
        for name in (*"abcdef", "cat"):
            (root / split / name).mkdir(parents=True)  # empty: there are none to spare
    assert warnings_of(root, monkeypatch) == [
        f"data.dir={root}: 7 of 8 classes have no {split} images, and F1 there is 0 for them: "
        "a, b, c, cat, d, ..."
        for split in ("test", "validation")
    ]
    # One image of eight is held out, and the class emu has but one.
    files = animals() | {"train/emu/0.png": encode(noise(0)), "test/emu/0.png": encode(noise(1))}
    (told,) = warnings_of(write(tmp_path / "few", files), monkeypatch, validation_fraction=0.3)
    assert told == (
        f"data.dir={tmp_path / 'few'}: 1 of 3 classes have no validation images, and F1 there is "
        "0 for them: emu"
    )


@pytest.mark.parametrize("split", ["test", "val"])
@pytest.mark.parametrize("keep", [write, write_zip])
def test_a_class_without_its_folder_is_a_mistake(tmp_path, split, keep):
    whole = animals() | {name.replace("test/", "val/"): data for name, data in animals().items()}
    load(keep(tmp_path / "whole", whole))
    files = {name: data for name, data in whole.items() if not name.startswith(f"{split}/cat/")}
    root = keep(tmp_path / "less", files)
    with pytest.raises(UserError) as caught:
        load(root)
    assert str(caught.value) == (
        f"data.dir={root} has no {split}/cat/ to go with train/cat/: add images of that class, or "
        "an empty folder if there are none to spare"
    )


def test_several_classes_without_their_folders_are_counted(tmp_path):
    files = animals() | {f"train/{name}/0.png": encode(noise(0)) for name in "abz"}
    with pytest.raises(UserError, match=r"no test/a/ to go with train/a/, nor 2 other classes: "):
        load(write(tmp_path, files))


def test_that_val_is_the_test_split_is_told(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(folder.log, "info", lambda text, *args: told.append(text % args))
    load(write(tmp_path / "test", animals("test")))
    assert not any("val/" in text for text in told)
    assert len(load(write(tmp_path / "val", animals("val"))).test) == 2
    assert any("val/ is the test split" in text for text in told)


def test_files_that_are_left_out_are_told(tmp_path, monkeypatch):
    files = animals() | {"train/cat/x.heic": b"", "train/cat/a/notes.txt": b"", "train/0.png": b""}
    assert warnings_of(write(tmp_path, files | {"notes.txt": b""}), monkeypatch) == [
        "1 images directly in train/ are in no class and left out",
        "2 files in train/ do not have the extension of an image and are left out, as "
        "train/cat/a/notes.txt",
    ]


@pytest.mark.parametrize("cache_mb", [0, 1])
def test_an_image_that_cannot_be_opened_is_named(tmp_path, cache_mb):
    path = write(tmp_path, animals())
    (path / "train/cat/0.png").unlink()
    (path / "train/cat/0.png").symlink_to(tmp_path / "nowhere")
    message = r"train/cat/0\.png: cannot be read \(No such file or directory\): make it readable"
    with pytest.raises(UserError, match=message):
        load(path, cache_mb=cache_mb)


def test_a_folder_that_may_not_be_read(tmp_path, monkeypatch):
    path = write(tmp_path, animals())
    listing = os.scandir

    # Permissions do not hold for root, who may be running this.
    def scandir(place):
        if str(place).endswith("dog"):
            raise PermissionError(13, "Permission denied", str(place))
        return listing(place)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UserError, match=r"data\.dir=.* cannot be read \(.*denied: '.*/dog'\)"):
        load(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_named(tmp_path):
    path = write(tmp_path / "a", animals())
    archive = write_zip(tmp_path / "a.zip", animals())
    for place, within in ((path / "train/dog", path), (archive, archive)):
        place.chmod(0)
        with pytest.raises(UserError, match=r"data\.dir=.* cannot be read \(.*denied"):
            load(within)
        place.chmod(0o755)


def test_duplicates_are_kept(tmp_path):
    files = animals() | {"train/cat/again.png": encode(noise(0)), "train/dog/again.png": b""}
    files["train/dog/again.png"] = files["train/cat/again.png"]
    data = load(write(tmp_path, files))
    assert list(np.bincount([*data.train.labels, *data.validation.labels])) == [4, 5]


def test_of_two_members_of_one_name_the_later_counts(tmp_path):
    path = write_zip(tmp_path / "a.zip", animals())
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("test/cat/a.png", encode(noise(99)))
    test = load(path).test
    assert len(test) == 2
    np.testing.assert_array_equal(test[0]["image"], noise(99))


def test_an_empty_archive(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w"):
        pass
    with pytest.raises(UserError, match=r"has no train/ \(found no folders\): expected train/"):
        load(tmp_path / "a.zip")
    (tmp_path / "a.zip").write_bytes(b"")
    with pytest.raises(UserError, match="is a file but no zip archive"):
        load(tmp_path / "a.zip")


@pytest.mark.parametrize("label", [-1, 2])
def test_labels_out_of_range(label):
    fine = ArraySource(np.zeros((2, 4, 4, 3), np.uint8), np.array([0, 1]))
    odd = ArraySource(np.zeros((2, 4, 4, 3), np.uint8), np.array([1, label]))
    message = f"test image 1 of the data has the label {label}, but the 2 classes have 0 to 1"
    with pytest.raises(UserError, match=message):
        ImageDataset(fine, fine, odd, ("a", "b"))
    ImageDataset(fine, fine, fine, ("a", "b"))
