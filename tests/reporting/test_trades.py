"""What the updates did to the layers, by hand."""

from barter_jax.reporting import grids, trades
from barter_jax.reporting.read import read
from barter_jax.reporting.trades import Grid
from tests.reporting import made


def grids_of(tmp_path, updates):
    run = read(made.write(tmp_path / "run", made.small(), 0.5, updates=updates))
    return {grid.title: grid for grid in trades.of_run(run)}


def test_counts_changes_and_flow(tmp_path):
    found = grids_of(tmp_path, made.topology())
    heads = found["Heads of each layer"]
    # The start is worked back from the first update: layer 0 gave one to layer 1.
    assert heads.columns == ("start", "4") and heads.values == ((2, 1), (1, 2))
    channels = found["Channels of each layer"]
    assert channels.columns == ("start", "4", "8")
    assert channels.values == ((4, 6, 5), (4, 2, 3))
    assert found["Who received and who gave channels"].values == ((2, -1), (-2, 1))
    flow = found["Channels from layer to layer, over the run"]
    assert flow.rows == flow.columns == ("layer 0", "layer 1")
    assert flow.values == ((None, 1), (2, None))


def test_priorities_are_shares(tmp_path):
    found = grids_of(tmp_path, made.topology(scores=True))
    (title,) = [t for t in found if "priority" in t and "channels" in t]
    assert found[title].values == ((25.0, 25.0), (75.0, 75.0))
    assert not [t for t in grids_of(tmp_path / "without", made.topology()) if "priority" in t]


def test_runs_that_moved_nothing(tmp_path):
    assert grids_of(tmp_path / "a", []) == {}
    row = {**made.topology()[0], "receiver": None, "donors": [], "moved": 0}
    assert grids_of(tmp_path / "b", [row]) == {}


def test_rows_of_other_layers_are_left_out(tmp_path):
    rows = made.topology()
    rows[1] = {**rows[1], "receiver": 7}
    rows.insert(0, {**rows[2], "step": 1, "counts": {"heads": [3], "channels": [8]}})
    found = grids_of(tmp_path, rows)
    assert found["Channels of each layer"].columns == ("start", "8")


def test_colours():
    grid = Grid("t", "c", ("a", "b", "d"), ("x", "y"), ((0, 4, 2), (None, 1, 3)))
    text = grids.render(grid)
    assert '<td style="background:#ffffff;color:#000000">0</td>' in text
    assert f'<td style="background:{grids.HIGH};color:#ffffff">4</td>' in text
    assert "<td></td>" in text
    signed = grids.render(Grid("t", "c", ("a",), ("x", "y", "z"), ((2,), (-2,), (0,)), signed=True))
    assert f'background:{grids.HIGH};color:#ffffff">+2<' in signed
    assert f'background:{grids.LOW};color:#ffffff">-2<' in signed
    assert 'background:#ffffff;color:#000000">0<' in signed


def test_many_updates_are_thinned_out():
    n = 100
    grid = Grid("t", "c", tuple(map(str, range(n))), ("x",), (tuple([1] * n),), sums=True)
    text = grids.render(grid)
    assert text.count("<td") == grids.MOST_COLUMNS + 1
    assert "24 of 100 columns" in text
    assert '<th scope="col">0</th>' in text and '<th scope="col">99</th>' in text
    assert "<td>100</td>" in text  # the sum is of all of them


def test_equal_values():
    text = grids.render(Grid("t", "c", ("a", "b"), ("x",), ((3, 3),)))
    assert text.count("background:#ffffff") == 2
