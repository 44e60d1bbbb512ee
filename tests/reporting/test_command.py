"""The command from its flags to its files, and its exit codes."""

import json

import pytest

from tests.reporting import made
from tests.training import commands, tiny
from tests.training.commands import assert_refused

pytest.importorskip("matplotlib")
MODULE = "barter_jax.report"
FILES = {"report.md", "report.csv", "report.html"}


@pytest.fixture
def runs(tmp_path):
    made.write(tmp_path / "runs" / "a", made.small(), 0.5, updates=made.topology())
    made.write(tmp_path / "runs" / "b", made.small(method="static"), 0.25)
    return tmp_path / "runs"


def test_files_and_document(runs, tmp_path):
    output = tmp_path / "out" / "deep"
    done = commands.run(MODULE, runs, f"--output={output}", "--json")
    assert done.code == 0, done.stderr
    doc = json.loads(done.stdout)
    assert [run["directory"] for run in doc["runs"]] == [str(runs / "b"), str(runs / "a")]
    assert {path.name for path in output.iterdir()} == FILES
    assert str(output / "report.html") in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_json_it_prints_nothing(runs, tmp_path):
    done = commands.run(MODULE, "a", "b", cwd=runs)
    assert (done.code, done.stdout) == (0, ""), done.stderr
    assert {path.name for path in (runs / "report").iterdir()} == FILES
    # The report is no run, so that the next one does not stumble over it.
    done = commands.run(MODULE, ".", "--json", cwd=runs)
    assert done.code == 0 and len(json.loads(done.stdout)["runs"]) == 2


def test_an_older_report_is_replaced_and_nothing_else(runs, tmp_path):
    output = tmp_path / "out"
    assert commands.run(MODULE, runs, f"--output={output}").code == 0
    first = {name: (output / name).read_text() for name in FILES}
    (output / "notes.md").write_text("mine")
    assert commands.run(MODULE, runs / "a", f"--output={output}").code == 0
    assert all((output / name).read_text() != text for name, text in first.items())
    assert (output / "notes.md").read_text() == "mine"
    assert {path.name for path in output.iterdir()} == FILES | {"notes.md"}


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_of_someone_else_is_left_alone(runs, tmp_path, name):
    (tmp_path / name).write_text("mine")
    done = commands.run(MODULE, runs, f"--output={tmp_path}")
    assert_refused(done, name, "--output")
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ([], ["no directory is given"]),
        (["runs", "nowhere"], ["nowhere does not exist"]),
        (["empty"], ["empty holds no run"]),
        (["runs/a/config.json"], ["config.json is a file"]),
        (["runs", "--output="], ["--output is empty"]),
        (["runs", "--output=file"], ["--output=file is a file"]),
        (["runs", "--output=file/below"], ["--output=file/below", "cannot be written"]),
        (["runs", "--output=runs/a/report"], ["--output=runs/a/report", "inside the run"]),
        (["runs", "--output=runs/a"], ["inside the run"]),
        (["runs/b", "--output=runs/a/x/y"], ["inside the run"]),
        (["runs", "--outptu=x"], ["outptu"]),
    ],
    ids=lambda value: " ".join(value) or "none" if isinstance(value, list) else None,
)
def test_mistakes(runs, tmp_path, arguments, fragments):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert_refused(commands.run(MODULE, *arguments, cwd=tmp_path), *fragments)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_that_was_trained(tmp_path):
    """What the training loop writes is what is read."""
    summary = tiny.train(tiny.config(), tmp_path / "run")
    done = commands.run(MODULE, tmp_path / "run", f"--output={tmp_path / 'out'}", "--json")
    assert done.code == 0, done.stderr
    doc = json.loads(done.stdout)
    (run,) = doc["runs"]
    assert (run["status"], run["problems"]) == ("finished", [])
    assert run["step"] == run["total_steps"] == tiny.STEPS
    assert run["test"]["accuracy"] == pytest.approx(100 * summary["test"]["accuracy"])
    assert run["best_validation"]["step"] == summary["best"]["step"]
    assert run["moved"] == summary["moved"] and sum(run["moved"].values()) == 7
    assert run["parameters"] == summary["parameters"]
    assert run["seconds"] == summary["seconds"]
    (group,) = doc["experiments"][0]["groups"]
    assert (group["label"], group["finished"]) == ("barter 0.5", 1)
    assert group["training_gflops_per_image"] == summary["training_gflops_per_image"]
    assert group["dense"]["parameters"] > group["parameters"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Who received and who gave channels" in page
    for unit, total in (("Heads", summary["topology"]["heads"]),):
        assert f"{unit} of each layer" in page
        assert f">{total[0]}</td>" in page
