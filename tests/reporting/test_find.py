"""Work directories given, and searched for."""

import os

import pytest

from barter_jax.errors import UserError
from barter_jax.reporting.find import find, is_run
from tests.reporting import made


def test_given_and_below(tmp_path):
    a = made.write(tmp_path / "sweep" / "deep" / "a", made.small(), 0.5)
    b = made.write(tmp_path / "sweep" / "b", made.small(seed=1))
    made.write(tmp_path / "sweep" / ".hidden" / "c", made.small(seed=2))
    # Inside a run nothing is looked for.
    made.write(b / "checkpoints" / "d", made.small(seed=3))
    other = made.write(tmp_path / "other", made.small(seed=4))
    found, again = find([str(other), str(tmp_path / "sweep")])
    assert found == [other, b, a] and again == []


def test_one_directory_twice(tmp_path):
    a = made.write(tmp_path / "sweep" / "a", made.small())
    (tmp_path / "link").symlink_to(a, target_is_directory=True)
    found, again = find([str(tmp_path / "sweep"), str(a), str(tmp_path / "link")])
    assert found == [a]
    assert again == [(a, a), (tmp_path / "link", a)]


def test_links_to_runs_are_followed_and_loops_are_not(tmp_path):
    a = made.write(tmp_path / "elsewhere" / "a", made.small())
    root = tmp_path / "sweep"
    root.mkdir()
    (root / "a").symlink_to(a, target_is_directory=True)
    (root / "loop").symlink_to(root, target_is_directory=True)
    assert find([str(root)]) == ([root / "a"], [])


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, False),
        ({"config.json": "{}"}, False),  # of some other program
        ({"config.json": '{"config": {}, "versions": {}}'}, True),
        ({"config.json": '{"config": {}, "ver'}, False),
        ({"config.json": '{"config": {}, "ver', "summary.json": "{}"}, True),
        ({"metrics.jsonl": ""}, True),
        ({"topology.jsonl": ""}, True),
        ({"summary.json": "{}"}, False),
    ],
)
def test_what_makes_a_run(tmp_path, files, expected):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert is_run(tmp_path) is expected


@pytest.mark.parametrize(
    ("name", "words"),
    [("nowhere", "does not exist"), ("file", "is a file"), ("empty", "holds no run")],
)
def test_mistakes(tmp_path, name, words):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty" / "er").mkdir(parents=True)
    made.write(tmp_path / "fine", made.small())
    with pytest.raises(UserError, match=words) as error:
        find([str(tmp_path / "fine"), str(tmp_path / name)])
    assert str(tmp_path / name) in str(error.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_that_may_not_be_read(tmp_path):
    a = made.write(tmp_path / "a", made.small())
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    try:
        assert find([str(tmp_path)]) == ([a], [])
    finally:
        closed.chmod(0o700)
