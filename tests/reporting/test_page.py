"""The page: well formed, self-contained, and with all that a reader needs."""

import html
import re
import time
from html.parser import HTMLParser

import pytest

from barter_jax.reporting import figures, page
from barter_jax.reporting.document import document
from barter_jax.reporting.find import find
from barter_jax.reporting.groups import group
from barter_jax.reporting.read import read
from tests.reporting import made

pytest.importorskip("matplotlib")

VOID = {"meta", "br", "hr", "img", "input", "link"}
# Attributes that a browser follows.
FOLLOWED = {"href", "xlink:href", "src", "srcset", "data", "action", "poster", "background"}


class Parsed(HTMLParser):
    """Checks that tags are closed in order, and collects what is of interest."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.ids, self.followed, self.words = [], [], [], [], []
        self.labels = []
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)
        self._seen(tag, attributes)

    def handle_startendtag(self, tag, attributes):
        self._seen(tag, attributes)

    def _seen(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            self.ids += [value] if name == "id" else []
            self.followed += [value] if name in FOLLOWED else []
            self.labels += [value] if name == "aria-label" else []

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def rendered(*paths):
    directories, again = find([str(path) for path in paths])
    grouping = group([read(directory) for directory in directories])
    command = ["python", "-m", "barter_jax.report", *map(str, paths)]
    return page.render(grouping, document(grouping, again), command)


def assert_self_contained(text, parsed):
    assert not {"script", "link", "iframe", "object", "embed", "img", "base"} & set(parsed.tags)
    for target in parsed.followed + re.findall(r"url\(([^)]*)\)", text):
        assert target.strip("'\"").startswith(("#", "data:")), target
    assert "http:" not in text and "https:" not in text and "@import" not in text
    assert len(set(parsed.ids)) == len(parsed.ids), "an id stands twice"
    wanted = {x[1:] for x in parsed.followed if x.startswith("#")}
    wanted |= set(re.findall(r"url\(#([^)]*)\)", text))
    assert wanted <= set(parsed.ids), wanted - set(parsed.ids)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    root = made.sweep(tmp_path_factory.mktemp("sweep") / "<&> \"'")
    host = {"device_kind": "NVIDIA L40", "devices": 1}
    made.write(root / "other", made.small(data__name="folder", train__steps=40), host=host)
    text = rendered(root)
    return text, Parsed(text)


def test_it_parses_and_refers_to_nothing_outside(sweep):
    assert_self_contained(*sweep)


def test_every_figure_has_a_text_and_an_alternative(sweep):
    text, parsed = sweep
    assert (
        parsed.tags.count("figure") == parsed.tags.count("figcaption") == text.count('role="img"')
    )
    assert len(parsed.labels) == parsed.tags.count("svg") and all(map(len, parsed.labels))
    # Four of the first experiment, scores of two of its runs, two of an unfinished run.
    assert parsed.tags.count("svg") == 4 + 2 + 2
    for title in (
        "Accuracy against cost",
        "Loss and validation accuracy",
        "Learning rate",
        "Where the time went",
        "Scores that the updates went by",
    ):
        assert title in parsed.text
    for words in ("training time in s", "optimizer step", "test accuracy in %", "wall-clock in s"):
        assert words in parsed.text
    (front,) = [x for x in parsed.labels if "Pareto" in x]
    assert "training time: dense;" in front  # all cost the same, and dense is best


def test_a_reader_can_tell_what_was_run(sweep):
    _, parsed = sweep
    assert "62.00 ± 2.00 (3)" in parsed.text
    assert "jax 0.10.2" in parsed.text and "not recorded" in parsed.text
    assert "device_kind NVIDIA L40" in parsed.text
    assert "config.model.width = 16" in parsed.text
    assert "python -m barter_jax.main --config=repeat.py --config.seed=2" in parsed.text
    assert "Moved in 2 updates: 1 of 1 planned heads and 3 of 4 planned channels" in parsed.text
    assert "training stood still for 1.50 s" in parsed.text


def test_names_are_escaped(sweep):
    text, parsed = sweep
    assert "<&>" not in text and html.escape("<&>") in text
    assert "<&> \"'/barter_0" in parsed.text


def test_equal_runs_make_equal_pages(tmp_path):
    root = made.sweep(tmp_path / "runs")
    assert rendered(root) == rendered(root)


def test_broken_and_odd_runs(tmp_path):
    made.write(tmp_path / "no_config", None)
    made.write(tmp_path / "no_metrics", made.small(), metrics=[])
    made.write(tmp_path / "odd", {"method": "sculpt", "density": 2, "model": {"name": "swin"}}, 0.4)
    made.write(tmp_path / "nothing", {}, summary_={"test": {}})
    nan = [{"step": 3, "split": "train", "loss": float("nan"), "learning_rate": float("inf")}]
    made.write(tmp_path / "nan", made.small(seed=1), metrics=nan)
    scores = made.topology(scores=True)
    scores[0]["scores"]["pruning"] = [[0.0] * 5] * 2
    scores[1]["scores"] = {"pruning": 3}
    scores[2]["scores"]["growth"] = [[1.0, 2.0]]
    made.write(tmp_path / "scores", made.small(seed=2), updates=scores)
    text = rendered(tmp_path)
    parsed = Parsed(text)
    assert_self_contained(text, parsed)
    for words in ("config.json is missing", "metrics.jsonl is missing", "sculpt", "not finite"):
        assert words in parsed.text


def test_the_settings_name_the_groups_that_differ(tmp_path):
    made.write(tmp_path / "a", made.small(optimizer__beta2=0.5), 0.5)
    made.write(tmp_path / "b", made.small(), 0.5)
    text = Parsed(rendered(tmp_path)).text
    assert "optimizer.beta2 0.5 (barter 0.3, optimizer.beta2=0.5); 0.999 (barter" in text


def test_dozens_of_runs_take_seconds(tmp_path):
    """Three seeds of twelve groups, a third of them with trades and scores."""
    for density in (0.3, 0.5, 0.7):
        for method in ("barter", "static", "random_pair", "random_donor"):
            for seed in range(3):
                made.write(
                    tmp_path / f"{method}_{density}_{seed}",
                    made.small(method=method, density=density, seed=seed),
                    0.5 + seed / 100,
                    updates=made.topology(scores=True) if method == "barter" else None,
                )
    began = time.process_time()
    text = rendered(tmp_path)
    assert time.process_time() - began < 10  # about one where nothing else runs
    assert Parsed(text).tags.count("svg") == 4 + 9


@pytest.mark.filterwarnings("error")
def test_many_groups_of_long_names(tmp_path):
    """They leave room for the curves, and none of them is lost in the tables."""
    for i in range(45):
        config = made.small(
            optimizer__learning_rate=0.001 * (i + 1),
            optimizer__weight_decay=0.0001 * i,
            data__dir=f"/somewhere/far/down/the/road/{i}",
        )
        made.write(tmp_path / str(i), config, 0.5)
    text = Parsed(rendered(tmp_path)).text
    assert "and 5 more groups" in text
    assert "optimizer.weight_decay=0.0044" in text


def test_without_matplotlib(monkeypatch):
    monkeypatch.setattr(figures.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(figures.UserError, match="pip install matplotlib"):
        figures.check()
