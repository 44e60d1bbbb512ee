"""Several processes decide alike, write once, and come to what one process comes to."""

import json
import signal

import pytest

from barter_jax.errors import UserError
from barter_jax.training import hosts as hosts_lib
from tests.data import helpers
from tests.training import commands, talking, tiny
from tests.training.pair import Pair

# Two shapes: an update leads from the one to the other, and the next one back.
BUCKET = {"bucket__heads": 4, "bucket__channels": 4}


def run(directory, *flags, own=((), ())) -> Pair:
    return Pair(
        "barter_jax.main",
        f"--config={tiny.CONFIG_FILE}",
        f"--workdir={directory}",
        *(f"--config.{name.replace('__', '.')}={value}" for name, value in BUCKET.items()),
        *flags,
        own=own,
    )


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """The work directory of a run of two processes, and what they said."""
    directory = tmp_path_factory.mktemp("pair") / "run"
    pair = run(directory, "--json")
    codes = pair.codes()
    assert codes == [0, 0], pair.said(0) + pair.said(1)
    return directory, pair


def test_what_is_said_reaches_the_other():
    pair = Pair(talking.__name__)
    assert pair.codes() == [0, 0], pair.said(0) + pair.said(1)
    found = [json.loads(pair.said(index).splitlines()[-1]) for index in (0, 1)]
    assert [f.pop("first") for f in found] == [True, False]
    assert found[0] == found[1]
    assert found[0] == {
        "value": {"from": 0, "text": "ü" * 1000},
        "error": "UserError: the first one's mistake: ä",
        "tree": {"a": [1.0] * 3, "b": [True]},
        "largest": 10,
        "same": None,
        "other": found[0]["other"],
    }
    assert found[0]["other"].startswith("RunError: process 1 has come to another topology")


def test_alone_nobody_is_asked():
    hosts = hosts_lib.Hosts()
    assert hosts.first and hosts.count == 1
    assert hosts.from_first(lambda: {1: "no JSON"}) == {1: "no JSON"}
    tree = {"a": 1}
    assert hosts.tree_from_first(tree) is tree
    assert hosts.largest(15) == 15
    hosts.agree("topology", object())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("localhost:1", 2, None), "--process_id is missing"),
        ((None, 2, 0), "--coordinator is missing"),
        (("localhost:1", 2, 2), "--process_id=2 is not in 0..1"),
    ],
)
def test_flags_that_do_not_tell_who_is_who(given, message):
    with pytest.raises(UserError, match=message):
        hosts_lib.start(*given)


def test_an_environment_that_does_not_tell_who_is_who(tmp_path):
    flags = [f"--config={tiny.CONFIG_FILE}", f"--workdir={tmp_path / 'run'}", "--distributed"]
    result = commands.run("barter_jax.main", *flags)
    assert result.code == 2
    assert "--distributed: the environment does not tell" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_two_processes_come_to_what_one_does(together, tmp_path):
    directory, pair = together
    config = tiny.config(**BUCKET)
    tiny.train(config, tmp_path / "one")
    one, two = tiny.outcome(config, tmp_path / "one"), tiny.outcome(config, directory)
    padded = [row["padded"]["channels"] for row in two["topology"]]
    assert padded[0] not in (padded[2], [12, 12]), "nothing was resized, so nothing was tested"
    assert [row["moved"] for row in two["topology"]] == [1, 3, 1, 2]
    tiny.assert_close(two, one)


def test_the_first_process_alone_speaks_and_writes(together):
    directory, pair = together
    assert "in 2 processes" in pair.said(0)
    assert json.loads(pair.said(0)[pair.said(0).index("\n{") :])["steps"] == tiny.STEPS
    assert pair.said(1) == ""
    assert len(tiny.rows(directory, "metrics.jsonl")) == 7


def test_stopped_by_a_signal_to_one_of_them_both_save_and_go_on(together, tmp_path):
    pair = run(tmp_path / "run")
    pair.wait_for(0, "compiling the training step")
    pair.signal(1, signal.SIGTERM)
    assert pair.codes() == [143, 143], pair.said(0) + pair.said(1)
    assert "saved at step" in pair.said(0) and not (tmp_path / "run" / "summary.json").exists()
    assert run(tmp_path / "run").codes() == [0, 0]
    config = tiny.config(**BUCKET)
    tiny.assert_same(tiny.outcome(config, tmp_path / "run"), tiny.outcome(config, together[0]))


def test_a_mistake_is_one_line_of_both(together):
    pair = run(together[0], "--config.seed=5")
    assert pair.codes() == [2, 2]
    for index in (0, 1):
        assert "holds a run of another config: seed is 0 there and 5 here" in pair.said(index)
        assert len(pair.said(index).splitlines()) == 1


def test_processes_with_different_configs_do_not_start(tmp_path):
    own = (("--config.seed=5",), ("--config.seed=6",))
    pair = run(tmp_path / "run", own=own)
    assert pair.codes() == [1, 1]
    assert "process 1 has come to another config than process 0" in pair.said(0)
    assert not (tmp_path / "run").exists()


def test_a_process_that_is_killed_does_not_leave_the_other_waiting(tmp_path):
    pair = run(tmp_path / "run", "--config.train.steps=100000", "--config.topology.updates=0")
    pair.wait_for(0, "step 20/")
    pair.signal(1, signal.SIGKILL)
    assert pair.codes(60) == [1, -signal.SIGKILL], pair.said(0)
    last = pair.said(0).splitlines()[-1]
    assert last.startswith("error: another process of this run is gone"), pair.said(0)
    assert "Traceback" not in pair.said(0)


def test_an_error_of_one_process_alone_ends_it_at_once(tmp_path):
    files = {}
    for i in range(20):
        split = "test" if i < 4 else "train"
        files[f"{split}/{'ab'[i % 2]}/{i:02}.png"] = helpers.encode(helpers.noise(i, 8))
    helpers.write(tmp_path / "photos", files)
    # Every image of the second class: each process comes upon one, at once or a little later.
    for file in sorted((tmp_path / "photos" / "train" / "b").glob("*.png"))[1:]:
        file.write_bytes(b"no image")
    pair = run(
        tmp_path / "run",
        "--config.data.name=folder",
        f"--config.data.dir={tmp_path / 'photos'}",
        "--config.data.validation_fraction=0.2",
        "--config.data.cache_mb=0",
        "--config.train.batch_size=4",
        "--config.train.eval_batch_size=4",
    )
    codes = pair.codes(60)
    assert 2 in codes and set(codes) <= {1, 2}, (codes, pair.said(0), pair.said(1))
    told = [pair.said(i) for i in (0, 1) if codes[i] == 2][0]
    assert "cannot be decoded" in told and "Traceback" not in pair.said(0) + pair.said(1)
