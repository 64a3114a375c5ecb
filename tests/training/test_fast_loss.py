"""The loss of training against the plain form, with JAX's own gradients."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jformer.extras.annotated import cross_entropy_over_others
from jformer.training import loss
from jformer.training.fast_loss import cross_entropy, loss_by_chunks
from jformer.training.loss import loss_sums

B, T, V = 2, 5, 7
LOGITS = np.random.default_rng(0).normal(size=(B, T, V)).astype(np.float32) * 3
LABELS = np.array([[4, 3, 6, 2, 0], [5, 2, 0, 0, 0]], np.int32)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_loss_and_likelihood_have_the_gradient_of_the_plain_form(backend, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    weights_2BT = np.random.default_rng(2).normal(size=(2, B, T)).astype(np.float32)

    def total(losses):
        def of_logits(logits_BTV):
            both = jnp.stack(losses(logits_BTV, jnp.asarray(LABELS), 0.1))
            return jnp.sum(both * weights_2BT)

        return jax.value_and_grad(of_logits)(jnp.asarray(LOGITS))

    (ours, gradient_BTV), (plain, expected_BTV) = total(cross_entropy), total(loss.cross_entropy)
    assert float(ours) == pytest.approx(float(plain), rel=1e-5)  # float32
    np.testing.assert_allclose(gradient_BTV, expected_BTV, atol=1e-6)


def test_logits_far_apart_or_far_from_zero_overflow_nowhere():
    logits_11V = jnp.array([[[1e4, -1e4, 0.0, 1e4 - 1]]])
    labels_11 = jnp.array([[3]])
    total, gradient = jax.value_and_grad(
        lambda logits_11V: cross_entropy(logits_11V, labels_11, 0.0)[0].sum()
    )(logits_11V)
    # float32 has steps of 0.001 at 10,000.
    assert float(total) == pytest.approx(1 + math.log1p(math.exp(-1)), abs=1e-3)
    share = 1 / (1 + math.e)
    np.testing.assert_allclose(gradient[0, 0], [1 - share, 0, 0, share - 1], atol=1e-6)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize(
    ("losses", "dtype", "tolerance"),
    [
        (cross_entropy, "float32", 1e-5),
        (cross_entropy, "bfloat16", 0.01),
        (cross_entropy_over_others, "float32", 1e-5),
    ],
)
def test_the_loss_in_chunks_is_the_plain_loss_with_jaxs_own_gradients(
    backend, losses, dtype, tolerance, monkeypatch
):
    """In bfloat16, logits and their gradients have 8 bits: 0.4 % each, of the largest element."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    D, rng, labels_BT = 11, np.random.default_rng(5), jnp.asarray(LABELS)
    states_BTD = jnp.asarray(rng.normal(size=(B, T, D)), dtype)
    output_VD = jnp.asarray(rng.normal(size=(V, D)), jnp.float32)
    # The plain form computes in float32, from the values that the other rounds to.
    rounded_VD = output_VD.astype(dtype).astype(jnp.float32)

    def plain(states_BTD, output_VD):
        form = loss.cross_entropy if losses is cross_entropy else losses
        sums = loss_sums(states_BTD @ output_VD.T, labels_BT, 0.1, token_losses=form)
        return sums["loss"] / 6

    def in_chunks(states_BTD, output_VD):
        def sums_of(logits_BTV, labels_BT, means_BT):
            return loss_sums(logits_BTV, labels_BT, 0.1, means_BT, losses)

        return loss_by_chunks(sums_of, 2, dtype, states_BTD, output_VD, labels_BT, 6.0)[0]

    arguments = states_BTD.astype(jnp.float32), rounded_VD
    expected, gradients = jax.value_and_grad(plain, argnums=(0, 1))(*arguments)
    total, ours = jax.value_and_grad(in_chunks, argnums=(0, 1))(states_BTD, output_VD)
    assert float(total) == pytest.approx(float(expected), rel=tolerance)
    for ours_, plain_ in zip(ours, gradients, strict=True):
        limit = tolerance * float(jnp.max(jnp.abs(plain_)))
        np.testing.assert_allclose(ours_.astype(np.float32), plain_, atol=limit)
