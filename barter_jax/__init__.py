"""barter_jax: training that keeps a Transformer physically small from the first step.

    import barter_jax
    model = barter_jax.load("runs/vit_tiny")
    probabilities = model(images)  # uint8 [n, size, size, 3]

For a model and a loop of your own, `barter_jax.Barter` holds the method's steps.
"""

from barter_jax.core.barter import Barter, Decision, Progress
from barter_jax.core.schedule import PlannedUpdate, plan_updates
from barter_jax.core.topology import Budget, Topology
from barter_jax.core.units import UnitAxis, UnitTable
from barter_jax.errors import RunError, UserError

__all__ = [
    "Barter",
    "Budget",
    "CompactModel",
    "Decision",
    "PlannedUpdate",
    "Progress",
    "RunError",
    "Topology",
    "UnitAxis",
    "UnitTable",
    "UserError",
    "load",
    "plan_updates",
]

__version__ = "0.1.0"


def __getattr__(name: str):
    # Loading models needs Flax; the core must not import it.
    if name in ("load", "CompactModel"):
        from barter_jax.deploy import model

        return getattr(model, name)
    raise AttributeError(f"module 'barter_jax' has no attribute {name!r}")
