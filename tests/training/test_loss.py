"""The loss against the paper's smoothed distribution written out, token by token."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jformer.training.loss import loss_sums, perplexity, token_losses

B, T, V = 2, 5, 7
LOGITS = np.random.default_rng(0).normal(size=(B, T, V)).astype(np.float32) * 3
LABELS = np.array([[4, 3, 6, 2, 0], [5, 2, 0, 0, 0]], np.int32)


def smoothed_cross_entropy(logits_V, label, epsilon):
    """Against the distribution (1 - epsilon) on the label and epsilon / V on every entry."""
    normalizer = math.log(sum(math.exp(z) for z in logits_V))
    total = 0.0
    for v, logit in enumerate(logits_V):
        probability = epsilon / V + (1 - epsilon if v == label else 0)
        total -= probability * (float(logit) - normalizer)
    return total


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.9])
def test_loss_is_the_cross_entropy_against_the_smoothed_labels(epsilon):
    loss_BT, nll_BT = token_losses(jnp.asarray(LOGITS), jnp.asarray(LABELS), epsilon)
    for b in range(B):
        for t in range(T):
            logits_V, label = LOGITS[b, t], LABELS[b, t]
            expected = smoothed_cross_entropy(logits_V, label, epsilon)
            assert float(loss_BT[b, t]) == pytest.approx(expected, rel=1e-5)
            expected = smoothed_cross_entropy(logits_V, label, 0)
            assert float(nll_BT[b, t]) == pytest.approx(expected, rel=1e-5)


def test_gradient_is_the_softmax_less_the_smoothed_label():
    gradient = jax.grad(lambda z: token_losses(z, jnp.asarray(LABELS), 0.1)[0].sum())(LOGITS)
    smoothed = np.full((B, T, V), 0.1 / V)
    np.put_along_axis(smoothed, LABELS[..., None], 0.9 + 0.1 / V, axis=-1)
    np.testing.assert_allclose(gradient, jax.nn.softmax(LOGITS) - smoothed, atol=1e-6)


def test_sums_leave_out_the_padding():
    sums = loss_sums(jnp.asarray(LOGITS), jnp.asarray(LABELS), 0.1)
    loss_BT, nll_BT = token_losses(jnp.asarray(LOGITS), jnp.asarray(LABELS), 0.1)
    real = LABELS != 0
    assert float(sums["tokens"]) == 6
    assert float(sums["loss"]) == pytest.approx(float(np.sum(loss_BT, where=real)), rel=1e-6)
    assert float(sums["nll"]) == pytest.approx(float(np.sum(nll_BT, where=real)), rel=1e-6)


def test_perplexity_is_that_of_the_unsmoothed_likelihood():
    uniform = loss_sums(jnp.zeros((B, T, V)), jnp.asarray(LABELS), 0.1)
    assert perplexity(uniform) == pytest.approx(V, rel=1e-6)
    assert perplexity({"loss": 0.0, "nll": 2.0, "tokens": 4}) == pytest.approx(math.exp(0.5))
    assert perplexity({"nll": 1e6, "tokens": 1}) == math.inf
