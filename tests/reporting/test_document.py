"""The numbers of a report, by hand."""

import csv
import io
import json
import math
from pathlib import Path

import pytest

from barter_jax.core import accounting
from barter_jax.core.topology import spread_evenly
from barter_jax.models import ViTConfig
from barter_jax.reporting import markdown, spreadsheet, tables
from barter_jax.reporting.document import document
from barter_jax.reporting.find import find
from barter_jax.reporting.groups import group
from barter_jax.reporting.read import read
from tests.reporting import made


def made_document(*paths):
    directories, again = find([str(path) for path in paths])
    grouping = group([read(directory) for directory in directories])
    return grouping, document(grouping, again)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    root = made.sweep(tmp_path_factory.mktemp("sweep"))
    made.write(root / "running", made.small(method="barter", density=0.25))
    return made_document(root)


def groups_of(doc):
    return {g["label"]: g for experiment in doc["experiments"] for g in experiment["groups"]}


def test_means_and_deviations(sweep):
    found = groups_of(sweep[1])
    barter = found["barter 0.5"]["accuracy_percent"]
    assert (barter["mean"], barter["sd"], barter["n"]) == pytest.approx((62, 2, 3))
    # 57, 62 and 61: deviations -3, 2 and 1, squares 14, over 2.
    static = found["static 0.5"]["accuracy_percent"]
    assert (static["mean"], static["sd"], static["n"]) == pytest.approx((60, math.sqrt(7), 3))
    assert found["static 0.5"]["macro_f1_percent"]["mean"] == pytest.approx(50)
    assert found["random_pair 0.5"]["accuracy_percent"]["sd"] == pytest.approx(0, abs=1e-9)
    # Without a finished run there is no mean.
    assert found["barter 0.25"]["accuracy_percent"] is None
    assert found["barter 0.25"]["finished"] == 0


def test_ranks_are_within_a_density(sweep):
    found = groups_of(sweep[1])
    ranks = {label: g["rank"]["accuracy_percent"] for label, g in found.items()}
    assert ranks == {
        "barter 0.5": 1,
        "static 0.5": 2,
        "random_pair 0.5": None,
        "dense": None,
        "barter 0.25": None,
    }


def test_differences_are_those_of_pairs(sweep):
    minus = groups_of(sweep[1])["barter 0.5"]["minus"]["static"]["accuracy"]
    # 3, 0 and 3.
    assert minus["group"] == "static 0.5" and minus["pairs"] == 3
    assert (minus["mean"], minus["sd"]) == pytest.approx((2, math.sqrt(3)))
    pair = groups_of(sweep[1])["random_pair 0.5"]["minus"]
    assert pair["static"]["accuracy"]["mean"] == pytest.approx(-2)
    assert pair["barter"]["accuracy"]["mean"] == pytest.approx(-4)
    assert groups_of(sweep[1])["dense"]["minus"]["static"]["accuracy"] is None


def test_cost_and_time(sweep):
    found = groups_of(sweep[1])["barter 0.5"]
    assert found["parameters"] == 2000 and found["training_gflops_per_image"] == 0.5
    # 0.5 GFLOPs x 8 images x 10 steps = 40 GFLOPs.
    assert found["training_pflops"]["mean"] == pytest.approx(40e-6)
    assert found["seconds"]["training"]["mean"] == pytest.approx(10 + 1.5 + 1)
    assert found["seconds"]["compile"]["mean"] == pytest.approx(4)
    assert found["ms_per_step"]["mean"] == pytest.approx(1000)
    assert found["seconds_per_epoch"] is None  # its length was given in steps


def test_costs_without_a_summary_follow_from_the_config(sweep):
    found = groups_of(sweep[1])["barter 0.25"]
    model = {k: v for k, v in made.small()["model"].items() if k != "name"}
    dims = ViTConfig(**model).dimensions(8, 10)
    topology = spread_evenly(accounting.compact_budget(dims, 0.25), 2)
    assert found["parameters"] == accounting.parameters(dims, topology)
    gflops = accounting.training_flops(dims, topology) / 1e9
    assert found["training_gflops_per_image"] == pytest.approx(gflops)
    assert found["dense"]["parameters"] == accounting.parameters(dims, dims.dense)
    (run,) = [run for run in sweep[1]["runs"] if run["group"] == "barter 0.25"]
    assert run["training_pflops"] == pytest.approx(gflops * 8 * 10 / 1e6)


def test_fine_tuning_counts_no_gradient_of_the_image(tmp_path):
    config = made.small(method="static", density=0.5)
    config["init"] = {"from": "dense.safetensors"}
    _, doc = made_document(made.write(tmp_path / "run", config, 0.5))
    model = {k: v for k, v in config["model"].items() if k != "name"}
    dims = ViTConfig(**model).dimensions(8, 10)
    topology = spread_evenly(accounting.compact_budget(dims, 0.5), 2)
    wanted = accounting.training_flops(dims, topology, gradient_of_image=False) / 1e9
    assert groups_of(doc)["static 0.5"]["training_gflops_per_image"] == pytest.approx(wanted)


def test_exported_parameters_go_before_trained_ones(tmp_path):
    """A masked method trains more than it exports."""
    found = made.summary(0.5, 0.5, exported_parameters=1234)
    _, doc = made_document(made.write(tmp_path / "r", made.small(method="rigl"), summary_=found))
    assert groups_of(doc)["rigl 0.3"]["parameters"] == 1234


def test_one_json_document_without_nan(tmp_path):
    test = {"accuracy": math.nan, "macro_f1": 0.5}
    nan = made.write(
        tmp_path / "a" / "nan", made.small(seed=0), summary_=made.summary(0, 0, test=test)
    )
    made.write(tmp_path / "a" / "fine", made.small(seed=1), 0.5)
    made.write(tmp_path / "a" / "none", None, metrics=[])
    grouping, doc = made_document(tmp_path / "a", nan)
    assert json.loads(json.dumps(doc, allow_nan=False)) == doc
    (found,) = groups_of(doc).values()
    assert found["accuracy_percent"] == {"mean": 50.0, "sd": None, "n": 1}
    assert found["macro_f1_percent"]["n"] == 2
    assert doc["given_twice"] == [{"directory": str(nan), "is": str(nan)}]
    states = {Path(run["directory"]).name: run["status"] for run in doc["runs"]}
    assert states == {"nan": "finished", "fine": "finished", "none": "broken"}
    (broken,) = [run for run in doc["runs"] if run["status"] == "broken"]
    assert broken["group"] is None and "config.json is missing" in broken["problems"]
    assert "config.json is missing" in markdown.render(grouping, doc, ["x"])


def test_duplicates_are_named_and_not_counted(tmp_path):
    a = made.write(tmp_path / "a", made.small(), 0.5)
    b = made.write(tmp_path / "b", made.small(), 0.7)
    _, doc = made_document(tmp_path)
    assert groups_of(doc)["barter 0.3"]["accuracy_percent"]["mean"] == 50
    assert {run["directory"]: run["duplicate_of"] for run in doc["runs"]} == {
        str(a): None,
        str(b): str(a),
    }
    text = tables.markdown(tables.of_runs(doc["runs"]))
    assert f"same config and seed as {a}, not counted" in text


# --- tables ------------------------------------------------------------------------------------


def test_the_tables_in_markdown(sweep):
    grouping, doc = sweep
    text = markdown.render(grouping, doc, ["python", "-m", "barter_jax.report", "a b"])
    assert text.startswith(markdown.MARK)
    assert "`python -m barter_jax.report 'a b'`" in text
    lines = text.splitlines()
    assert "| method | density 0.25 | density 0.5 | density 1 |" in lines
    assert "| barter | - | **62.00 ± 2.00 (3)** | - |" in lines
    assert "| static | - | *60.00 ± 2.65 (3)* | - |" in lines
    assert "| dense | - | - | 70.00 ± 2.00 (3) |" in lines
    assert "| static | - | *50.00 ± 2.65 (3)* | - |" in lines  # macro-F1
    assert (
        "| barter 0.5 | +2.00 ± 1.73 (3) | +2.00 ± 1.73 (3) | - | - |" in lines
    )  # fmt: skip
    assert any(line.startswith("| barter 0.5 | 2,000 |") for line in lines)
    assert any(
        "| running | step" in line or "| stopped | step 10 of 10 |" in line for line in lines
    )


def test_the_papers_row(tmp_path):
    config = made.config(
        "cct",
        method="static",
        density=0.5,
        data__name="cifar100",
        data__num_classes=100,
        train__epochs=200,
        train__batch_size=128,
    )
    found = made.summary(0.71, 0.7, steps=70_200)
    _, doc = made_document(made.write(tmp_path / "r", config, summary_=found))
    group_ = groups_of(doc)["static 0.5"]
    assert group_["paper"]["accuracy_percent"] == 71.80
    made_tables = map(tables.markdown, tables.of_experiment(doc["experiments"][0]))
    accuracy, f1, _, cost, _ = made_tables
    assert "| static | 71.00 (1) |\n| static, paper | 71.80 |" in accuracy
    assert "arXiv 2610.16147" in accuracy and "paper" not in f1
    # 12.5 s of training over 200 epochs; the paper's L40 took 36.90 s for each.
    # 0.5 GFLOPs x 128 images x 70,200 steps = 4.4928 PFLOPs.
    assert "| static 0.5 | 0.0020 | 1.9480 | 0.5 | 3.569 | 4.493 | - | 0.06 | 36.90 |" in cost
    made.write(tmp_path / "s", made.small(), 0.5)
    text = json.dumps(made_document(tmp_path / "s")[1]["experiments"])
    assert "arXiv" not in text


def test_pipes_in_names_do_not_break_a_table():
    table = tables.Table("t", ("a|b", "c"), ((tables.Cell("x|y"), tables.Cell("<b>")),))
    assert "| x\\|y | <b> |" in tables.markdown(table)
    assert "<td>&lt;b&gt;</td>" in tables.as_html(table)


def test_the_csv(sweep):
    rows = list(csv.DictReader(io.StringIO(spreadsheet.render(sweep[1]))))
    assert [row["kind"] for row in rows] == ["group"] * 5 + ["run"] * 13
    (barter,) = [row for row in rows if row["kind"] == "group" and row["group"] == "barter 0.5"]
    assert float(barter["accuracy_percent"]) == pytest.approx(62)
    assert float(barter["accuracy_sd"]) == pytest.approx(2)
    assert float(barter["accuracy_minus_static"]) == pytest.approx(2)
    assert (barter["n"], barter["accuracy_rank"], barter["accuracy_paper"]) == ("3", "1", "")
    (run,) = [row for row in rows if row["directory"].endswith("static_1")]
    assert float(run["accuracy_percent"]) == pytest.approx(62)
    assert (run["seed"], run["step_seconds"], run["status"]) == ("1", "10.0", "finished")
