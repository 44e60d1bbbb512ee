"""`describe` reproduces the paper's tables, without data and without training."""

import json
import subprocess
import sys

import pytest

from barter_jax import blueprint as blueprint_lib
from barter_jax import config as config_lib
from barter_jax import describe
from configs.paper import cct_cifar100, vit_tiny_imagenet
from tests.training import commands, tiny
from tests.training.commands import ROOT

FILES = {
    "cct": "configs/paper/cct_cifar100.py",
    "vit": "configs/paper/vit_tiny_imagenet.py",
}
CONFIGS = {"cct": cct_cifar100, "vit": vit_tiny_imagenet}

# Budgets with their spread, and the transfers of a whole run.
TABLE = [
    # model, density, heads, per layer, channels, per layer, K_heads, K_channels
    ("cct", 0.1, 11, {1, 2}, 371, {53}, 1, 21),
    ("cct", 0.3, 34, {4, 5}, 1067, {152, 153}, 2, 60),
    ("cct", 0.5, 56, {8}, 1795, {256, 257}, 3, 101),
    ("cct", 0.7, 78, {11, 12}, 2524, {360, 361}, 5, 142),
    ("vit", 0.1, 11, {1, 2}, 359, {39, 40}, 1, 20),
    ("vit", 0.3, 33, {3, 4}, 1033, {114, 115}, 2, 58),
    ("vit", 0.5, 54, {6}, 1739, {193, 194}, 3, 98),
]
CCT_MILLIONS = {0.1: 0.4802, 0.3: 1.2141, 0.5: 1.9480, 0.7: 2.6824}
CCT_GFLOPS = {0.1: 0.750, 0.3: 2.166, 0.5: 3.569, 0.7: 4.973}
DENSE = {"cct": (3_783_269, 7.08984), "vit": (2_761_928, 1.13714)}
LAYERS = {"cct": 7, "vit": 9}
STEPS = {"cct": (200 * 351, 351), "vit": (100 * 1054, 1054)}


def described(config):
    config_lib.validate(config)
    plan = blueprint_lib.make(config, *blueprint_lib.data_sizes(config))
    document = describe.describe(config, plan)
    assert json.loads(json.dumps(document)) == document
    return document


def paper(model, **overrides):
    config = CONFIGS[model].get_config()
    config.update_from_flattened_dict({k.replace("__", "."): v for k, v in overrides.items()})
    return described(config)


def check_row(document, row):
    model, density, heads, heads_per_layer, channels, channels_per_layer, k_heads, k_channels = row
    assert document["density"] == density
    assert document["budget"] == {"heads": heads, "channels": channels}
    assert document["transfers"] == {"heads": k_heads, "channels": k_channels}
    initial = document["initial"]
    assert set(initial["heads"]) == heads_per_layer
    assert set(initial["channels"]) == channels_per_layer
    for unit, total in document["budget"].items():
        assert len(initial[unit]) == LAYERS[model]
        assert sum(initial[unit]) == total
        assert sum(update[unit] for update in document["updates"]) == document["transfers"][unit]
    assert len(document["updates"]) == 10
    steps = [update["step"] for update in document["updates"]]
    assert steps == sorted(set(steps)) and 0 < steps[0] and steps[-1] < document["steps"]
    assert (document["steps"], document["steps_per_epoch"]) == STEPS[model]
    dense = document["dense"]
    assert dense["parameters"] == DENSE[model][0]
    assert round(dense["training_gflops_per_image"], 5) == DENSE[model][1]
    if model == "cct":
        assert round(document["parameters"] / 1e6, 4) == CCT_MILLIONS[density]
        assert round(document["training_gflops_per_image"], 3) == CCT_GFLOPS[density]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}-{row[1]}")
def test_the_papers_tables(row):
    check_row(paper(row[0], density=row[1]), row)


@pytest.mark.parametrize("row", [TABLE[0], TABLE[5]], ids=lambda row: row[0])
def test_the_papers_tables_by_the_command(row):
    """A process of its own, with one JSON document on stdout and nothing but it."""
    args = [f"--config={FILES[row[0]]}", f"--config.density={row[1]}", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "barter_jax.describe", *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    check_row(json.loads(done.stdout), row)


def test_other_multiples_of_the_transfers():
    """The paper's Table 16: 2, 4 and 6 times the transfers of ViT at density 0.5."""
    for multiplier, heads, channels in ((2, 6, 196), (4, 12, 392), (6, 18, 588)):
        document = paper("vit", density=0.5, topology__transfer_multiplier=float(multiplier))
        assert document["transfers"] == {"heads": heads, "channels": channels}
        assert sum(update["heads"] for update in document["updates"]) == heads


def test_fields_that_it_works_out():
    document = paper("cct", density=0.3, topology__extra="first", topology__total_heads=5)
    assert document["initial"]["heads"] == [5, 5, 5, 5, 5, 5, 4]
    assert document["transfers"] == {"heads": 5, "channels": 60}
    # 152 and 153 channels, in multiples of 8.
    assert document["bucket"] == {"heads": 1, "channels": 8, "waste": 0.15}
    assert document["padded"]["channels"] == [160] * 3 + [152] * 4
    assert document["caps"] == {"heads": [16] * 7, "channels": [512] * 7}
    # Four heads cannot be cloned five times at once, so the last update may have some left over.
    assert document["updates"][-1] == {"step": 52650, "heads": 0, "channels": 0}
    assert document["shapes_at_most"] == 11
    assert paper("cct", density=0.3)["shapes_at_most"] == 10
    assert {"model", "method", "density", "parameters", "training_gflops_per_image"} <= set(
        document
    )


def test_without_updates_nothing_is_to_move():
    document = paper("cct", density=0.1, **{"topology.updates": 0, "topology.total_heads": 1})
    assert document["transfers"] == {"heads": 0, "channels": 0}
    assert document["updates"] == []


@pytest.mark.parametrize("method", ["static", "dense"])
def test_methods_that_move_nothing(method):
    document = paper("cct", density=0.1, method=method)
    assert document["transfers"] == {"heads": 0, "channels": 0}
    assert document["updates"] == []
    assert document["shapes_at_most"] == 1
    if method == "dense":
        assert document["initial"] == {"heads": [16] * 7, "channels": [512] * 7}
        assert document["parameters"] == document["dense"]["parameters"] == DENSE["cct"][0]


def test_sizes_come_from_the_data_where_the_config_does_not_state_them():
    document = described(tiny.config(train__steps=None, train__epochs=2))
    # 1,797 digits, a fifth of them to test with and 5% held out: 1,366 in batches of 16.
    assert document["steps_per_epoch"] == 1366 // 16
    assert document["steps"] == 2 * (1366 // 16)


def test_text_for_a_person():
    result = commands.run("barter_jax.describe", f"--config={FILES['cct']}", cwd=ROOT)
    assert (result.code, result.stderr) == (0, "")
    for text in ("cct, method barter, density 0.3", "3,783,269", "1067", "34", "153(160)"):
        assert text in result.stdout, text
    assert "10 topology updates planned" in result.stdout
    result = commands.run("barter_jax.describe", f"--config={FILES['vit']}",
                          "--config.method=static")  # fmt: skip
    assert "0 topology updates planned" in result.stdout


@pytest.mark.parametrize("name", ["vit_tiny", "folder"])
def test_the_other_configs_describe_themselves(name):
    sizes = ["--config.data.num_classes=3", "--config.data.num_train=500"]
    args = sizes if name == "folder" else []
    result = commands.run("barter_jax.describe", f"--config=configs/{name}.py", "--json", *args)
    assert result.code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["parameters"] < document["dense"]["parameters"]
    for unit, total in document["transfers"].items():
        assert sum(update[unit] for update in document["updates"]) == total > 0


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("rigl", "weights (30.0%) are active under masks, which change every 100 steps up to 75%"),
        ("snfs", "which change every 1054 steps"),
        ("s2vite", "33 heads, 1033 channels are active"),
    ],
)
def test_masked_methods_tell_what_is_active(method, words):
    result = commands.run(
        "barter_jax.describe",
        "--config=configs/paper/vit_tiny_imagenet.py",
        f"--config.method={method}",
        "--config.density=0.3",
    )
    assert result.code == 0, result.stderr
    assert words in result.stdout
    assert "topology updates" not in result.stdout
