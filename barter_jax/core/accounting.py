"""Budgets, parameters and training FLOPs of a Transformer at a topology, in the paper's counting.

Everything here is arithmetic on `Dimensions`; the models supply those numbers, so this module
knows no model. The budget rule and both counting conventions were derived from the paper's tables
(arXiv 2610.16147), which they reproduce to the last printed digit.
"""

from __future__ import annotations

import dataclasses

from barter_jax.core.topology import Budget, Topology


@dataclasses.dataclass(frozen=True)
class Dimensions:
    """What the cost of a Transformer depends on besides its topology.

    Attributes:
      layers: Transformer layers, L.
      width: embedding width, d.
      head_width: width of one head, dh.
      heads: heads per layer of the dense model, H.
      channels: FFN channels per layer of the dense model, F.
      qkv_bias: whether the query, key and value projections have biases.
      tokens: tokens per image that the layers see, class token included, N.
      other_parameters: parameters that belong to no unit (embedding, norms, output biases,
        classifier).
      embedding_macs: multiply-accumulates per image of the patch embedding or tokenizer.
      head_macs: multiply-accumulates per image of pooling and classifier.
    """

    layers: int
    width: int
    head_width: int
    heads: int
    channels: int
    qkv_bias: bool
    tokens: int
    other_parameters: int
    embedding_macs: int
    head_macs: int

    @property
    def parameters_per_head(self) -> int:
        return 4 * self.width * self.head_width + 3 * self.head_width * self.qkv_bias

    @property
    def parameters_per_channel(self) -> int:
        return 2 * self.width + 1

    @property
    def dense(self) -> Topology:
        """The topology of the dense model."""
        return Topology((self.heads,) * self.layers, (self.channels,) * self.layers)


def compact_budget(dims: Dimensions, density: float) -> Budget:
    """The budgets of a compact model at a density.

    The compact model is given as many parameters as an unstructured masked model of that density
    would have with all its biases kept; heads are rounded first, and channels take up what that
    rounding left over.

    Args:
      dims: the dense model.
      density: share of the Transformer weights that a masked model would keep, in (0, 1].

    Raises:
      ValueError: the density is outside (0, 1].
    """
    if not 0 < density <= 1:
        raise ValueError(f"density must be in (0, 1], got {density:g}")
    attention = dims.layers * dims.heads * 4 * dims.width * dims.head_width
    ffn = dims.layers * dims.channels * 2 * dims.width
    qkv_biases = dims.layers * 3 * dims.heads * dims.head_width * dims.qkv_bias
    fc1_biases = dims.layers * dims.channels
    heads = round((density * attention + qkv_biases) / dims.parameters_per_head)
    left = density * (attention + ffn) + qkv_biases + fc1_biases
    channels = round((left - heads * dims.parameters_per_head) / dims.parameters_per_channel)
    return Budget(heads, channels)


def lowest_density(dims: Dimensions, min_units: int = 1) -> float:
    """The lowest density, to three decimals, that gives every layer `min_units` of each type."""
    need = dims.layers * min_units
    for thousandth in range(1, 1001):
        budget = compact_budget(dims, thousandth / 1000)
        if budget.heads >= need and budget.channels >= need:
            return thousandth / 1000
    raise ValueError(
        f"even the dense model has fewer than {min_units} heads or channels in each layer"
    )


def parameters(dims: Dimensions, topology: Topology) -> int:
    """Parameters of the whole model at a topology."""
    budget = topology.budget
    return (
        dims.other_parameters
        + budget.heads * dims.parameters_per_head
        + budget.channels * dims.parameters_per_channel
    )


def forward_macs(dims: Dimensions, topology: Topology) -> int:
    """Multiply-accumulates of one forward pass per image.

    Counted: convolutions, linear layers, both attention products, pooling and classifier.
    Nothing else is (no softmax, norm, activation, bias or residual).
    """
    n, d, dh = dims.tokens, dims.width, dims.head_width
    per_head = 4 * n * d * dh + 2 * n * n * dh
    per_channel = 2 * n * d
    budget = topology.budget
    blocks = budget.heads * per_head + budget.channels * per_channel
    return dims.embedding_macs + blocks + dims.head_macs


def training_flops(dims: Dimensions, topology: Topology, *, gradient_of_image: bool = True) -> int:
    """FLOPs per image of one training step: forward and backward.

    Six FLOPs for each multiply-accumulate of the forward pass. For fine-tuning the paper leaves
    out the gradient with respect to the input image, which nobody uses: pass
    `gradient_of_image=False`.
    """
    flops = 6 * forward_macs(dims, topology)
    return flops if gradient_of_image else flops - 2 * dims.embedding_macs
