"""The figure, where matplotlib is installed, and what is refused before anything is measured."""

import importlib.util

import pytest

from barter_jax.benchmarking import document, plot
from barter_jax.errors import UserError
from tests.benchmarking import made

BEGINS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.parametrize("suffix", plot.SUFFIXES)
def test_formats(tmp_path, suffix):
    pytest.importorskip("matplotlib")
    doc = document.document(made.four(), made.ENVIRONMENT, made.SETTINGS)
    file = tmp_path / f"figure{suffix}"
    plot.check(file)
    plot.write(doc, file)
    assert file.read_bytes().startswith(BEGINS[suffix])


@pytest.mark.parametrize("name", ["figure", "figure.jpg", "png"])
def test_unknown_formats(tmp_path, name):
    with pytest.raises(UserError, match=r"--plot=.*\.png, \.svg, \.pdf"):
        plot.check(tmp_path / name)


def test_without_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install matplotlib"):
        plot.check(tmp_path / "figure.png")
