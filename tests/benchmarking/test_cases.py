"""Which cases there are, and in which order they have their turns."""

import pytest

from barter_jax.benchmarking import cases
from barter_jax.benchmarking.cases import Case
from barter_jax.errors import UserError


def test_densities_multiply_the_methods_that_have_one():
    found = cases.expand(("barter", "dense", "static"), (0.1, 0.3), (8, 16))
    assert found == tuple(
        Case(method, density, batch)
        for batch in (8, 16)
        for method, density in (
            ("dense", None),
            ("barter", 0.1),
            ("static", 0.1),
            ("barter", 0.3),
            ("static", 0.3),
        )
    )
    assert [case.name for case in found[:2]] == ["dense, batch 8", "barter 0.1, batch 8"]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_every_case_has_its_turn_in_every_round(count):
    for round_ in range(3 * count):
        assert sorted(cases.order(count, round_)) == list(range(count))


def test_no_case_always_follows_the_same_one():
    for count in (3, 4, 5):
        followed = {index: set() for index in range(count)}
        for round_ in range(2 * count):
            order = cases.order(count, round_)
            for before, after in zip(order, order[1:], strict=False):
                followed[after].add(before)
        assert all(len(before) >= 2 for before in followed.values()), followed
        first = [cases.order(count, round_)[0] for round_ in range(2 * count)]
        assert set(first) == set(range(count))


def test_values_of_the_flags():
    assert cases.parse_methods(" dense,torch_static") == ("dense", "torch_static")
    assert cases.parse_densities("0.1, 1,.5") == (0.1, 1.0, 0.5)
    assert cases.parse_batch_sizes("8,16") == (8, 16)


@pytest.mark.parametrize(
    "parse, text, fragments",
    [
        (cases.parse_methods, "dense,riggle", ["--methods", "mean rigl?", "masked, set, snfs"]),
        (cases.parse_methods, "densse", ["did you mean dense?"]),
        (cases.parse_methods, "dense,static,dense", ["--methods", "dense twice"]),
        (cases.parse_methods, "", ["--methods is empty"]),
        (cases.parse_methods, "dense,", ["--methods", "''"]),
        (cases.parse_densities, "0.1,0", ["--densities", "above 0 and at most 1", "'0'"]),
        (cases.parse_densities, "1.1", ["--densities", "'1.1'"]),
        (cases.parse_densities, "nan", ["--densities", "'nan'"]),
        (cases.parse_densities, "some", ["--densities", "'some'"]),
        (cases.parse_densities, "0.1,0.10", ["--densities", "0.1 twice"]),
        (cases.parse_batch_sizes, "0", ["--batch_sizes", "at least 1", "'0'"]),
        (cases.parse_batch_sizes, "8,-8", ["--batch_sizes", "'-8'"]),
        (cases.parse_batch_sizes, "8.5", ["--batch_sizes", "'8.5'"]),
        (cases.parse_batch_sizes, "8,16,8", ["--batch_sizes", "8 twice"]),
    ],
)
def test_mistakes(parse, text, fragments):
    with pytest.raises(UserError) as error:
        parse(text)
    for fragment in fragments:
        assert fragment in str(error.value)
