"""The parts of `python -m barter_jax.benchmark`: cases, measuring, and what is made of it."""
