"""Which runs are repetitions, how groups are named, and what they are compared with."""

import json

import pytest

from barter_jax.reporting.groups import group, reference
from barter_jax.reporting.read import read
from tests.reporting import made


@pytest.fixture
def runs(tmp_path):
    """Writes runs of the given configs and reads them; finished unless `accuracy` is None."""
    count = 0

    def make(*configs, accuracy=0.5):
        nonlocal count
        found = []
        for config in configs:
            count += 1
            found.append(read(made.write(tmp_path / f"r{count}", config, accuracy)))
        return found

    return make


def labels(grouping):
    return [[g.label for g in experiment.groups] for experiment in grouping.experiments]


def test_seeds_are_averaged_and_nothing_else(runs):
    grouping = group(
        runs(
            made.small(seed=1),
            made.small(seed=0),
            made.small(seed=2, optimizer__learning_rate=0.5),
            made.small(seed=0, density=0.5),
            made.small(seed=0, method="static"),
        )
    )
    assert labels(grouping) == [
        [
            "static 0.3, optimizer.learning_rate=0.001",
            "barter 0.3, optimizer.learning_rate=0.001",
            "barter 0.5, optimizer.learning_rate=0.001",
            "barter 0.3, optimizer.learning_rate=0.5",
        ]
    ]
    assert [r.seed for r in grouping.experiments[0].groups[1].runs] == [0, 1]
    assert grouping.duplicates == () and grouping.ungrouped == ()


def test_fields_that_change_no_result(runs):
    same = runs(
        made.small(seed=0),
        made.small(seed=1, bucket__channels=64, log__every_steps=7, data__threads=9),
    )
    assert labels(group(same)) == [["barter 0.3"]]


def test_the_dense_model_has_no_density(runs):
    grouping = group(
        runs(
            made.small(method="dense", density=0.1, seed=0),
            made.small(method="dense", density=0.2, seed=1),
        )
    )
    (found,) = grouping.experiments[0].groups
    assert (found.label, found.density, len(found.runs)) == ("dense", 1.0, 2)


def test_duplicates(runs):
    (unfinished,) = runs(made.small(seed=0), accuracy=None)
    first, second = runs(made.small(seed=0), made.small(seed=0, log__every_steps=3))
    grouping = group([unfinished, first, second])
    assert grouping.experiments[0].groups[0].runs == (first,)
    assert grouping.duplicates == ((second, first), (unfinished, first))


def test_experiments_are_models_and_data(runs):
    grouping = group(runs(made.small(), made.config("cct"), made.small(data__name="folder")))
    names = [experiment.name for experiment in grouping.experiments]
    assert names == ["vit on digits", "cct on digits", "vit on folder"]


def test_many_differing_fields(runs):
    changed = {
        "optimizer__learning_rate": 0.5,
        "optimizer__weight_decay": 0.25,
        "train__batch_size": 16,
        "augment__flip": False,
        "data__mean": (0.1, 0.2, 0.3),
    }
    found = labels(group(runs(made.small(), made.small(**changed))))[0]
    assert all(label.endswith("2 more fields") for label in found)
    assert len(set(found)) == 2


def test_groups_that_would_have_one_name(runs):
    """Each differs from the first in a field of its own, and only three are named."""
    changed = [
        {"data__mean": (0.1,) * 3},
        {"data__std": (0.1,) * 3},
        {"augment__flip": False},
        {"train__batch_size": 16},
        {"train__ema_decay": 0.5},
    ]
    found = labels(group(runs(made.small(), *(made.small(**c) for c in changed))))[0]
    assert len(set(found)) == 6
    assert sorted(label[-8:] for label in found if "config" in label) == [
        "config 1",
        "config 2",
        "config 3",
    ]


def test_the_fields_that_tell_most_are_named(runs):
    """Of four differing fields the last one tells all apart."""
    base = {"data__mean": (0.1,) * 3, "data__std": (0.1,) * 3, "augment__flip": False}
    found = labels(
        group(
            runs(
                made.small(),
                *(made.small(**base, train__batch_size=n) for n in (16, 32, 64)),
            )
        )
    )[0]
    assert all("train.batch_size=" in label and "1 more field" in label for label in found)
    assert not any("config" in label for label in found)


def test_a_long_value_keeps_its_end(runs):
    found = labels(group(runs(made.small(), made.small(data__dir="/very/long" * 9 + "/photos"))))
    (label,) = [x for x in found[0] if "photos" in x]
    assert label.startswith("barter 0.3, data.dir=...") and len(label) < 50


def test_a_config_of_another_version(runs):
    older = made.small(seed=1)
    del older["augment"]["flip"], older["train"]["ema_decay"]
    older["seasoning"] = "salt"
    found = labels(group(runs(made.small(seed=0), older)))[0]
    assert "barter 0.3, config without 2 fields of the others" in found
    assert len(set(found)) == 2


def test_odd_methods_and_missing_fields(runs):
    grouping = group(runs({"method": "sculpt", "density": 0.25}, {"seed": 4}))
    assert [e.name for e in grouping.experiments] == ["None on None"]
    assert [g.method for g in grouping.experiments[0].groups] == ["sculpt", "unknown"]
    json.dumps(labels(grouping))


# --- references --------------------------------------------------------------------------------


def by_label(grouping):
    return {g.label: g for experiment in grouping.experiments for g in experiment.groups}


def test_references_agree_in_density_and_fields(runs):
    grouping = group(
        runs(
            made.small(),
            made.small(method="static"),
            made.small(density=0.5),
            made.small(method="random_pair"),
        )
    )
    found = by_label(grouping)
    everything = grouping.experiments[0].groups
    assert reference(found["barter 0.3"], "static", everything) is found["static 0.3"]
    assert reference(found["barter 0.5"], "static", everything) is None
    assert reference(found["random_pair 0.3"], "barter", everything) is found["barter 0.3"]
    assert reference(found["barter 0.3"], "barter", everything) is None


def test_static_is_the_baseline_whatever_it_says_of_updates(runs):
    grouping = group(
        runs(
            made.small(topology__noise=0.0),
            made.small(topology__noise=0.5, scores__decay=0.5),
            made.small(method="static"),
            made.small(method="random_pair"),
            made.small(method="static", optimizer__learning_rate=0.5),
        )
    )
    everything = grouping.experiments[0].groups
    static = next(
        g
        for g in everything
        if g.method == "static" and g.fields["optimizer.learning_rate"] == 0.001
    )
    barters = [g for g in everything if g.method == "barter"]
    assert [reference(g, "static", everything) for g in barters] == [static, static]
    # Two methods that both make updates must agree in how.
    pair = next(g for g in everything if g.method == "random_pair")
    assert reference(pair, "barter", everything) is None
