"""Pretrained weights for a config's model: what is kept, what is adapted, what is refused."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from barter_jax import pretrained
from barter_jax.core.topology import Topology
from barter_jax.deploy import model as compact
from barter_jax.errors import UserError
from barter_jax.models import CCTConfig, ViTConfig, init_params
from barter_jax.pretrained import positions
from tests.helpers import random_params
from tests.pretrained import made

VIT = ViTConfig(layers=2, patch_size=2, **made.SIZES)
CCT = CCTConfig(layers=2, **made.SIZES)
KEY = jax.random.key(3)


@pytest.fixture
def vit(tmp_path):
    """A timm file, whose heads nobody knows."""
    return pretrained.read(made.save(made.timm(), tmp_path / "vit.safetensors"), head_width=12)


def fit(dense, model=VIT, image_size=6, num_classes=5, labels=()):
    return pretrained.fit(dense, model, image_size, num_classes, KEY, labels)


def assert_is_a_models(params, model, topology, image_size, num_classes):
    template = jax.eval_shape(lambda: init_params(model, topology, image_size, num_classes, KEY))
    assert jax.tree.structure(params) == jax.tree.structure(template)
    for leaf, wanted in zip(jax.tree.leaves(params), jax.tree.leaves(template), strict=True):
        assert (leaf.shape, leaf.dtype) == (wanted.shape, wanted.dtype)


def assert_equal_but(found, dense, *names):
    for name in dense.params:
        if name not in names:
            jax.tree.map(np.testing.assert_array_equal, found.params[name], dense.params[name])


def test_what_fits_is_kept(tmp_path):
    file = made.save(made.cct(), tmp_path / "cct.safetensors")
    dense = pretrained.read(file, head_width=4)
    found = fit(dense, CCT)
    assert_is_a_models(found.params, CCT, found.topology, 6, 5)
    assert_equal_but(found, dense)
    assert found.topology == Topology((3, 3), (10, 10))


def test_unknown_heads_are_cut_as_the_config_says(vit):
    weights = made.timm()
    images = np.random.default_rng(1).standard_normal((2, 6, 6, 3)).astype(np.float32)
    for heads in (3, 6):
        model = dataclasses.replace(VIT, heads=heads, head_width=12 // heads)
        found = fit(vit, model)
        assert_is_a_models(found.params, model, found.topology, 6, 5)
        logits = model.module(found.topology, 5).apply({"params": found.params}, images)
        want = made.vit_logits(weights, images, heads=heads)
        np.testing.assert_allclose(logits, want, rtol=0, atol=1e-4)
        (note,) = found.notes
        assert f"taken for {heads} of {12 // heads}" in note


def test_other_classes_get_a_fresh_classifier(vit):
    found = fit(vit, num_classes=7)
    assert_is_a_models(found.params, VIT, found.topology, 6, 7)
    assert_equal_but(found, vit, "classifier", "block_0", "block_1")
    kernel = found.params["classifier"]["kernel"]
    assert 0.01 < kernel.std() < 0.03 and not found.params["classifier"]["bias"].any()
    assert any("5 classes: a fresh one for 7" in note for note in found.notes)
    np.testing.assert_array_equal(fit(vit, num_classes=7).params["classifier"]["kernel"], kernel)


def test_a_file_without_a_classifier_gets_one(tmp_path):
    weights = made.without(made.timm(), "head.weight", "head.bias")
    dense = pretrained.read(made.save(weights, tmp_path / "vit.safetensors"), head_width=4)
    found = fit(dense)
    assert_is_a_models(found.params, VIT, found.topology, 6, 5)
    assert any("no classifier: a fresh one" in note for note in found.notes)


@pytest.mark.parametrize(("model", "made_as"), [(VIT, made.timm), (CCT, made.cct)])
def test_another_grid_gets_interpolated_positions(model, made_as, tmp_path):
    dense = pretrained.read(made.save(made_as(), tmp_path / "m.safetensors"), head_width=4)
    found = fit(dense, model, image_size=10)
    assert_is_a_models(found.params, model, found.topology, 10, 5)
    assert_equal_but(found, dense, "position")
    want = positions.resize(dense.params["position"], 5, class_token=model is VIT)
    np.testing.assert_array_equal(found.params["position"], want)
    assert any("from a grid of 3x3 to 5x5" in note for note in found.notes)


# --- this project's own models ---------------------------------------------------------------


COMPACT = Topology((3, 2), (10, 7))


def own(folder):
    params = random_params(VIT, COMPACT, image_size=6)
    card = compact.Card(
        "vit", dataclasses.asdict(VIT), COMPACT, tuple("abcde"), 6, (0.5,) * 3, (0.2,) * 3, 7, {}
    )
    compact.save(folder, card, params)
    return card, params


def test_an_own_model_is_read_and_keeps_its_counts(tmp_path):
    card, params = own(tmp_path / "model")
    for path in (tmp_path, tmp_path / "model", tmp_path / "model" / "model.safetensors"):
        dense = pretrained.read(path)
        assert (dense.format, dense.model_config, dense.topology) == (
            "barter_jax",
            VIT,
            card.topology,
        )
        assert (dense.labels, dense.image_size, dense.heads_known) == (card.labels, 6, True)
        jax.tree.map(np.testing.assert_array_equal, dense.params, params)
        assert type(dense.params["cls_token"]) is np.ndarray
    found = fit(dense, dataclasses.replace(VIT, drop_path=0.3))
    assert found.topology == card.topology and found.notes == ()
    jax.tree.map(np.testing.assert_array_equal, found.params, params)


def test_other_class_names_of_the_same_number(tmp_path):
    _, params = own(tmp_path)
    dense = pretrained.read(tmp_path)
    kept = fit(dense, labels=tuple("abcde"))
    np.testing.assert_array_equal(
        kept.params["classifier"]["kernel"], params["classifier"]["kernel"]
    )
    (note,) = fit(dense, labels=tuple("abcdX")).notes
    assert "other class names" in note


# --- what is refused -------------------------------------------------------------------------


def told(dense, model=VIT, image_size=6):
    with pytest.raises(UserError) as caught:
        fit(dense, model, image_size)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(dense.file))
    return str(caught.value)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"width": 24},
         "cls_token has shape [1, 1, 12], expected [1, 1, 24] by config.model.width=24; "
         "the file is for config.model.width=12"),
        ({"patch_size": 3},
         "patch_embed.proj.weight has shape [12, 3, 2, 2], expected [12, 3, 3, 3] by "
         "config.model.patch_size=3; the file is for config.model.patch_size=2"),
        ({"channels": 16},
         "blocks.0.mlp.fc1.weight has shape [10, 12], expected [16, 12] by "
         "config.model.channels=16"),
        ({"heads": 2},
         "blocks.0.attn.qkv.weight has shape [36, 12], expected [24, 12] by config.model.heads=2"),
        ({"layers": 3}, "blocks.2.norm1.weight is missing, expected [12] by config.model.layers=3"),
        ({"layers": 1}, "blocks.1.attn.proj.bias is unexpected: not asked for by "
         "config.model.layers=1; the file is for config.model.layers=2"),
        ({"qkv_bias": False}, "blocks.0.attn.qkv.bias is unexpected: not asked for by "
         "config.model.qkv_bias=False"),
    ],
)  # fmt: skip
def test_the_first_mismatch_is_named_with_its_field(fields, line, tmp_path):
    file = made.save(made.timm(), tmp_path / "vit.safetensors")
    dense = pretrained.read(file, head_width=4)
    assert f"{file}: {line}" in told(dense, dataclasses.replace(VIT, **fields))


def test_all_fields_that_differ_are_told_at_once(vit):
    line = told(vit, dataclasses.replace(VIT, width=24, channels=8, layers=4, head_width=8))
    remedy = line.partition("the file is for ")[2].split(", ")
    assert remedy[:2] == ["config.model.layers=2", "config.model.width=12"]
    assert "config.model.channels=10" in remedy


def test_missing_biases_are_told(tmp_path):
    weights = made.without(made.timm(), *(f"blocks.{i}.attn.qkv.bias" for i in range(2)))
    dense = pretrained.read(made.save(weights, tmp_path / "vit.safetensors"), head_width=4)
    assert "blocks.0.attn.qkv.bias is missing" in told(dense)
    assert "config.model.qkv_bias=True" in told(dense)


def test_another_architecture_is_told(vit, tmp_path):
    assert "config.model.name is cct" in told(vit, CCT)
    dense = pretrained.read(made.save(made.cct(), tmp_path / "cct.safetensors"), head_width=4)
    assert "config.model.name is vit" in told(dense, VIT)
    assert "config.model.qkv_bias=False" in told(dense, dataclasses.replace(CCT, qkv_bias=True))


def test_heads_that_are_known_are_not_cut_otherwise(tmp_path):
    made.save(made.hugging_face(made.timm()), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 6}))
    line = told(pretrained.read(tmp_path), VIT)
    assert "6 heads of 2, not 3 of 4" in line and "config.model.head_width=2" in line


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"width": 24}, "block_0.attention.key.kernel has shape [12, 3, 4], expected [24, 3, 4] by "
         "config.model.width=24"),
        ({"head_width": 2}, "block_0.attention.key.bias has shape [3, 4], expected [3, 2] by "
         "config.model.head_width=2"),
        ({"layers": 3}, "block_2.attention.key.bias is missing, expected [1, 4] by "
         "config.model.layers=3"),
        ({"layers": 1}, "block_1.attention.key.bias is unexpected: not asked for by "
         "config.model.layers=1"),
        ({"width": 24, "heads": 6, "channels": 20}, "by config.model.width=24; the file is for "
         "config.model.width=12"),
        ({"channels": 8}, "layer 0 has 10 channels, more than config.model.channels=8"),
    ],
)  # fmt: skip
def test_an_own_model_of_other_sizes_is_told(fields, line, tmp_path):
    own(tmp_path)
    assert line in told(pretrained.read(tmp_path), dataclasses.replace(VIT, **fields))
