"""Starting from weights that people have, and giving weights back in the same formats.

`read` takes a safetensors file of timm, Hugging Face or SHI-Labs' CCT, or a model of this project,
and tells what is in it; `fit` makes of that the parameters that a config asks for; `export` writes
a model under the names of one of those formats.
"""

from barter_jax.pretrained.exporter import export, hugging_face_config
from barter_jax.pretrained.fitting import Fitted, fit
from barter_jax.pretrained.formats import FORMATS
from barter_jax.pretrained.importer import Dense, read

__all__ = ["FORMATS", "Dense", "Fitted", "export", "fit", "hugging_face_config", "read"]
