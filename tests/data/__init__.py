"""Tests of barter_jax.data."""
