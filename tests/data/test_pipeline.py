"""Training and evaluation batches."""

import json
import multiprocessing
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import namedtuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barter_jax.data import pipeline
from barter_jax.data.container import Zip
from barter_jax.data.dataset import ImageSource, Subset
from barter_jax.data.pipeline import eval_batches, steps_per_epoch, train_batches
from barter_jax.errors import RunError, UserError

from .helpers import animals, numbered, write_zip


def batches(source, batch_size, seed=0, num_threads=0, prefetch=2, **options):
    return train_batches(
        source,
        batch_size=batch_size,
        seed=seed,
        num_threads=num_threads,
        prefetch=prefetch,
        **options,
    )


def take(iterator, count):
    return [next(iterator) for _ in range(count)]


def labels(taken):
    return np.concatenate([batch["label"] for batch in taken])


def assert_equal(first, second):
    for a, b in zip(first, second, strict=True):
        assert a.keys() == b.keys()
        for key in a:
            np.testing.assert_array_equal(a[key], b[key])


def test_shapes_dtypes_and_that_images_follow_labels():
    source = numbered(300)
    for batch in take(batches(source, 7), 90):
        assert batch["image"].shape == (7, 2, 2, 3) and batch["image"].dtype == np.uint8
        assert batch["label"].shape == (7,) and batch["label"].dtype == np.int32
        np.testing.assert_array_equal(batch["image"], source.images[batch["label"]])


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 2**64))
def test_every_epoch_holds_every_image_once(count, batch_size, seed):
    batch_size = min(batch_size, count)
    epochs = 3
    stream = labels(
        take(batches(numbered(count), batch_size, seed), -(-epochs * count // batch_size))
    )
    for epoch in range(epochs):
        assert sorted(stream[epoch * count : (epoch + 1) * count]) == list(range(count))


def test_every_epoch_and_every_seed_has_its_own_order():
    # Five epochs of five seeds in a row: grain by itself would give epoch 1 of seed 0 to seed 1.
    orders = [
        tuple(order)
        for seed in range(5)
        for order in labels(take(batches(numbered(50), 10, seed), 25)).reshape(5, 50)
    ]
    assert len(set(orders)) == 25
    assert tuple(range(50)) not in orders


def test_the_same_seed_gives_the_same_batches():
    source = numbered(37)
    assert_equal(take(batches(source, 5, 3), 20), take(batches(source, 5, 3), 20))


@settings(deadline=None, max_examples=15)
@given(
    st.integers(0, 25),
    st.sampled_from([(0, 0), (0, 3), (1, 1), (4, 2), (3, 8)]),
    st.sampled_from([(0, 0), (2, 2), (5, 9)]),
)
def test_resuming_with_other_threads_gives_the_same_bits(position, before, after):
    source = numbered(23)
    threads, prefetch = before
    whole = batches(source, 4, 1, num_threads=threads, prefetch=prefetch)
    take(whole, position)
    state = json.loads(json.dumps(whole.get_state()))
    assert state == {"next_index": position}
    threads, prefetch = after
    resumed = batches(source, 4, 1, num_threads=threads, prefetch=prefetch)
    next(resumed)  # Also an iterator that has begun goes where it is set.
    resumed.set_state(state)
    assert resumed.get_state() == state
    assert_equal(take(whole, 9), take(resumed, 9))
    assert whole.get_state() == resumed.get_state() == {"next_index": position + 9}
    for iterator in (whole, resumed):
        iterator.close()


def test_two_processes_cover_an_epoch_exactly_once():
    source = numbered(40)
    shards = [
        take(batches(source, 8, process_index=index, process_count=2), 5) for index in range(2)
    ]
    assert all(len(batch["label"]) == 4 for shard in shards for batch in shard)
    assert not set(labels(shards[0])) & set(labels(shards[1]))
    assert sorted([*labels(shards[0]), *labels(shards[1])]) == list(range(40))


@pytest.mark.parametrize("count", [2, 3, 6])
def test_any_number_of_processes_sees_the_same_global_batches(count):
    source = numbered(25)  # Batches of twelve span epochs.
    shards = [
        take(batches(source, 12, process_index=index, process_count=count), 7)
        for index in range(count)
    ]
    together = [
        {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        for parts in zip(*shards, strict=True)
    ]
    assert_equal(together, take(batches(source, 12), 7))


@pytest.mark.parametrize("batch_size", [0, -1])
def test_batch_size_not_positive(batch_size):
    with pytest.raises(UserError, match=r"train\.batch_size=.* is not positive"):
        batches(numbered(5), batch_size)
    with pytest.raises(UserError, match="is not positive"):
        eval_batches(numbered(5), batch_size)


def test_batch_larger_than_the_data():
    batches(numbered(5), 5)
    message = r"train\.batch_size=6 is larger than the 5 training images: lower it"
    with pytest.raises(UserError, match=message):
        batches(numbered(5), 6)


def test_batch_that_cannot_be_shared():
    with pytest.raises(UserError, match=r"train\.batch_size=4 is not divisible by the 3 processes"):
        batches(numbered(5), 4, process_count=3)
    with pytest.raises(ValueError, match="process_index=2"):
        batches(numbered(5), 4, process_index=2, process_count=2)


class Damaged(ImageSource):
    """Image 3 of six cannot be read."""

    def __init__(self):
        self.labels = np.arange(6, dtype=np.int32)
        self.error = UserError("x.png: broken")

    def __getitem__(self, index):
        if index == 3:
            raise self.error
        return {"image": np.zeros((2, 2, 3), np.uint8), "label": self.labels[index]}


@pytest.mark.parametrize("threads", [0, 2])
def test_errors_come_out_unchanged_and_the_failed_batch_can_be_tried_again(threads):
    order = list(labels(take(batches(numbered(6), 1), 6)))
    position = order.index(3)
    source = Damaged()
    iterator = batches(source, 1, num_threads=threads)
    assert [next(iterator)["label"][0] for _ in range(position)] == order[:position]
    for _ in range(2):
        with pytest.raises(UserError) as caught:
            next(iterator)
        assert caught.value is source.error and str(caught.value) == "x.png: broken"
        assert iterator.get_state() == {"next_index": position}
        iterator.set_state(iterator.get_state())


# --- processes that read ---------------------------------------------------------------------


class Lazy(ImageSource):
    """The images of `numbered`, made when they are asked for; a few of them can be damaged."""

    def __init__(self, count, damaged=()):
        self.labels = np.arange(count, dtype=np.int32)
        self._damaged = damaged

    def __getitem__(self, index):
        if index in self._damaged:
            raise UserError(f"{index}.png: broken")
        return numbered(len(self))[index]


class Spy(ImageSource):
    """Images that tell who reads them, and on what JAX would compute there."""

    labels = np.arange(8, dtype=np.int32)

    def __getitem__(self, index):
        image = np.zeros((1, 2, 3), np.uint8)
        image[0, 0, 0] = jax.config.jax_platforms == "cpu"
        image.reshape(-1)[2:] = np.frombuffer(os.getpid().to_bytes(4), np.uint8)
        return {"image": image, "label": self.labels[index]}


def reader(batch):
    """The process that read a batch of `Spy`."""
    return int.from_bytes(batch["image"][0].reshape(-1)[2:].tobytes())


def ended(pid):
    """Whether a process has ended; one that nobody has asked for its exit code yet has, too."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    status = pathlib.Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z"


def blocks():
    """The blocks of shared memory there are; of the others on this machine, too."""
    return set(pathlib.Path("/dev/shm").glob("psm_*"))


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def test_any_number_of_reading_processes_gives_the_same_batches():
    source = Lazy(23)  # Six batches of four are more than an epoch.
    expected = take(batches(source, 4, 1), 12)
    state, taken = {"next_index": 0}, []
    for workers, threads in ((1, 2), (2, 0), (0, 2)):
        iterator = batches(source, 4, 1, workers=workers, num_threads=threads)
        iterator.set_state(state)
        taken += take(iterator, 4)
        state = json.loads(json.dumps(iterator.get_state()))
        assert state == {"next_index": len(taken)}
        iterator.close()
        assert not multiprocessing.active_children()
    # Also what was handed out by processes that are no more.
    assert_equal(taken, expected)
    assert all(type(value) is np.ndarray for value in taken[0].values())


def test_what_is_closed_can_go_on():
    source = Lazy(23)
    iterator = batches(source, 4, num_threads=2)
    first = take(iterator, 3)
    iterator.close()
    assert_equal(first + take(iterator, 3), take(batches(source, 4), 6))
    iterator.close()


def test_a_damaged_image_in_a_reading_process():
    order = list(labels(take(batches(numbered(9), 1), 9)))
    before = blocks()
    iterator = batches(Lazy(9, damaged=[order[3]]), 1, workers=2, num_threads=1)
    try:
        assert [next(iterator)["label"][0] for _ in range(3)] == order[:3]
        with pytest.raises(UserError) as caught:
            next(iterator)
        assert type(caught.value) is UserError and str(caught.value) == f"{order[3]}.png: broken"
        assert iterator.get_state() == {"next_index": 3}
        assert not multiprocessing.active_children()
        # Traceback frames would keep it, and Python tell at exit of what was not freed.
        wait_for(lambda: not blocks() - before)
    finally:
        iterator.close()


def test_a_signal_is_left_to_the_parent_but_a_death_is_told():
    iterator = batches(Spy(), 2, workers=2, num_threads=1)

    def interrupt():
        """As Ctrl-C does, to all processes of the terminal, while they have hardly begun."""
        wait_for(lambda: len(multiprocessing.active_children()) == 2)
        for process in multiprocessing.active_children():
            os.kill(process.pid, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        first, second = take(iterator, 2)
        thread.join()
        assert first["image"][0, 0, 0, 0] == 1
        pids = [reader(first), reader(second)]
        assert len({os.getpid(), *pids}) == 3
        for number in (signal.SIGINT, signal.SIGTERM):
            for pid in pids:
                os.kill(pid, number)
        # Many more than are ready by now.
        assert [reader(batch) for batch in take(iterator, 40)] == 20 * pids
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(RunError, match=r"died .*exit code -9.*config\.data\.workers=0"):
            take(iterator, 40)
        assert all(map(ended, pids))
    finally:
        iterator.close()


def test_reading_processes_end_with_their_parent():
    code = (
        "import time\n"
        "from tests.data.test_pipeline import Spy, batches, reader, take\n"
        "iterator = batches(Spy(), 2, workers=2, num_threads=2)\n"
        "print(*map(reader, take(iterator, 2)), flush=True)\n"
        "time.sleep(60)\n"
    )
    root = pathlib.Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        try:
            pids = list(map(int, parent.stdout.readline().split()))
            assert len(set(pids)) == 2 and not any(map(ended, pids))
        finally:
            parent.kill()
    wait_for(lambda: all(map(ended, pids)))


def test_images_in_memory_are_read_by_threads_and_that_is_told(monkeypatch):
    told = []
    monkeypatch.setattr(pipeline.log, "info", lambda text, *args: told.append(text % args))
    source = Subset(numbered(23), np.arange(2, 20))
    iterator = batches(source, 4, num_threads=1, workers=2)
    assert_equal(take(iterator, 6), take(batches(source, 4), 6))
    assert not multiprocessing.active_children()
    assert len(told) == 1 and "config.data.workers=2 starts no processes" in told[0]
    iterator.close()


def test_too_little_shared_memory(monkeypatch):
    # Two workers, three batches each, 4 images of 12 bytes: 288 bytes.
    usage = namedtuple("usage", "free")
    if not os.path.isdir("/dev/shm"):
        pytest.skip("this system has no /dev/shm")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(287))
    with pytest.raises(UserError, match=r"workers=2 needs 0 MiB of shared memory.*--shm-size"):
        next(batches(Lazy(9), 4, workers=2))


def test_an_archive_can_be_sent_to_a_process(tmp_path):
    archive = Zip(write_zip(tmp_path / "a.zip", animals()))
    archive.read("train/cat/0.png")
    copy = pickle.loads(pickle.dumps(archive))
    assert copy.entries() == archive.entries()
    assert copy.read("test/dog/a.png") == animals()["test/dog/a.png"]


def test_a_position_before_the_first():
    with pytest.raises(ValueError, match="no batch -1"):
        batches(numbered(5), 1).set_state({"next_index": -1})


@given(st.integers(0, 40), st.integers(1, 50))
def test_evaluation_sees_every_image_once_in_order(count, batch_size):
    source = numbered(count)
    seen = []
    for batch in eval_batches(source, batch_size):
        assert batch["image"].shape == (batch_size, 2, 2, 3) and batch["image"].dtype == np.uint8
        assert batch["label"].shape == (batch_size,) and batch["label"].dtype == np.int32
        assert batch["mask"].shape == (batch_size,) and batch["mask"].dtype == np.float32
        real = batch["mask"] == 1
        assert real.any() and (batch["mask"][~real] == 0).all()
        assert not batch["image"][~real].any() and not batch["label"][~real].any()
        np.testing.assert_array_equal(batch["image"][real], source.images[batch["label"][real]])
        seen += list(batch["label"][real])
    assert seen == list(range(count))


def test_evaluation_by_hand():
    masks = [list(batch["mask"]) for batch in eval_batches(numbered(5), 3)]
    assert masks == [[1, 1, 1], [1, 1, 0]]


@pytest.mark.parametrize(
    ("images", "batch", "passes", "steps"),
    [(50000, 512, 1, 97), (50000, 512, 300, 29296), (10, 3, 0.5, 1), (10, 4, 2, 5),
     (100, 1, 0.29, 29), (50000, 100, np.float64(0.1), 50), (5, 10, 1, 0)],
)  # fmt: skip
def test_steps(images, batch, passes, steps):
    assert steps_per_epoch(images, batch, passes) == steps


class Decoded(ImageSource):
    """A source that is not in memory."""

    def __init__(self, source):
        self._source = source
        self.labels = source.labels

    def __getitem__(self, index):
        return self._source[index]


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize(("count", "batch_size"), [(10, 4), (8, 4), (3, 4), (9, 12)])
def test_the_processes_blocks_make_up_the_evaluation_batches(count, batch_size, threads):
    source = Decoded(numbered(count))
    whole = list(eval_batches(source, batch_size))
    parts = [
        list(
            eval_batches(
                source, batch_size, process_index=index, process_count=2, num_threads=threads
            )
        )
        for index in (0, 1)
    ]
    assert len(whole) == len(parts[0]) == len(parts[1]) == -(-count // batch_size)
    for batch, *blocks in zip(whole, *parts, strict=True):
        for name, value in batch.items():
            joined = np.concatenate([block[name] for block in blocks])
            np.testing.assert_array_equal(joined, value, err_msg=name)
            assert joined.dtype == value.dtype
    masks = np.concatenate([batch["mask"] for batch in whole])
    np.testing.assert_array_equal(masks, np.arange(len(masks)) < count)


def test_what_an_evaluation_image_fails_with_comes_out():
    class Failing(Decoded):
        def __getitem__(self, index):
            if index == 5:
                raise UserError("image 5 is damaged")
            return super().__getitem__(index)

    for threads in (0, 2):
        with pytest.raises(UserError) as error:
            list(eval_batches(Failing(numbered(8)), 2, num_threads=threads))
        assert str(error.value) == "image 5 is damaged"
