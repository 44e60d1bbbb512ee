import pytest
from hypothesis import given
from hypothesis import strategies as st

from barter_jax.core.topology import Budget, Topology, pad, spread_evenly, violations

counts = st.lists(st.integers(0, 40), max_size=6).map(tuple)


@pytest.mark.parametrize(
    ("budget", "layers", "extra", "expected"),
    [
        (Budget(6, 9), 3, "last", Topology((2, 2, 2), (3, 3, 3))),
        (Budget(7, 11), 3, "last", Topology((2, 2, 3), (3, 4, 4))),
        (Budget(7, 11), 3, "first", Topology((3, 2, 2), (4, 4, 3))),
        (Budget(0, 1), 2, "last", Topology((0, 0), (0, 1))),
    ],
)
def test_budgets_are_spread_evenly(budget, layers, extra, expected):
    assert spread_evenly(budget, layers, extra) == expected


def test_spreading_refuses_nonsense():
    with pytest.raises(ValueError, match="'middle'"):
        spread_evenly(Budget(4, 4), 2, "middle")
    with pytest.raises(ValueError, match="at least one layer"):
        spread_evenly(Budget(4, 4), 0)


@given(heads=counts, channels=counts, size=st.integers(1, 9))
def test_padding_is_the_next_multiple(heads, channels, size):
    topology = Topology(heads, channels)
    padded = pad(topology, Budget(size, size + 1))
    for unit, multiple in (("heads", size), ("channels", size + 1)):
        for logical, physical in zip(topology.of(unit), padded.of(unit), strict=True):
            assert physical % multiple == 0
            assert logical <= physical < logical + multiple
    assert pad(padded, Budget(size, size + 1)) == padded
    assert pad(topology, Budget(1, 1)) == topology


@pytest.mark.parametrize(
    ("count", "before", "expected"),
    [
        (40, 40, 40),
        (41, 40, 48),  # it grows as ever
        (33, 40, 40),  # needed anyway
        (32, 40, 40),  # a fifth is without use
        (31, 40, 32),  # more than that
        (32, 48, 32),
        (39, 48, 48),
        (38, 48, 40),
        (20, 42, 24),  # 42 is of another bucket
        (36, 42, 40),
        (0, 8, 0),
    ],
)
def test_padding_is_kept_while_little_of_it_is_wasted(count, before, expected):
    bucket = Budget(1, 8)
    padded = pad(Topology((1,), (count,)), bucket, Topology((1,), (before,)), waste=0.2)
    assert padded == Topology((1,), (expected,))


walks = st.lists(counts.map(lambda c: (c + (0,) * 6)[:6]), min_size=1, max_size=8)


@given(walk=walks, size=st.integers(1, 9), waste=st.floats(0, 0.9))
def test_kept_padding_holds_everything_and_wastes_no_more_than_it_may(walk, size, waste):
    bucket, physical = Budget(1, size), None
    for channels in walk:
        topology = Topology((), channels)
        before, physical = physical, pad(topology, bucket, physical, waste)
        plain = pad(topology, bucket)
        for i, (n, p, least) in enumerate(
            zip(channels, physical.channels, plain.channels, strict=True)
        ):
            assert n <= p and p % size == 0
            assert p == least or (p == before.channels[i] and p - n <= waste * p)
        # A resumed run finds what it had.
        assert pad(topology, bucket, physical, waste) == physical
        assert pad(topology, bucket, physical, 0.0) == plain


def test_a_bucket_holds_something():
    with pytest.raises(ValueError, match="at least one unit, got 0"):
        pad(Topology((1,), (1,)), Budget(1, 0))


@given(heads=counts, channels=counts)
def test_json_and_digest(heads, channels):
    topology = Topology(heads, channels)
    again = Topology.from_json(topology.to_json())
    assert again == topology
    assert hash(again) == hash(topology)
    assert again.digest() == topology.digest()
    assert topology.budget == Budget(sum(heads), sum(channels))


def test_digests_differ():
    digests = {
        Topology(heads, channels).digest()
        for heads, channels in [((1, 2), (3,)), ((2, 1), (3,)), ((1,), (2, 3)), ((12,), (3,))]
    }
    assert len(digests) == 4


def test_topology_refuses_nonsense():
    with pytest.raises(ValueError, match="heads per layer must not be negative"):
        Topology((1, -1), (2, 2))
    with pytest.raises(ValueError, match="unknown unit type 'layers'"):
        Topology((1,), (1,)).of("layers")


@pytest.mark.parametrize(
    ("topology", "found"),
    [
        (Topology((2, 2), (3, 5)), []),
        (Topology((), (3, 5)), []),
        (Topology((2, 3), (3, 5)), ["5 heads in use, the budget is 4"]),
        (Topology((2, 2), (4, 5)), ["9 channels in use, the budget is 8"]),
        (Topology((1, 3), (2, 6)), ["layer 0 has 1 heads, fewer than min_units=2"]),
        (
            Topology((2, 2), (1, 7)),
            [
                "layer 0 has 1 channels, fewer than min_units=2",
                "layer 1 has 7 channels, more than its cap of 6",
            ],
        ),
    ],
)
def test_violations_are_found(topology, found):
    caps = Topology((3,) * len(topology.heads), (6, 6))
    assert violations(topology, Budget(4, 8), caps, min_units=2) == found
