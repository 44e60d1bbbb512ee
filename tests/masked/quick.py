"""Compiling for tests: what runs for microseconds need not be optimised for half a minute."""

import functools

import jax

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
