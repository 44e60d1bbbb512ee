"""Formulations for CPUs, with their backward passes written by hand.

Why each is faster with XLA's CPU backend (measured with jax 0.10; see `python -m
barter_jax.benchmark`): a product of matrices runs near the peak of the processor, while what
stands between products runs at the speed of memory. So the sums of the backward passes are products
with a vector, the narrower of two matrices is the one transposed, and nothing of the size of the
activations is made that need not be. Other dtypes than float32 take the plain way.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from barter_jax.models.ops import plain

# --- LayerNorm -----------------------------------------------------------------------------


def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> jax.Array:
    """As `plain.layer_norm`."""
    if x.dtype != jnp.float32:
        return plain.layer_norm(x, scale, bias, epsilon)
    return _layer_norm(x.reshape(-1, x.shape[-1]), scale, bias, epsilon).reshape(x.shape)


@jax.custom_vjp
def _layer_norm(x, scale, bias, epsilon):
    return _layer_norm_forward(x, scale, bias, epsilon)[0]


def _layer_norm_forward(x, scale, bias, epsilon):
    mean = jnp.mean(x, axis=1, keepdims=True)
    variance = jnp.maximum(jnp.mean(x * x, axis=1, keepdims=True) - mean * mean, 0)
    inverse = jax.lax.rsqrt(variance + epsilon)
    return (x - mean) * inverse * scale + bias, (x, mean, inverse, scale)


def _layer_norm_backward(kept, grad):
    x, mean, inverse, scale = kept
    # With n = (x - mean) * inverse and g = grad * scale, dx = inverse * (g - E[g] - n E[g n]).
    # Both averages over the width are products of grad and of grad * x with scale / width.
    averaging = (scale / x.shape[1])[:, None]
    grad_x = grad * x
    mean_g = grad @ averaging
    mean_gn = inverse * (grad_x @ averaging - mean * mean_g)
    dx = inverse * (grad * scale - mean_g - (x - mean) * inverse * mean_gn)
    # sum(grad * n) and sum(grad) over the rows, likewise, without making n.
    row = inverse.reshape(1, -1)
    shifted, d_bias = jnp.concatenate([row * mean.reshape(1, -1), jnp.ones_like(row)]) @ grad
    return dx, (row @ grad_x)[0] - shifted, d_bias, None


_layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)

# --- linear --------------------------------------------------------------------------------


def linear(x: jax.Array, kernel: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """As `plain.linear`."""
    if x.dtype != jnp.float32 or kernel.dtype != jnp.float32:
        return plain.linear(x, kernel, bias)
    rows = x.reshape(-1, x.shape[-1])
    y = _product(rows, kernel) if bias is None else _affine(rows, kernel, bias)
    return y.reshape(*x.shape[:-1], kernel.shape[1])


@jax.custom_vjp
def _product(x, kernel):
    return x @ kernel


def _product_forward(x, kernel):
    return x @ kernel, (x, kernel)


def _product_backward(kept, grad):
    x, kernel = kept
    return grad @ kernel.T, _transposed_product(x, grad)


_product.defvjp(_product_forward, _product_backward)


@jax.custom_vjp
def _affine(x, kernel, bias):
    return x @ kernel + bias


def _affine_forward(x, kernel, bias):
    return x @ kernel + bias, (x, kernel)


def _affine_backward(kept, grad):
    return *_product_backward(kept, grad), (jnp.ones((1, len(grad)), grad.dtype) @ grad)[0]


_affine.defvjp(_affine_forward, _affine_backward)


def _transposed_product(x, y):
    """`x.T @ y` for tall matrices, of which XLA transposes one: here the narrower one.

    Without the barriers XLA turns both into the same product, and transposes the wider one, say
    the residual stream for a layer of few channels.
    """
    barrier = jax.lax.optimization_barrier
    if x.shape[1] <= y.shape[1]:
        return barrier(x.T) @ y
    return barrier(barrier(y.T) @ x).T


# --- GELU ----------------------------------------------------------------------------------


def gelu(x: jax.Array) -> jax.Array:
    """As `plain.gelu`."""
    return _gelu(x) if x.dtype == jnp.float32 else plain.gelu(x)


@jax.custom_vjp
def _gelu(x):
    return x * _normal_cdf(x)


def _gelu_forward(x):
    return _gelu(x), x


def _gelu_backward(x, grad):
    density = jnp.exp(-0.5 * x * x) * np.float32(1 / math.sqrt(2 * math.pi))
    return (grad * (_normal_cdf(x) + x * density),)


_gelu.defvjp(_gelu_forward, _gelu_backward)


def _normal_cdf(x):
    return 0.5 * (1 + jax.lax.erf(x * np.float32(math.sqrt(0.5))))


# --- attention -----------------------------------------------------------------------------


def attend(
    query: jax.Array, key: jax.Array, value: jax.Array, keep: plain.Keep | None = None
) -> jax.Array:
    """As `plain.attend`."""
    if query.dtype != jnp.float32:
        return plain.attend(query, key, value, keep)
    batch, tokens, heads, width = query.shape

    def flat(x):  # heads before the batch: the order of the mask
        return jnp.transpose(x, (2, 0, 1, 3)).reshape(heads * batch, tokens, width)

    mask = None if keep is None else keep.mask.reshape(heads * batch, tokens, tokens)
    share = 1.0 if keep is None else keep.share
    mixed = _attend(flat(query), flat(key), flat(value), mask, share)
    return jnp.transpose(mixed.reshape(heads, batch, tokens, width), (1, 2, 0, 3))


def _batched(x, y, x_axis, y_axis):
    """Product of `[b, ., .]` and `[b, ., .]` over one axis of each."""
    return jax.lax.dot_general(x, y, (((x_axis,), (y_axis,)), ((0,), (0,))))


@jax.custom_vjp
def _attend(query, key, value, mask, share):
    return _attend_forward(query, key, value, mask, share)[0]


def _attend_forward(query, key, value, mask, share):
    # Keys before queries: sums over the keys then run along the vectors of the processor.
    logits = _batched(key, query * query.shape[-1] ** -0.5, 2, 2)
    powers = jnp.exp(logits - jnp.max(logits, axis=1, keepdims=True))
    weights = powers / jnp.sum(powers, axis=1, keepdims=True)
    mixed = _batched(_dropped(weights, mask, share), value, 1, 1)
    return mixed, (query, key, value, mask, share, weights, mixed)


def _attend_backward(kept, grad):
    query, key, value, mask, share, weights, mixed = kept
    d_value = _batched(_dropped(weights, mask, share), grad, 2, 1)
    d_weights = _dropped(_batched(value, grad, 2, 2), mask, share)
    # The sum over the keys of weight times its gradient is that over the width of mixed * grad.
    total = jnp.sum(grad * mixed, axis=-1)[:, None, :]
    d_logits = weights * (d_weights - total) * query.shape[-1] ** -0.5
    return _batched(d_logits, key, 1, 1), _batched(d_logits, query, 2, 1), d_value, None, None


_attend.defvjp(_attend_forward, _attend_backward)


def _dropped(x, mask, share):
    return x if mask is None else jnp.where(mask, x / share, 0)


# --- CCT's tokenizer -----------------------------------------------------------------------

# Offsets in a pooling window in the order in which the first of equal values wins.
_WINDOW = tuple((y, x) for y in (-1, 0, 1) for x in (-1, 0, 1))
_NONE = len(_WINDOW)


def tokenize(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """As `plain.tokenize`."""
    if images.dtype != jnp.float32 or kernel.dtype != jnp.float32:
        return plain.tokenize(images, kernel)
    return _tokenize(images, kernel)


@jax.custom_vjp
def _tokenize(images, kernel):
    return _tokenize_forward(images, kernel)[0]


def _tokenize_forward(images, kernel):
    """The pooling needs the convolution's rows and columns by parity, so it is made that way.

    Window i of a row covers 2i - 1, 2i and 2i + 1: odd number i - 1, even number i, odd number i.
    """
    _, height, width, _ = images.shape
    rows, columns = -(-height // 2), -(-width // 2)
    flat = kernel.reshape(-1, kernel.shape[-1])
    phases = {
        parity: _grown(_patches(images, *parity) @ flat, rows, columns)
        for parity in ((0, 0), (0, 1), (1, 0), (1, 1))
    }
    # What lies outside counts as 0, and so does what is negative: ReLU makes the same of both.
    best = jnp.zeros_like(phases[0, 0])
    winner = jnp.full(best.shape, _NONE, jnp.uint8)
    for number, (y, x) in enumerate(_WINDOW):
        value = phases[y % 2, x % 2]
        value = _later(value, 1) if y < 0 else value
        value = _later(value, 2) if x < 0 else value
        winner = jnp.where(value > best, np.uint8(number), winner)
        best = jnp.maximum(best, value)
    return best, (images, kernel, winner)


def _tokenize_backward(kept, grad):
    images, kernel, winner = kept
    flat = kernel.reshape(-1, kernel.shape[-1])
    d_images, d_kernel = jnp.zeros_like(images), jnp.zeros_like(flat)
    for parity in ((0, 0), (0, 1), (1, 0), (1, 1)):
        patches, to_images = jax.vjp(lambda i, parity=parity: _patches(i, *parity), images)
        d_phase = jnp.zeros_like(grad)
        for number, (y, x) in enumerate(_WINDOW):
            if (y % 2, x % 2) != parity:
                continue
            part = jnp.where(winner == number, grad, 0)
            part = _sooner(part, 1) if y < 0 else part
            part = _sooner(part, 2) if x < 0 else part
            d_phase = d_phase + part
        d_phase = d_phase[:, : patches.shape[1], : patches.shape[2]]
        d_kernel = d_kernel + _transposed_product(
            patches.reshape(-1, len(flat)), d_phase.reshape(-1, flat.shape[1])
        )
        d_images = d_images + to_images(d_phase @ flat.T)[0]
    return d_images, d_kernel.reshape(kernel.shape)


_tokenize.defvjp(_tokenize_forward, _tokenize_backward)


def _patches(images, row, column):
    """The 3x3 surroundings of every other pixel: `[batch, i, j, 27]` for pixel (2i + row, ...)."""
    _, height, width, _ = images.shape
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    parts = [
        padded[:, row + y : height + y : 2, column + x : width + x : 2]
        for y in range(3)
        for x in range(3)
    ]
    return jnp.concatenate(parts, axis=-1)


def _grown(x, rows, columns):
    return jnp.pad(x, ((0, 0), (0, rows - x.shape[1]), (0, columns - x.shape[2]), (0, 0)))


def _later(x, axis):
    """Shifted by one along an axis: element i is the old i - 1, the first is 0."""
    before = [(int(i == axis), 0) for i in range(x.ndim)]
    return jax.lax.slice_in_dim(jnp.pad(x, before), 0, x.shape[axis], axis=axis)


def _sooner(x, axis):
    """Element i is the old i + 1, the last is 0: what `_later` does, backwards."""
    after = [(0, int(i == axis)) for i in range(x.ndim)]
    return jax.lax.slice_in_dim(jnp.pad(x, after), 1, x.shape[axis] + 1, axis=axis)
