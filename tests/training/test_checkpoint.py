"""Checkpoints: which are kept, and that a damaged one is told and never used."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from barter_jax.core.barter import Progress
from barter_jax.core.topology import Budget, Topology
from barter_jax.errors import RunError
from barter_jax.training.checkpoint import Bookkeeping, Checkpoints, Evaluation, checksum
from tests.training import commands, tiny


def state(seed: int = 0):
    rng = np.random.default_rng(seed)
    return {
        "params": {"a": rng.standard_normal((40, 30)).astype(np.float32), "b": np.float32(2)},
        "counts": (np.arange(5, dtype=np.int32), np.full((1, 3), -0.0, np.float32)),
    }


def books(step: int, best: Evaluation | None = None) -> Bookkeeping:
    return Bookkeeping(
        step=step,
        progress=Progress(
            Topology((2, 1), (3, 4)), Budget(1, 2), Budget(0, 5), Topology((2, 2), (8, 4))
        ),
        data={"next_index": step},
        best=best or Evaluation(),
        latest=Evaluation(step, {"accuracy": 0.125}),
        window={"loss": [0.1, 1 / 3]},
        seconds={"step": 1.5},
        updates=2,
        config={"seed": 3, "train": {"steps": None}},
    )


@pytest.fixture
def open_checkpoints():
    opened = []

    def open_(directory, keep=1):
        opened.append(Checkpoints(directory, keep))
        return opened[-1]

    yield open_
    for checkpoints in opened:
        checkpoints.close()


def test_what_is_saved_comes_back(tmp_path, open_checkpoints):
    first = open_checkpoints(tmp_path / "c")
    assert first.latest_step() is None
    first.save(state(), books(3, Evaluation(2, {"accuracy": 0.25})))
    first.wait()
    again = open_checkpoints(tmp_path / "c")
    assert again.latest_step() == 3
    assert again.read_bookkeeping(3) == books(3, Evaluation(2, {"accuracy": 0.25}))
    restored = again.restore(3, state(1))
    assert type(restored["counts"]) is tuple
    for got, want in zip(_leaves(restored), _leaves(state()), strict=True):
        assert isinstance(got, np.ndarray)
        assert got.dtype == np.asarray(want).dtype
        np.testing.assert_array_equal(got, want)


def _leaves(tree):
    return [tree["params"]["a"], tree["params"]["b"], *tree["counts"]]


def test_there_may_be_no_best_yet():
    found = json.loads(json.dumps(books(1).to_json()))
    assert found["best"]["step"] == -1
    assert Bookkeeping.from_json(found) == books(1)


def kept(directory):
    return sorted(int(path.name) for path in directory.iterdir() if path.is_dir())


def test_the_best_and_the_latest_are_kept_when_the_metric_worsens(tmp_path, open_checkpoints):
    checkpoints = open_checkpoints(tmp_path)
    best = {1: 1, 2: 2, 3: 2, 4: 2, 5: 5, 6: 5}
    for step, at in best.items():
        checkpoints.save(state(), books(step, Evaluation(at, {"accuracy": 0.1 * at})))
        checkpoints.wait()
        assert kept(tmp_path) == sorted({at, step})
    # Another process, which learns of the best from what it saves.
    checkpoints.close()
    again = open_checkpoints(tmp_path)
    again.save(state(), books(7, Evaluation(5, {"accuracy": 0.5})))
    again.wait()
    assert kept(tmp_path) == [5, 7]


def test_more_may_be_kept(tmp_path, open_checkpoints):
    checkpoints = open_checkpoints(tmp_path, keep=3)
    for step in range(1, 7):
        checkpoints.save(state(), books(step, Evaluation(1, {"accuracy": 0.5})))
    checkpoints.wait()
    assert kept(tmp_path) == [1, 4, 5, 6]


def test_a_step_is_saved_once(tmp_path, open_checkpoints):
    checkpoints = open_checkpoints(tmp_path)
    checkpoints.save(state(), books(4))
    checkpoints.wait()
    with pytest.raises(RunError):
        checkpoints.save(state(1), books(4))
    checkpoints.wait()
    np.testing.assert_array_equal(_leaves(checkpoints.restore(4, state()))[0], _leaves(state())[0])


def test_a_relative_directory_will_do(tmp_path, open_checkpoints, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoints = open_checkpoints(Path("some/where"))
    checkpoints.save(state(), books(4))
    checkpoints.wait()
    monkeypatch.chdir("/")
    assert open_checkpoints(tmp_path / "some" / "where").latest_step() == 4


# --- damage ------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path, open_checkpoints):
    checkpoints = open_checkpoints(tmp_path / "c")
    checkpoints.save(state(), books(4))
    checkpoints.close()
    return tmp_path / "c" / "4"


def restore(saved, open_checkpoints, template=None):
    checkpoints = open_checkpoints(saved.parent)
    step = checkpoints.latest_step()
    checkpoints.read_bookkeeping(step)
    return checkpoints.restore(step, template or state())


def data_files(saved):
    files = [path for path in (saved / "arrays").rglob("d/*") if path.is_file()]
    assert files
    return files


@pytest.mark.parametrize("place", [0.02, 0.3, 0.7, 0.98])
def test_a_flipped_byte_in_the_arrays_is_found(place, saved, open_checkpoints):
    wanted = _leaves(state())
    for file in data_files(saved):
        content = bytearray(file.read_bytes())
        content[int(place * len(content))] ^= 1
        file.write_bytes(content)
    try:
        got = _leaves(restore(saved, open_checkpoints))
    except RunError as error:
        assert str(saved) in str(error)
    else:  # The byte was not one that matters.
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_flipped_byte_of_a_large_array_is_found(saved, open_checkpoints):
    file = max(data_files(saved), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(RunError, match="damaged") as error:
        restore(saved, open_checkpoints)
    assert str(saved) in str(error.value)


def test_a_missing_data_file_is_found(saved, open_checkpoints):
    for file in data_files(saved):
        file.unlink()
    with pytest.raises(RunError, match="damaged"):
        restore(saved, open_checkpoints)


@pytest.mark.parametrize("part", ["arrays", "bookkeeping"])
def test_a_missing_part_is_found(part, saved, open_checkpoints):
    shutil.rmtree(saved / part)
    with pytest.raises(RunError, match="not a complete checkpoint") as error:
        restore(saved, open_checkpoints)
    assert str(saved) in str(error.value)


def test_an_empty_step_directory_is_no_checkpoint(saved, open_checkpoints):
    (saved.parent / "9").mkdir()
    with pytest.raises(RunError, match="not a complete checkpoint"):
        restore(saved, open_checkpoints)
    (saved.parent / "9").rmdir()
    restore(saved, open_checkpoints)


@pytest.mark.parametrize("content", [b"", b'{"format": 1, "check', b"{}", b"[]", b'{"format": 1}'])
def test_truncated_bookkeeping_is_found(content, saved, open_checkpoints):
    (file,) = [
        path
        for path in (saved / "bookkeeping").iterdir()
        if path.is_file() and b"checksums" in path.read_bytes()
    ]
    file.write_bytes(content)
    with pytest.raises(RunError) as error:
        restore(saved, open_checkpoints)
    assert str(saved) in str(error.value)


def test_changed_bookkeeping_is_found(saved, open_checkpoints):
    """A digit of the topology or of the data position would do as much harm as one of a weight."""
    (file,) = [
        path
        for path in (saved / "bookkeeping").iterdir()
        if path.is_file() and b"checksums" in path.read_bytes()
    ]
    text = file.read_text()
    changed = text.replace('"next_index": 4', '"next_index": 6')
    assert changed != text
    file.write_text(changed)
    with pytest.raises(RunError):
        restore(saved, open_checkpoints)


def test_another_model_is_named(saved, open_checkpoints):
    other = state()
    other["params"]["c"] = other["params"].pop("b")
    with pytest.raises(RunError, match="params.b differs"):
        restore(saved, open_checkpoints, other)
    other = state()
    other["params"]["a"] = other["params"]["a"][:, :7]
    with pytest.raises(RunError, match=r"params.a is float32\[40, 30\], expected float32\[40, 7\]"):
        restore(saved, open_checkpoints, other)


def test_checksums_tell_bytes_apart():
    a = np.arange(12, dtype=np.float32)
    assert checksum(a) == checksum(a.copy()) == checksum(np.asfortranarray(a))
    b = a.copy()
    b[3] = np.nextafter(b[3], 4)
    assert checksum(a) != checksum(b)


# --- by the command ------------------------------------------------------------------------------


def test_a_damaged_checkpoint_ends_the_command_with_one_line(tmp_path):
    tiny.train(tiny.config(), tmp_path)
    (tmp_path / "summary.json").unlink()
    for file in data_files(tmp_path / "checkpoints" / "12"):
        content = bytearray(file.read_bytes())
        content[::50] = bytes(byte ^ 1 for byte in content[::50])
        file.write_bytes(content)
    before = tiny.snapshot(tmp_path)
    args = [f"--config={tiny.CONFIG_FILE}", f"--workdir={tmp_path}"]
    result = commands.run("barter_jax.main", *args)
    commands.assert_refused(result, str(tmp_path / "checkpoints" / "12"), "remove it", code=1)
    after = tiny.snapshot(tmp_path)
    # It tells the latest command.
    assert before.pop("config.json") != after.pop("config.json")
    assert after == before

    # The remedy that the line names works: the best one is there still.
    shutil.rmtree(tmp_path / "checkpoints" / "12")
    assert kept(tmp_path / "checkpoints")
    result = commands.run("barter_jax.main", *args)
    assert result.code == 0, result.stderr
    assert tiny.saved(tiny.config(), tmp_path)[1].step == 12
