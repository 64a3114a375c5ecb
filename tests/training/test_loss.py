"""The losses against the paper's smoothed distribution written out, token by token."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jformer.extras.annotated import cross_entropy_over_others
from jformer.training import loss
from jformer.training.loss import loss_sums, perplexity, r_drop_kl

B, T, V = 2, 5, 7
LOGITS = np.random.default_rng(0).normal(size=(B, T, V)).astype(np.float32) * 3
LABELS = np.array([[4, 3, 6, 2, 0], [5, 2, 0, 0, 0]], np.int32)
# By what shares the epsilon of the smoothing.
LOSSES = {
    "all": loss.cross_entropy,
    "others": functools.partial(cross_entropy_over_others, padding=True),
    "others but padding": cross_entropy_over_others,
}


def smoothed_labels(label, epsilon, over, entries=V):
    """The target distribution, entry by entry; padding is entry 0."""
    shares = {
        "all": [True] * entries,
        "others": [v != label for v in range(entries)],
        "others but padding": [v not in (label, 0) for v in range(entries)],
    }[over]
    return [
        (1 - epsilon if v == label else 0) + (epsilon / sum(shares) if shares[v] else 0)
        for v in range(entries)
    ]


def log_softmax(logits_V):
    normalizer = math.log(sum(math.exp(z) for z in logits_V))
    return [float(z) - normalizer for z in logits_V]


@pytest.mark.parametrize("over", LOSSES)
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.9])
def test_loss_is_the_cross_entropy_against_the_smoothed_labels(epsilon, over):
    loss_BT, nll_BT = LOSSES[over](jnp.asarray(LOGITS), jnp.asarray(LABELS), epsilon)
    for b, t in np.argwhere(LABELS != 0):
        log_probs_V, label = log_softmax(LOGITS[b, t]), LABELS[b, t]
        expected = -np.dot(smoothed_labels(label, epsilon, over), log_probs_V)
        assert float(loss_BT[b, t]) == pytest.approx(expected, rel=1e-5)  # float32
        assert float(nll_BT[b, t]) == pytest.approx(-log_probs_V[label], rel=1e-5)


@pytest.mark.parametrize(
    ("over", "loss", "least"),
    [
        ("all", 0.6680, 0.3897),
        ("others", 0.7073, 0.4637),
        ("others but padding", 0.6900, 0.4349),
    ],
)
def test_the_worked_example_of_the_differences(over, loss, least):
    """Five entries with probabilities .05 (padding), .1, .2, .6 (the label), .05; epsilon 0.1.

    `least` is the entropy of the target, which tensor2tensor, The Annotated Transformer and JoeyNMT
    take off, so that their loss can reach 0.
    """
    logits_11V = jnp.log(jnp.array([[[0.05, 0.1, 0.2, 0.6, 0.05]]]))
    loss_11, nll_11 = LOSSES[over](logits_11V, jnp.array([[3]]), 0.1)
    assert float(loss_11[0, 0]) == pytest.approx(loss, abs=5e-5)
    assert float(nll_11[0, 0]) == pytest.approx(-math.log(0.6), rel=1e-5)
    entropy = -sum(p * math.log(p) for p in smoothed_labels(3, 0.1, over, entries=5) if p)
    assert entropy == pytest.approx(least, abs=5e-5)


def test_logits_far_apart_or_far_from_zero_overflow_nowhere():
    logits_11V = jnp.array([[[1e4, -1e4, 0.0, 1e4 - 1]]])
    labels_11 = jnp.array([[3]])
    total, gradient = jax.value_and_grad(
        lambda logits_11V: loss.cross_entropy(logits_11V, labels_11, 0.0)[0].sum()
    )(logits_11V)
    # float32 has steps of 0.001 at 10,000.
    assert float(total) == pytest.approx(1 + math.log1p(math.exp(-1)), abs=1e-3)
    share = 1 / (1 + math.e)
    np.testing.assert_allclose(gradient[0, 0], [1 - share, 0, 0, share - 1], atol=1e-6)


def test_disagreement_is_the_mean_of_the_two_divergences():
    others = LOGITS + np.random.default_rng(1).normal(size=LOGITS.shape).astype(np.float32)
    apart_BT = r_drop_kl(jnp.asarray(LOGITS), jnp.asarray(others), jnp.asarray(LABELS))
    for b, t in np.ndindex(B, T):
        p_V, q_V = log_softmax(LOGITS[b, t]), log_softmax(others[b, t])
        both = [
            sum(math.exp(x) * (x - y) for x, y in zip(*pair, strict=True))
            for pair in ((p_V, q_V), (q_V, p_V))
        ]
        expected = sum(both) / 2 if LABELS[b, t] else 0
        assert float(apart_BT[b, t]) == pytest.approx(expected, rel=1e-4)


def test_perplexity_is_that_of_the_unsmoothed_likelihood():
    uniform = loss_sums(jnp.zeros((B, T, V)), jnp.asarray(LABELS), 0.1)
    assert perplexity(float(uniform["nll"]), float(uniform["tokens"])) == pytest.approx(V, rel=1e-6)
    assert perplexity(2.0, 4) == pytest.approx(math.exp(0.5))
    assert math.isfinite(perplexity(1e6, 1))  # JSON has no infinity
