"""Reading other projects' weights: their logits, their sizes, and what is said of wrong files."""

import json
import re

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from barter_jax import pretrained
from barter_jax.core.topology import Topology
from barter_jax.errors import UserError
from tests.pretrained import made

IMAGES = np.random.default_rng(1).standard_normal((3, 6, 6, 3)).astype(np.float32)


def logits(dense, images=IMAGES):
    module = dense.model_config.module(dense.topology, dense.num_classes)
    return jax.jit(module.apply)({"params": dense.params}, images)


def hf_config(**fields):
    return {"model_type": "vit", "num_attention_heads": 3, "layer_norm_eps": 1e-6, **fields}


def test_a_timm_vit_computes_what_it_did(tmp_path):
    weights = made.timm()
    dense = pretrained.read(made.save(weights, tmp_path / "vit.safetensors"), head_width=4)
    np.testing.assert_allclose(logits(dense), made.vit_logits(weights, IMAGES), rtol=0, atol=1e-4)
    assert (dense.format, dense.model, dense.image_size, dense.num_classes) == (
        "timm",
        "vit",
        6,
        5,
    )
    config = dense.model_config
    assert {name: getattr(config, name) for name in made.SIZES} == made.SIZES
    assert (config.layers, config.patch_size, config.qkv_bias) == (2, 2, True)
    assert dense.topology == Topology((3, 3), (10, 10))
    assert not dense.heads_known and dense.notes == () and dense.labels == ()


def test_without_biases_of_query_key_and_value(tmp_path):
    weights = made.without(made.timm(), *(f"blocks.{i}.attn.qkv.bias" for i in range(2)))
    dense = pretrained.read(made.save(weights, tmp_path / "vit.safetensors"), head_width=4)
    assert not dense.model_config.qkv_bias
    np.testing.assert_allclose(logits(dense), made.vit_logits(weights, IMAGES), rtol=0, atol=1e-4)


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("prefix", ["vit.", "deit.", ""])
def test_a_hugging_face_vit_computes_what_it_did(prefix, state, tmp_path):
    weights = made.timm()
    renamed = made.hugging_face(weights, prefix, state)
    made.save(renamed, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(hf_config()))
    dense = pretrained.read(tmp_path)
    assert (dense.format, dense.model_config.heads, dense.heads_known) == ("huggingface", 3, True)
    assert dense.notes == ()
    np.testing.assert_allclose(logits(dense), made.vit_logits(weights, IMAGES), rtol=0, atol=1e-4)


def test_another_epsilon_is_told_and_changes_little(tmp_path):
    weights = made.timm()
    file = made.save(made.hugging_face(weights), tmp_path / "vit.safetensors")
    dense = pretrained.read(file, head_width=4)
    (note,) = dense.notes
    assert "1e-12" in note and "1e-06" in note
    want = made.vit_logits(weights, IMAGES, epsilon=1e-12)
    np.testing.assert_allclose(logits(dense), want, rtol=0, atol=1e-4)


def test_a_cct_computes_what_it_did(tmp_path):
    weights = made.cct()
    dense = pretrained.read(made.save(weights, tmp_path / "cct.safetensors"), head_width=4)
    np.testing.assert_allclose(logits(dense), made.cct_logits(weights, IMAGES), rtol=0, atol=1e-4)
    assert (dense.format, dense.model, dense.image_size, dense.num_classes) == ("cct", "cct", 6, 5)
    assert not dense.model_config.qkv_bias and dense.model_config.channels == 10


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_precisions_become_float32(dtype, tmp_path):
    weights = {name: value.astype(dtype) for name, value in made.timm().items()}
    dense = pretrained.read(made.save(weights, tmp_path / "vit.safetensors"), head_width=4)
    assert {leaf.dtype for leaf in jax.tree.leaves(dense.params)} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(dense.params["cls_token"], weights["cls_token"].astype("f4"))


def test_without_a_classifier(tmp_path):
    renamed = made.hugging_face(made.timm(), "")
    renamed = made.without(renamed, "classifier.weight", "classifier.bias")
    pooler = {"pooler.dense.weight": np.eye(12, dtype="f4"), "pooler.dense.bias": np.ones(12, "f4")}
    dense = pretrained.read(made.save(renamed | pooler, tmp_path / "m.safetensors"), head_width=4)
    assert dense.num_classes == 0 and "classifier" not in dense.params
    assert any("pooler.dense.weight" in note for note in dense.notes)


def test_head_width_is_64_unless_told(tmp_path):
    file = made.save(made.timm(width=128, layers=1), tmp_path / "vit.safetensors")
    assert pretrained.read(file).model_config.heads == 2
    assert pretrained.read(file, head_width=16).model_config.heads == 8


def test_labels_come_from_the_config_beside_it(tmp_path):
    made.save(made.hugging_face(made.timm()), tmp_path / "model.safetensors")
    named = {str(i): name for i, name in enumerate("abcde")}
    for told, want in ((named, tuple("abcde")), ({"0": "a"}, ()), (["a"], ())):
        (tmp_path / "config.json").write_text(json.dumps(hf_config(id2label=told)))
        assert pretrained.read(tmp_path).labels == want


# --- mistakes, a line each -----------------------------------------------------------------


def told(path, **options):
    with pytest.raises(UserError) as caught:
        pretrained.read(path, **{"head_width": 4} | options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda w: made.without(w, "blocks.1.norm2.bias"),
         "blocks.1.norm2.bias is missing, which a vit in timm's format has"),
        (lambda w: made.without(w, "cls_token"), "cls_token is missing"),
        (lambda w: made.without(w, "pos_embed"), "pos_embed is missing"),
        (lambda w: w | {"blocks.1.ls1.gamma": w["norm.bias"]}, "blocks.1.ls1.gamma is unexpected"),
        (lambda w: w | {"dist_token": w["cls_token"]}, "dist_token is unexpected"),
        (lambda w: w | {"blocks.1.mlp.fc2.weight": w["blocks.1.mlp.fc2.weight"][:, :7].copy()},
         "blocks.1.mlp.fc2.weight has shape [12, 7], expected [12, 10] as the rest"),
        (lambda w: w | {"blocks.0.attn.qkv.bias": w["norm.bias"]},
         "blocks.0.attn.qkv.bias has shape [12], expected [36]"),
        (lambda w: w | {"pos_embed": w["pos_embed"][:, :9].copy()},
         "pos_embed has 9 positions, which is not that of a class token and a square grid"),
        (lambda w: w | {"pos_embed": w["norm.bias"]}, "pos_embed has shape [12], expected 3 axes"),
        (lambda w: w | {"norm.bias": np.ones(12, np.int32)},
         "norm.bias holds I32, not floating-point numbers"),
    ],
)  # fmt: skip
def test_the_first_wrong_tensor_is_named(change, line, tmp_path):
    file = made.save(change(made.timm()), tmp_path / "vit.safetensors")
    assert told(file).startswith(f"{file}: {line}")


def test_a_distilled_model_is_told(tmp_path):
    weights = made.hugging_face(made.timm(), "deit.")
    position = weights["deit.embeddings.position_embeddings"]
    weights["deit.embeddings.position_embeddings"] = np.concatenate([position[:, :1], position], 1)
    weights["deit.embeddings.distillation_token"] = weights["deit.embeddings.cls_token"]
    file = made.save(weights, tmp_path / "deit.safetensors")
    assert "deit.embeddings.distillation_token is unexpected" in told(file)


def test_another_tokenizer_is_told(tmp_path):
    weights = made.cct()
    name = "tokenizer.conv_layers.0.0.weight"
    weights[name] = np.ones((12, 3, 7, 7), np.float32)
    line = told(made.save(weights, tmp_path / "cct.safetensors"))
    assert f"{name} has shape [12, 3, 7, 7], expected [12, 3, 3, 3]" in line


def test_another_model_is_told(tmp_path):
    file = made.save({"conv1.weight": np.ones(3, "f4")}, tmp_path / "resnet.safetensors")
    assert re.search("no model in a known format.*timm.*conv1.weight", told(file))
    assert "none and so on" in told(made.save({}, tmp_path / "empty.safetensors"))


def test_heads_that_do_not_divide_are_told(tmp_path):
    file = made.save(made.timm(), tmp_path / "vit.safetensors")
    for width in (None, 5, 0):
        line = told(file, head_width=width)
        assert f"heads of {64 if width is None else width}" in line
        assert "config.model.head_width" in line


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ("{", "config.json is not JSON"),
        ("[1]", "config.json is not a JSON object"),
        (
            json.dumps(hf_config(num_attention_heads=5)),
            "5 heads, as it is described, do not divide",
        ),
        (json.dumps(hf_config(num_attention_heads="3")), "num_attention_heads must be a positive"),
        (json.dumps(hf_config(layer_norm_eps="small")), "layer_norm_eps must be a number"),
        (json.dumps(hf_config(hidden_act="quick_gelu")), "hidden_act=quick_gelu"),
    ],
)
def test_a_wrong_config_beside_it_is_told(config, line, tmp_path):
    made.save(made.hugging_face(made.timm()), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(config)
    assert line in told(tmp_path)


@pytest.mark.parametrize("start", [b"PK\x03\x04", b"\x80\x02", b"\x80\x04"])
def test_a_pickle_is_told_how_to_convert(start, tmp_path):
    for name in ("weights.pth", "pytorch_model.bin"):
        (tmp_path / name).write_bytes(start + b"x" * 100)
        line = told(tmp_path / name)
        assert name in line and "safetensors.torch.save_file" in line
    # A folder of the kind that Hugging Face had before.
    line = told(tmp_path)
    assert "pytorch_model.bin" in line and "safetensors.torch.save_file" in line


def test_a_file_that_begins_like_a_pickle_is_read(tmp_path):
    """The first eight bytes are the header's length: 640 is b"\\x80\\x02" and zeros."""
    weights = {
        name: made.timm(layers=1)[name] for name in ("cls_token", "pos_embed", "norm.weight")
    }
    for length in range(0, 600):
        data = safetensors.numpy.save(weights, {"padding": "x" * length})
        if data[:2] == b"\x80\x02":
            break
    (tmp_path / "vit.safetensors").write_bytes(data)
    assert data[:8] == b"\x80\x02" + bytes(6)
    assert "patch_embed.proj.weight is missing" in told(tmp_path / "vit.safetensors")


def test_a_file_that_cannot_be_read_is_told(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise PermissionError(13, "Permission denied")

    file = made.save(made.timm(), tmp_path / "vit.safetensors")
    monkeypatch.setattr("safetensors.safe_open", fail)
    assert told(file) == f"{file} cannot be read: Permission denied"


def test_other_files_and_places_are_told(tmp_path):
    assert "does not exist" in told(tmp_path / "nowhere")
    assert "holds no model.safetensors" in told(tmp_path)
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    assert "run holds a run that has no model yet" in told(tmp_path / "run")
    (tmp_path / "notes.txt").write_text("no weights at all, but a text of some length\n" * 3)
    assert "not a safetensors file, or damaged" in told(tmp_path / "notes.txt")
    whole = safetensors.numpy.save(made.timm())
    (tmp_path / "cut.safetensors").write_bytes(whole[:-10])
    assert "not a safetensors file, or damaged" in told(tmp_path / "cut.safetensors")
    np.savez(tmp_path / "arrays.npz", x=np.ones(3))
    assert "not a safetensors file, or damaged" in told(tmp_path / "arrays.npz")
    (tmp_path / "empty").write_bytes(b"")
    assert "not a safetensors file, or damaged" in told(tmp_path / "empty")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert "several files" in told(tmp_path)
