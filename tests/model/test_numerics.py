"""Norm and activation, with their gradients, and top k against those of JAX and Flax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jformer.model.layers import LayerNorm
from jformer.model.numerics import relu, top_tokens

B, L, D = 3, 5, 11


def random(*shape, seed=0, dtype="float32"):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("bfloat16", 0.01)])
@pytest.mark.parametrize("shift", [0.0, 30.0])
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


def test_relu_and_its_gradient_are_jaxs():
    x = jnp.array([-2.0, -0.0, 0.0, 1e-30, 3.0])

    def both(function):
        return jax.jit(jax.value_and_grad(lambda x: jnp.sum(function(x) * jnp.arange(1.0, 6))))(x)

    jax.tree.map(np.testing.assert_array_equal, both(relu), both(nn.relu))


@pytest.mark.parametrize(("V", "count"), [(7, 4), (4001, 1), (512, 16), (511, 16)])
@pytest.mark.parametrize("allowed", [1.0, 0.01, 0.0])
def test_the_top_tokens_are_those_of_a_sorted_list(V, count, allowed):
    """Also if few or none are allowed, and the others are -inf."""
    rng = np.random.default_rng(V)
    logits_WV = rng.permuted(np.tile(np.arange(V, dtype=np.float32), (5, 1)), axis=1)
    logits_WV = np.where(rng.random(logits_WV.shape) < allowed, logits_WV, -np.inf)
    values_WC, tokens_WC = jax.jit(top_tokens, static_argnums=1)(jnp.asarray(logits_WV), count)
    np.testing.assert_array_equal(values_WC, -np.sort(-logits_WV)[:, :count])
    np.testing.assert_array_equal(np.take_along_axis(logits_WV, tokens_WC, 1), values_WC)
    assert all(len(set(row)) == count for row in np.asarray(tokens_WC).tolist())
