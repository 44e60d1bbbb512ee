"""The picture and the figures of a data set."""

import contextlib
import json

import jax
import numpy as np
import pytest
from PIL import Image

from barter_jax import blueprint
from barter_jax.data import grid, show, survey
from barter_jax.data.dataset import ArraySource, ImageDataset
from barter_jax.training.distributed import Placement
from barter_jax.training.inputs import Inputs
from tests.training import commands, tiny

from .helpers import animals, encode, noise, write

MODULE = "barter_jax.data.show"
FOLDER = commands.ROOT / "configs/folder.py"


# --- the batch ---------------------------------------------------------------------------------


def test_the_batch_is_that_of_the_training_step():
    config = tiny.config(seed=3)
    dataset = blueprint.load_data(config)
    key = jax.random.fold_in(jax.random.key(3), 2)
    placement = Placement({"train.batch_size": config.train.batch_size})
    with contextlib.closing(Inputs(config, dataset, placement, key)) as inputs:
        steps = [inputs.prepare(step, inputs.next()) for step in range(3)]
    for step in (2, 0):
        images, targets = show.training_batch(config, dataset, step)
        np.testing.assert_array_equal(images, steps[step][0])
        np.testing.assert_array_equal(targets, steps[step][1])
    assert (steps[0][0] != steps[2][0]).any()


def test_pixels_are_what_was_normalised():
    values = np.arange(256, dtype=np.uint8)[:, None].repeat(3, 1)
    mean, std = (0.485, 0.456, 0.406), (0.25, 0.3, 0.01)
    normal = ((values / 255 - mean) / std).astype(np.float32)
    np.testing.assert_array_equal(show.pixels(normal, mean, std), values)
    outside = show.pixels(np.float32([[-100, 0, 100]]), (0.5, 0.5, 0.5), (1, 1, 1))
    np.testing.assert_array_equal(outside, [[0, 128, 255]])


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_shares_undo_label_smoothing(classes, smoothing):
    labels = np.eye(classes)
    mixed = [labels[1], 0.3 * labels[1] + 0.7 * labels[0], 0.3 * labels[0] + 0.7 * labels[0]]
    targets = np.float32((1 - smoothing) * np.array(mixed) + smoothing / classes)
    found = show.shares(targets, smoothing)
    assert [[label for label, _ in row] for row in found] == [[1], [0, 1], [0]]
    np.testing.assert_allclose([found[0][0][1], found[2][0][1]], 1, atol=1e-5)
    np.testing.assert_allclose([share for _, share in found[1]], [0.7, 0.3], atol=1e-5)
    assert show.captions(found, "abcdefghij") == [["b"], ["70% a", "30% b"], ["a"]]


# --- the figures -------------------------------------------------------------------------------


def made(train, validation, test):
    def source(labels):
        return ArraySource(np.zeros((len(labels), 2, 2, 3), np.uint8), np.array(labels))

    return ImageDataset(source(train), source(validation), source(test), ("a", "b", "c"))


def test_class_counts_and_extremes():
    counts = survey.class_counts(made([0, 0, 1, 2, 2, 2], [1], [0, 1, 2]))
    assert {split: list(row) for split, row in counts.items()} == {
        "train": [2, 1, 3], "validation": [0, 1, 0], "test": [1, 1, 1],
    }  # fmt: skip
    names = ("a", "b", "c")
    assert survey.extremes(names, counts["train"]) == {
        "images": 6,
        "classes": 3,
        "smallest": {"class": "b", "images": 1},
        "largest": {"class": "c", "images": 3},
    }
    validation = survey.extremes(names, counts["validation"])
    assert validation["classes"] == 1 and validation["smallest"] == {"class": "a", "images": 0}


def test_figures_of_all_images():
    images = np.stack([noise(seed, 5) for seed in range(6)])
    images[2] = images[2, ..., :1]
    source = ArraySource(images, np.zeros(6, np.int32))
    found = survey.sample_figures(source, 100, seed=0)
    assert found["images"] == 6 and found["greyscale"] == 1
    np.testing.assert_allclose(found["mean"], (images / 255).mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(found["std"], (images / 255).std((0, 1, 2)), rtol=1e-12)


def test_a_sample_has_other_images_for_another_seed_and_none_twice():
    images = np.arange(50, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 2, 3), np.uint8)
    source = ArraySource(images, np.zeros(50, np.int32))
    means = [survey.sample_figures(source, 10, seed)["mean"][0] for seed in (0, 0, 1)]
    assert means[0] == means[1] != means[2]
    # Of ten different numbers the deviation is at least that of ten in a row.
    assert survey.sample_figures(source, 10, 0)["std"][0] >= np.std(np.arange(10) / 255)
    assert survey.sample_figures(source, 10, 0)["images"] == 10


# --- the drawing -------------------------------------------------------------------------------


def test_small_images_are_enlarged_without_a_change():
    images = np.stack([noise(seed, 32) for seed in range(5)])
    picture = np.asarray(grid.tiles(images, [["x"]] * 5))
    # Three columns; tiles of 96 pixels with a margin of 8, and a line of 15 below.
    for place, image in enumerate(images):
        top, left = place // 3 * (96 + 15 + 8), 8 + place % 3 * (96 + 8)
        tile = picture[top : top + 96, left : left + 96]
        np.testing.assert_array_equal(tile, image.repeat(3, 0).repeat(3, 1))
        assert (picture[top + 96 : top + 96 + 15, left : left + 96] < 128).any()


def test_large_images_are_reduced():
    images = np.full((1, 1000, 1000, 3), 99, np.uint8)
    picture = np.asarray(grid.tiles(images, [["x", "y"]]))
    assert picture.shape == (256 + 30 + 8, 256 + 16, 3)
    assert (picture[:256, 8 : 8 + 256] == 99).all()


def test_long_text_is_cut():
    assert grid.shortened("short", 200) == "short"
    cut = grid.shortened("a very long name of a class", 60)
    assert cut.endswith("..") and "a very long name".startswith(cut[:-2]) and len(cut) > 5


def filled(picture):
    """How many pixels of each row, or column, are of the colour of a bar."""
    bar = (np.asarray(picture) == (76, 120, 168)).all(-1)
    return bar.sum(1), bar.sum(0)


@pytest.mark.parametrize("count", [3, 40])
def test_bars_are_in_proportion(count):
    counts = [100, 50, 0] + [10] * (count - 3)
    lengths = filled(grid.balance([f"c{i}" for i in range(count)], counts, 800))[0]
    first, second, third = lengths[7], lengths[15 + 7], lengths[30 + 7]
    # In two columns, each row has a short bar besides, and a bar is never without a pixel.
    besides = 0 if count == 3 else first / 100 * 10
    assert abs(second - besides - (first - besides) / 2) < 8
    assert third - besides < 8 and first > 200


def test_many_classes_give_a_falling_curve():
    counts = np.random.default_rng(0).permutation(np.arange(1, 201)).tolist()
    heights = filled(grid.balance([str(i) for i in range(200)], counts, 800))[1]
    heights = heights[heights > 0]
    assert (np.diff(heights) <= 0).all() and heights[0] > 150 and heights[-1] <= 2


def test_no_images_at_all_can_be_drawn():
    for count in (2, 50):
        assert not filled(grid.balance(["x"] * count, [0] * count, 300))[0][60:].any()


# --- the command -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    files = {name: encode(noise(i, 8)) for i, name in enumerate(animals())}
    return write(tmp_path_factory.mktemp("photos"), files)


def arguments(photos, *more):
    return [
        f"--config={FOLDER}", f"--config.data.dir={photos}", "--config.data.image_size=8",
        "--config.data.validation_fraction=0.3", "--config.train.batch_size=4", *more,
    ]  # fmt: skip


def test_the_command(photos, tmp_path):
    output = tmp_path / "batch.png"
    text = commands.run(MODULE, *arguments(photos, f"--output={output}", "--step=2"))
    assert text.code == 0, text.stderr
    assert "cat" in text.stdout and "'--config.data.mean=(0." in text.stdout
    with Image.open(output) as picture:
        assert picture.format == "PNG" and picture.width == 640
    first = output.read_bytes()
    # A picture that is there is replaced.
    more = (f"--output={output}", "--step=2", "--images=2", "--json")
    result = commands.run(MODULE, *arguments(photos, *more))
    assert output.read_bytes() != first
    document = json.loads(result.stdout)
    assert document["classes"] == [
        {"name": "cat", "train": 2, "validation": 1, "test": 1},
        {"name": "dog", "train": 3, "validation": 1, "test": 1},
    ]
    assert document["splits"]["train"]["smallest"] == {"class": "cat", "images": 2}
    assert document["sample"]["images"] == 5 and document["sample"]["greyscale"] == 0
    assert [row[0]["label"] in ("cat", "dog") for row in document["batch"]] == [True, True]
    assert document["step"] == 2 and document["batch_size"] == 4


@pytest.mark.parametrize(
    ("args", "fragments"),
    [
        (["--output=batch.jpg"], ["--output=batch.jpg", "ends in .png"]),
        (["--output=batch"], ["--output=batch", "ends in .png"]),
        (["--output=nowhere/batch.png"], ["no directory nowhere", "make it first"]),
        (["--output=text.png"], ["--output=text.png is there and no PNG"]),
        (["--output=folder.png"], ["is a directory"]),
        (["--step=-1"], ["step"]),
        (["--step=1000000"], ["--step=1000000 is not in the run: its steps are 0 to"]),
        (["--images=0"], ["images"]),
        (["--config.train.batch_size=400"], ["config.train.batch_size=400 is larger than the 5"]),
        (["--config.data.num_classes=3"], ["config.data.num_classes is 3, but the data has 2"]),
    ],
)
def test_mistakes_are_told_in_one_line(photos, tmp_path, args, fragments):
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "folder.png").mkdir()
    result = commands.run(MODULE, *arguments(photos, *args), cwd=tmp_path)
    commands.assert_refused(result, *fragments)
    assert (tmp_path / "text.png").read_text() == "no picture"
    assert not (tmp_path / "batch.png").exists()


def test_a_damaged_image_is_told_in_one_line(photos, tmp_path):
    broken = write(tmp_path, {name: encode(noise(0, 8)) for name in animals()})
    data = encode(noise(0, 8))[:40]
    write(broken, {f"train/dog/{i}.png": data for i in range(4)})
    result = commands.run(MODULE, *arguments(broken), cwd=tmp_path)
    commands.assert_refused(result, "train/dog/", "cannot be decoded")
