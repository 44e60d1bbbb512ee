"""Settings of all tests: the CPU unless told otherwise, compiled code kept between runs."""

import os
import signal

import hypothesis

os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Most of the time goes into compiling what then runs for milliseconds.
if "xla_backend_optimization_level" not in os.environ.get("XLA_FLAGS", ""):
    quick = "--xla_backend_optimization_level=0"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {quick}".strip()

# A shell that starts the tests in the background has them ignore Ctrl-C, and whatever they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile(
    "tests",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    max_examples=25,
    # A busy machine is no reason to fail.
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("tests")


def pytest_configure(config):
    """Points JAX, which reads this when first imported, to a cache beside pytest's own."""
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    cache = getattr(config, "cache", None)
    if cache is not None:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache.mkdir("jax")))
