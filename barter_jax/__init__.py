"""barter_jax: training that keeps a Transformer physically small from the first step."""
