"""The order of the training images: every epoch a permutation, any batch known by its number."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from barter_jax.data import order
from barter_jax.data.order import Order


@st.composite
def orders(draw):
    processes = draw(st.integers(1, 4))
    batch = processes * draw(st.integers(1, 6))
    images = draw(st.integers(1, 40))
    return Order(images, batch, draw(st.integers(0, 2**32 - 1)), 0, processes)


@given(orders())
def test_each_epoch_has_every_image_once_and_none_is_left_out_between_batches(whole):
    whole = Order(whole.num_images, whole.batch_size, whole.seed)
    batches = -(-3 * whole.num_images // whole.batch_size)
    stream = np.concatenate([whole(batch) for batch in range(batches)])
    for epoch in np.split(stream[: 3 * whole.num_images], 3):
        np.testing.assert_array_equal(np.sort(epoch), np.arange(whole.num_images))


@given(orders(), st.integers(0, 10**9))
def test_the_processes_share_each_batch_between_them(one, batch):
    parts = [
        Order(one.num_images, one.batch_size, one.seed, process, one.process_count)(batch)
        for process in range(one.process_count)
    ]
    assert {len(part) for part in parts} == {one.batch_size // one.process_count}
    whole = Order(one.num_images, one.batch_size, one.seed)
    np.testing.assert_array_equal(np.concatenate(parts), whole(batch))


def test_any_batch_is_known_without_those_before_it():
    one = Order(7, 3, 5)
    expected = [one(batch) for batch in range(40)]
    order.permutation.cache_clear()
    for batch in np.random.default_rng(0).permutation(40):
        np.testing.assert_array_equal(one(int(batch)), expected[batch])


def test_seeds_and_epochs_have_nothing_in_common():
    """Epoch 1 of seed 0, say, is not epoch 0 of seed 1."""
    found = {order.permutation(s, e, 30).tobytes() for s in range(20) for e in range(20)}
    assert len(found) == 400
    # Any image is as likely to come at any place: 400 draws each, mean 1/30.
    first = np.bincount([order.permutation(s, e, 30)[0] for s in range(60) for e in range(20)])
    assert np.abs(first / 1200 - 1 / 30).max() < 5 * np.sqrt(1 / 30 / 1200)


def test_what_is_remembered_cannot_be_spoilt():
    kept = order.permutation(0, 0, 5)
    assert not kept.flags.writeable
    batch = Order(5, 5, 0)(0)
    batch[:] = 0
    np.testing.assert_array_equal(np.sort(order.permutation(0, 0, 5)), np.arange(5))
