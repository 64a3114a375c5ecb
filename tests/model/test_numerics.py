"""Activation with its gradient, and top k, against those of JAX and Flax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jformer.model.numerics import relu, top_tokens


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
