"""The gradient by chunks against that of all rows at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jformer.model.transformer import logits_of
from jformer.training.fast_loss import gradient_by_chunks
from jformer.training.loss import loss_sums

B, T, V, D = 2, 5, 7, 11
LABELS = np.array([[4, 3, 6, 2, 0], [5, 2, 0, 0, 0]], np.int32)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.01)])
@pytest.mark.parametrize("biased", [False, True])
def test_the_gradient_by_chunks_is_that_of_all_rows_at_once(biased, dtype, tolerance):
    """In bfloat16, logits and their gradients have 8 bits: 0.4 % each, of the largest element."""
    rng = np.random.default_rng(5)
    states_BTD = jnp.asarray(rng.normal(size=(B, T, D)), dtype)
    bias_V = jnp.asarray(rng.normal(size=V), jnp.float32) if biased else None
    output = (jnp.asarray(rng.normal(size=(V, D)), jnp.float32), bias_V)

    def loss_of(states_BTD, output, labels_BT):
        sums = loss_sums(logits_of(states_BTD, *output, jnp.einsum), labels_BT, 0.1)
        return sums["loss"] / 6, sums

    # The plain form computes in float32, from the values that the other rounds to.
    rounded = jax.tree.map(lambda x: x.astype(dtype).astype(jnp.float32), (states_BTD, output))
    plain = jax.grad(loss_of, argnums=(0, 1), has_aux=True)
    expected, expected_sums = plain(*rounded, jnp.asarray(LABELS))
    found, sums = gradient_by_chunks(loss_of, 2, states_BTD, output, LABELS)
    for name, total in expected_sums.items():
        assert float(sums[name]) == pytest.approx(float(total), rel=tolerance)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        limit = tolerance * float(jnp.max(jnp.abs(b)))
        np.testing.assert_allclose(np.asarray(a, np.float32), b, atol=limit)
