"""The method, pure: numpy, jax and optax only, and no knowledge of any model."""
