"""Which runs a grid has, and what of it is refused."""

import pytest

from barter_jax import config as config_lib
from barter_jax.errors import UserError
from barter_jax.sweep import config_arguments
from barter_jax.sweeping import grid
from barter_jax.sweeping.grid import Cell


def test_the_grid_goes_seed_by_seed_and_has_each_dense_run_once():
    cells = grid.cells(["dense", "barter"], [0.1, 0.3], [0, 7])
    assert [cell.name for cell in cells] == [
        "dense-seed0",
        "barter-0.1-seed0",
        "barter-0.3-seed0",
        "dense-seed7",
        "barter-0.1-seed7",
        "barter-0.3-seed7",
    ]


def test_what_is_named_twice_is_run_once():
    assert grid.cells(["static", "static"], [0.1, 0.10], [1, 1]) == [Cell("static", 0.1, 1)]


@pytest.mark.parametrize("tasks", [1, 2, 4, 7, 20])
def test_the_tasks_divide_the_grid(tasks):
    cells = grid.cells(["static", "barter"], [0.1, 0.2], [0, 1, 2])
    parts = [grid.share(cells, task, tasks) for task in range(tasks)]
    assert sorted(sum(parts, []), key=cells.index) == cells
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(("task", "tasks"), [(2, 2), (-1, 2), (0, 0)])
def test_a_task_that_is_none_is_told(task, tasks):
    with pytest.raises(UserError, match=f"--task={task} "):
        grid.share([], task, tasks)


def test_a_run_has_its_own_config_and_leaves_the_common_one_alone():
    config = config_lib.default_config()
    own = grid.configured(config, Cell("static", 0.7, 5))
    assert (own.method, own.density, own.seed) == ("static", 0.7, 5)
    assert (config.method, config.density, config.seed) == ("barter", 0.3, 0)


@pytest.mark.parametrize(
    ("cell", "field"),
    [
        (Cell("static", 0.0, 0), "config.density"),
        (Cell("statik", 0.1, 0), "config.method"),
        (Cell("static", 0.1, -1), "config.seed"),
    ],
)
def test_a_run_that_cannot_be_is_told(cell, field):
    with pytest.raises(UserError, match=field):
        grid.configured(config_lib.default_config(), cell)


def test_numbers_are_read():
    assert grid.numbers("densities", "0.1, 0.3,", float) == [0.1, 0.3]
    assert grid.numbers("seeds", "0,12", int) == [0, 12]


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("", int, "--x is empty"),
        ("0.5", int, "--x=0.5: whole numbers"),
        ("a,1", float, "--x=a,1: numbers"),
    ],
)
def test_what_is_no_number_is_told(text, kind, message):
    with pytest.raises(UserError, match=message):
        grid.numbers("x", text, kind)


def test_the_flags_of_the_config_are_passed_on_and_no_others():
    argv = [
        "--methods=a",
        "--config",
        "f.py",
        "--config.seed=1",
        "--noconfig.augment.flip",
        "-json",
    ]
    assert config_arguments(argv) == [
        "--config",
        "f.py",
        "--config.seed=1",
        "--noconfig.augment.flip",
    ]
