"""The optimizer's state under masks: its parameter-shaped leaves, and its schedule's counter."""

from __future__ import annotations

from typing import Any

import jax
import optax

from barter_jax.errors import UserError
from barter_jax.masked.layers import Masks, hidden, mask_tree

PyTree = Any


def hide(
    tx: optax.GradientTransformation, opt_state: PyTree, params: PyTree, masks: Masks
) -> PyTree:
    """The state with zeros in every parameter-shaped leaf where a mask is False.

    Args:
      tx: the optimizer, masked, chained, in multi-steps or with injected hyperparameters.
      opt_state: its state.
      params: parameters, for their structure.
      masks: by name of the leaf.

    Raises:
      UserError: the state has leaves of other shapes for the parameters, as Adafactor has.
    """

    def one(leaf, mask):
        if mask is True or isinstance(leaf, optax.MaskedNode):
            return leaf
        if leaf.shape != mask.shape:
            raise UserError(
                f"the optimizer's state has shape {list(leaf.shape)} for a parameter of shape "
                f"{list(mask.shape)}: it cannot be masked; use adamw, sgd or lion"
            )
        return hidden(leaf, mask)

    return optax.tree_utils.tree_map_params(
        tx,
        one,
        opt_state,
        mask_tree(params, masks),
        is_leaf=lambda x: isinstance(x, optax.MaskedNode),
    )


def advance_schedules(opt_state: PyTree) -> PyTree:
    """The state of an optimizer that lets a step pass by without a gradient.

    The learning rate follows the run's steps, so the counters of optax's schedules go on. Those of
    moments (Adam's, for its bias correction) count gradients, so they stand still.
    """

    def is_schedule(node):
        return isinstance(node, optax.ScaleByScheduleState)

    return jax.tree.map(
        lambda node: node._replace(count=node.count + 1) if is_schedule(node) else node,
        opt_state,
        is_leaf=is_schedule,
    )
