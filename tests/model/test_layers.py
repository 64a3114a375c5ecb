"""The residual's norm and the activation against JAX's and Flax's own, with their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jformer.model.layers import LayerNorm
from jformer.model.numerics import relu

B, L, D = 3, 5, 11


def random(*shape, seed=0, dtype="float32"):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("bfloat16", 0.01)])
@pytest.mark.parametrize("shift", [0.0, 3.0, 30.0])
def test_layer_norm_and_its_gradients_are_those_of_flax(dtype, tolerance, shift):
    """In bfloat16 the result and the gradient by x are rounded to 8 bits, 0.4 %."""
    tolerance *= 5 if shift == 30 else 1  # the squares are 900 times the variance
    x_BLD = (random(B, L, D) + shift).astype(dtype)
    weights_BLD = random(B, L, D, seed=1)
    params = {"scale": random(D, seed=2), "bias": random(D, seed=3)}

    def weighted(norm):
        def total(params, x_BLD):
            return jnp.sum(norm.apply({"params": params}, x_BLD) * weights_BLD)

        return total

    ours = jax.value_and_grad(weighted(LayerNorm(1e-6)), argnums=(0, 1))(params, x_BLD)
    flax = nn.LayerNorm(1e-6, use_fast_variance=False)
    expected = jax.value_and_grad(weighted(flax), argnums=(0, 1))(params, x_BLD.astype(jnp.float32))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        scale = np.max(np.abs(b))
        np.testing.assert_allclose(np.asarray(a, np.float32), b, atol=tolerance * scale)


def test_layer_norm_of_equal_elements_is_the_bias():
    params = {"scale": jnp.ones(D), "bias": random(D)}
    x_BLD = jnp.full((1, 2, D), 0.1)
    gradient = jax.grad(lambda x: jnp.sum(LayerNorm(1e-6).apply({"params": params}, x)))(x_BLD)
    normed_BLD = LayerNorm(1e-6).apply({"params": params}, x_BLD)
    np.testing.assert_allclose(normed_BLD[0, 0], params["bias"], atol=1e-4)
    assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize("compiled", [True, False])
def test_relu_and_its_gradient_are_jaxs(compiled):
    x = jnp.array([-2.0, -0.0, 0.0, 1e-30, 3.0])

    def both(function):
        gradient = jax.grad(lambda x: jnp.sum(function(x) * jnp.arange(1.0, 6)))
        return (jax.jit(function), jax.jit(gradient)) if compiled else (function, gradient)

    for ours, jaxs in zip(both(relu), both(nn.relu), strict=True):
        np.testing.assert_array_equal(ours(x), jaxs(x))
