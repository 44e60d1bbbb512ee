"""The formats: which tensor of theirs is which parameter of ours, in one table each.

The tables are read in both directions. Their names are those of the public code: timm's
`VisionTransformer`, Hugging Face's `ViTForImageClassification`, SHI-Labs' `CCT`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import jax

from barter_jax import models
from barter_jax.core.topology import Topology
from barter_jax.core.units import path_names
from barter_jax.pretrained.layouts import (
    CONVOLUTION,
    FLAT,
    FROM_HEADS,
    LINEAR,
    PATCHES,
    SAME,
    Layout,
    Shape,
    fused,
)


class Entry(NamedTuple):
    """One tensor of theirs.

    Attributes:
      theirs: its name; in a table `{layer}` and `{prefix}` stand for what varies.
      ours: paths of the parameters in it, keys joined by `/`, likewise with `{layer}`.
      layout: how the two lie.
    """

    theirs: str
    ours: tuple[str, ...]
    layout: Layout


@dataclasses.dataclass(frozen=True)
class Format:
    """A naming of the tensors of one architecture.

    Attributes:
      name: what it is called on the command line.
      model: the architecture, a key of `models.MODELS`.
      table: its entries, in the order in which the first mismatch is looked for.
      epsilon: LayerNorm's epsilon in the models that use this format.
      prefixes: what `{prefix}` may be; the first one is written.
      ignored: names that may be there and are not used for classifying.
      qkv_bias: whether query, key and value may have biases.
    """

    name: str
    model: str
    table: tuple[Entry, ...]
    epsilon: float
    prefixes: tuple[str, ...] = ("",)
    ignored: tuple[str, ...] = ()
    qkv_bias: bool = True

    def entries(
        self, prefix: str, layers: int, qkv_bias: bool = True, classifier: bool = True
    ) -> list[Entry]:
        """The table of a model of so many layers, with the names it really has."""
        blocks = [e for e in self.table if "{layer}" in e.theirs]
        first = self.table.index(blocks[0])
        before, after = self.table[:first], self.table[first + len(blocks) :]
        found = [
            *(_filled(e, prefix, 0) for e in before),
            *(_filled(e, prefix, layer) for layer in range(layers) for e in blocks),
            *(_filled(e, prefix, 0) for e in after),
        ]
        return [
            e
            for e in found
            if (qkv_bias or not is_qkv_bias(e.ours[0]))
            and (classifier or not is_classifier(e.ours[0]))
        ]

    def pattern(self, prefix: str) -> re.Pattern[str]:
        """Matches the format's own names, of whichever block."""
        names = [re.escape(e.theirs.format(prefix=prefix, layer="LAYER")) for e in self.table]
        return re.compile("|".join(name.replace("LAYER", r"\d+") for name in names))

    def layers(self, prefix: str, names: Iterable[str]) -> int:
        """How many blocks the names tell of."""
        found = {0}
        stems = {e.theirs.partition("{layer}")[0] for e in self.table if "{layer}" in e.theirs}
        for stem in stems:
            numbered = re.compile(re.escape(stem.format(prefix=prefix)) + r"(\d+)\.")
            found |= {int(m[1]) + 1 for m in map(numbered.match, names) if m}
        return max(found)


def is_qkv_bias(path: str) -> bool:
    """Whether a path of ours is that of a bias of query, key or value."""
    return path.endswith(tuple(f"attention/{name}/bias" for name in QKV))


def is_classifier(path: str) -> bool:
    """Whether a path of ours belongs to the classifier."""
    return path.startswith("classifier/")


def _filled(entry: Entry, prefix: str, layer: int) -> Entry:
    return Entry(
        entry.theirs.format(prefix=prefix, layer=layer),
        tuple(path.format(layer=layer) for path in entry.ours),
        entry.layout,
    )


def _norm(theirs: str, ours: str) -> list[Entry]:
    return [
        Entry(f"{theirs}.weight", (f"{ours}/scale",), SAME),
        Entry(f"{theirs}.bias", (f"{ours}/bias",), SAME),
    ]


def _linear(theirs: str, ours: str, layout: Layout = LINEAR) -> list[Entry]:
    return [
        Entry(f"{theirs}.weight", (f"{ours}/kernel",), layout),
        Entry(f"{theirs}.bias", (f"{ours}/bias",), FLAT),
    ]


ATTENTION, MLP = "block_{layer}/attention", "block_{layer}/mlp"
QKV = ("query", "key", "value")


def _fused_qkv(theirs: str, bias: bool) -> list[Entry]:
    kernels, biases = (tuple(f"{ATTENTION}/{n}/{leaf}" for n in QKV) for leaf in ("kernel", "bias"))
    entries = [Entry(f"{theirs}.weight", kernels, fused(LINEAR))]
    return [*entries, Entry(f"{theirs}.bias", biases, fused(FLAT))] if bias else entries


TIMM = Format(
    "timm",
    "vit",
    (
        Entry("cls_token", ("cls_token",), SAME),
        Entry("pos_embed", ("position",), SAME),
        *_linear("patch_embed.proj", "embedding/projection", PATCHES),
        *_norm("blocks.{layer}.norm1", "block_{layer}/norm1"),
        *_fused_qkv("blocks.{layer}.attn.qkv", bias=True),
        *_linear("blocks.{layer}.attn.proj", f"{ATTENTION}/out", FROM_HEADS),
        *_norm("blocks.{layer}.norm2", "block_{layer}/norm2"),
        *_linear("blocks.{layer}.mlp.fc1", f"{MLP}/fc1"),
        *_linear("blocks.{layer}.mlp.fc2", f"{MLP}/fc2"),
        *_norm("norm", "norm"),
        *_linear("head", "classifier"),
    ),
    epsilon=1e-6,
)


def _hugging_face(block: str, qkv: Mapping[str, str], out: str, fc1: str, fc2: str) -> Format:
    """Hugging Face's ViT; the names inside a block have changed between versions."""
    return Format(
        "huggingface",
        "vit",
        (
            Entry("{prefix}embeddings.cls_token", ("cls_token",), SAME),
            Entry("{prefix}embeddings.position_embeddings", ("position",), SAME),
            *_linear(
                "{prefix}embeddings.patch_embeddings.projection", "embedding/projection", PATCHES
            ),
            *_norm(f"{block}.layernorm_before", "block_{layer}/norm1"),
            *(
                entry
                for name in QKV
                for entry in _linear(f"{block}.{qkv[name]}", f"{ATTENTION}/{name}")
            ),
            *_linear(f"{block}.{out}", f"{ATTENTION}/out", FROM_HEADS),
            *_norm(f"{block}.layernorm_after", "block_{layer}/norm2"),
            *_linear(f"{block}.{fc1}", f"{MLP}/fc1"),
            *_linear(f"{block}.{fc2}", f"{MLP}/fc2"),
            *_norm("{prefix}layernorm", "norm"),
            *_linear("classifier", "classifier"),
        ),
        epsilon=1e-12,
        prefixes=("vit.", "deit.", ""),
        ignored=("{prefix}pooler.dense.weight", "{prefix}pooler.dense.bias"),
    )


HUGGING_FACE = _hugging_face(
    "{prefix}encoder.layer.{layer}",
    {name: f"attention.attention.{name}" for name in QKV},
    out="attention.output.dense",
    fc1="intermediate.dense",
    fc2="output.dense",
)
# What `state_dict()` gives since transformers 5; `save_pretrained` still writes the names above.
HUGGING_FACE_STATE = _hugging_face(
    "{prefix}layers.{layer}",
    {name: f"attention.{name[0]}_proj" for name in QKV},
    out="attention.o_proj",
    fc1="mlp.fc1",
    fc2="mlp.fc2",
)

_CCT_BLOCK = "classifier.blocks.{layer}"
CCT = Format(
    "cct",
    "cct",
    (
        Entry("tokenizer.conv_layers.0.0.weight", ("tokenizer/kernel",), CONVOLUTION),
        Entry("classifier.positional_emb", ("position",), SAME),
        *_norm(f"{_CCT_BLOCK}.pre_norm", "block_{layer}/norm1"),
        *_fused_qkv(f"{_CCT_BLOCK}.self_attn.qkv", bias=False),
        *_linear(f"{_CCT_BLOCK}.self_attn.proj", f"{ATTENTION}/out", FROM_HEADS),
        *_norm(f"{_CCT_BLOCK}.norm1", "block_{layer}/norm2"),
        *_linear(f"{_CCT_BLOCK}.linear1", f"{MLP}/fc1"),
        *_linear(f"{_CCT_BLOCK}.linear2", f"{MLP}/fc2"),
        *_norm("classifier.norm", "norm"),
        *_linear("classifier.attention_pool", "pooling/score"),
        *_linear("classifier.fc", "classifier"),
    ),
    epsilon=1e-5,
    qkv_bias=False,
)

# What can be written, by name.
FORMATS: dict[str, Format] = {f.name: f for f in (TIMM, HUGGING_FACE, CCT)}
READABLE = (TIMM, HUGGING_FACE, HUGGING_FACE_STATE, CCT)
# This project's own files, whose names are our paths.
OWN = "barter_jax"
# The key of an exported file's metadata under which a JSON object says what shapes do not, in the
# words of Hugging Face's config.json; and the two words that are looked for.
EXPORTED = "barter_jax_export"
HEADS, EPSILON = "num_attention_heads", "layer_norm_eps"


def recognise(names: Iterable[str]) -> tuple[Format, str] | None:
    """The format and prefix that most of the names belong to; None where none of them does."""
    names = list(names)
    best, most = None, 0
    for known in READABLE:
        for prefix in known.prefixes:
            pattern = known.pattern(prefix)
            found = sum(pattern.fullmatch(name) is not None for name in names)
            if found > most:
                best, most = (known, prefix), found
    return best


def own_entries(paths: Iterable[str]) -> list[Entry]:
    """The table of this project's own files."""
    return [Entry(path.replace("/", "."), (path,), SAME) for path in paths]


def parameter_shapes(
    config: models.TransformerConfig, topology: Topology, image_size: int, num_classes: int
) -> dict[str, Shape]:
    """Shapes of a model's parameters by path, keys joined by `/`."""
    template = jax.eval_shape(
        lambda key: models.init_params(config, topology, image_size, num_classes, key),
        jax.random.key(0),
    )
    return {path: leaf.shape for path, leaf in flatten(template).items()}


def epsilon(config: models.TransformerConfig) -> float:
    """LayerNorm's epsilon in a model of ours."""
    return config.module(Topology((), ()), 1).norm_epsilon


def flatten(params) -> dict[str, object]:
    """Leaves by path, keys joined by `/`."""
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return {"/".join(path_names(path)): leaf for path, leaf in leaves}


def unflatten(leaves: Mapping[str, object]) -> dict[str, object]:
    """The nested dict of leaves by path."""
    tree: dict[str, object] = {}
    for path, leaf in leaves.items():
        *parents, last = path.split("/")
        node = tree
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = leaf
    return tree
