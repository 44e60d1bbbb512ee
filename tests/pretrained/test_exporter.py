"""Weights given back under other projects' names: the same bits, or a line that says why not."""

import dataclasses

import jax
import numpy as np
import pytest

from barter_jax import pretrained
from barter_jax.core.topology import Topology
from barter_jax.deploy.model import Card
from barter_jax.errors import UserError
from barter_jax.models import CCTConfig, ViTConfig
from tests.helpers import random_params
from tests.pretrained import made

ORIGINALS = {
    "timm": made.timm(),
    "huggingface": made.hugging_face(made.timm()),
    "cct": made.cct(),
}
LABELS = ("cat", "dog", "ü", "a, b", "e\nf")


def card_of(dense, **fields):
    given = {
        "model": dense.model,
        "model_config": dataclasses.asdict(dense.model_config),
        "topology": dense.topology,
        "labels": LABELS,
        "image_size": dense.image_size,
        "mean": (0.4, 0.5, 0.6),
        "std": (0.2, 0.3, 0.4),
        "step": 0,
        "metrics": {},
    }
    return Card(**given | fields)


@pytest.mark.parametrize("name", ORIGINALS)
def test_there_and_back_is_the_same_bits(name, tmp_path):
    original = ORIGINALS[name]
    dense = pretrained.read(made.save(original, tmp_path / "original"), head_width=4)
    assert dense.format == name
    tensors, metadata = pretrained.export(card_of(dense), dense.params, name)
    assert tensors.keys() == original.keys()
    for key, value in original.items():
        assert tensors[key].flags.c_contiguous and tensors[key].dtype == np.float32
        np.testing.assert_array_equal(tensors[key], value, err_msg=key)

    # And once more from our side; heads and labels are remembered now.
    again = pretrained.read(made.save(tensors, tmp_path / "again", metadata))
    jax.tree.map(np.testing.assert_array_equal, again.params, dense.params)
    assert again.model_config == dense.model_config
    assert (again.heads_known, again.labels, again.notes) == (True, LABELS, ())


def test_one_format_becomes_another(tmp_path):
    dense = pretrained.read(made.save(ORIGINALS["timm"], tmp_path / "timm"), head_width=4)
    tensors, _ = pretrained.export(card_of(dense), dense.params, "huggingface")
    for key, value in ORIGINALS["huggingface"].items():
        np.testing.assert_array_equal(tensors[key], value, err_msg=key)


def test_the_hugging_face_config():
    config = ViTConfig(layers=2, patch_size=2, qkv_bias=False, **made.SIZES)
    card = Card(
        "vit", dataclasses.asdict(config), Topology((3, 3), (10, 10)), LABELS, 6, (0.5,) * 3,
        (0.5,) * 3, 0, {},
    )  # fmt: skip
    found = pretrained.hugging_face_config(card)
    wanted = {
        "model_type": "vit",
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 10,
        "layer_norm_eps": 1e-6,
        "hidden_act": "gelu",
        "image_size": 6,
        "patch_size": 2,
        "qkv_bias": False,
        "label2id": {label: i for i, label in enumerate(LABELS)},
    }
    assert {key: found[key] for key in wanted} == wanted
    assert found["id2label"]["1"] == "dog"


def told(config, topology, name):
    kind = "vit" if isinstance(config, ViTConfig) else "cct"
    card = Card(
        kind, dataclasses.asdict(config), topology, LABELS, 6, (0.5,) * 3, (0.5,) * 3, 0, {}
    )
    params = random_params(config, topology, image_size=6)
    with pytest.raises(UserError) as caught:
        pretrained.export(card, params, name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


VIT = ViTConfig(layers=3, patch_size=2, **made.SIZES)
CCT = CCTConfig(layers=3, **made.SIZES)


@pytest.mark.parametrize(
    ("config", "topology", "name", "line"),
    [
        (VIT, Topology((3, 2, 3), (10,) * 3), "timm",
         "the model is not dense: layer 1 has 2 heads of 4, together 8 wide, and in the format "
         "timm they are as wide as the model, 12"),
        (VIT, Topology((3,) * 3, (10, 10, 9)), "huggingface",
         "the model is not dense: layer 2 has 9 channels and layer 0 has 10"),
        (CCT, Topology((2,) * 3, (10,) * 3), "cct", "layer 0 has 2 heads"),
        (VIT, Topology((3,) * 3, (10,) * 3), "cct",
         "the model is a vit, and the format cct is for a cct"),
        (CCT, Topology((3,) * 3, (10,) * 3), "timm", "the format timm is for a vit"),
        (dataclasses.replace(CCT, qkv_bias=True), Topology((3,) * 3, (10,) * 3), "cct",
         "biases of query, key and value"),
        (VIT, Topology((3,) * 3, (10,) * 3), "onnx", "one of timm, huggingface, cct"),
    ],
)  # fmt: skip
def test_what_a_format_cannot_hold_is_told(config, topology, name, line):
    assert line in told(config, topology, name)


def test_a_dense_model_with_narrow_attention_is_not_called_compact():
    narrow = dataclasses.replace(VIT, heads=2)
    said = told(narrow, Topology((2,) * 3, (10,) * 3), "timm")
    assert said.startswith("layer 0 has 2 heads of 4, together 8 wide")
