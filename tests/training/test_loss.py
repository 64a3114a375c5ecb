"""The loss against the paper's smoothed distribution written out, token by token."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jformer.training.loss import (
    SHARING,
    loss_by_chunks,
    loss_sums,
    perplexity,
    r_drop_kl,
    statistics_in_one_pass,
)
from jformer.training.loss import cross_entropy as losses

B, T, V = 2, 5, 7
LOGITS = np.random.default_rng(0).normal(size=(B, T, V)).astype(np.float32) * 3
LABELS = np.array([[4, 3, 6, 2, 0], [5, 2, 0, 0, 0]], np.int32)


def smoothed_labels(label, epsilon, over):
    """The target distribution, entry by entry; padding is entry 0."""
    shares = {
        "all": [True] * V,
        "others": [v != label for v in range(V)],
        "others_but_padding": [v not in (label, 0) for v in range(V)],
    }[over]
    return [
        (1 - epsilon if v == label else 0) + (epsilon / sum(shares) if shares[v] else 0)
        for v in range(V)
    ]


def cross_entropy(logits_V, target_V):
    normalizer = math.log(sum(math.exp(z) for z in logits_V))
    return -sum(p * (float(z) - normalizer) for z, p in zip(logits_V, target_V, strict=True))


@pytest.mark.parametrize("over", SHARING)
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.9])
def test_loss_is_the_cross_entropy_against_the_smoothed_labels(epsilon, over):
    loss_BT, nll_BT = losses(jnp.asarray(LOGITS), jnp.asarray(LABELS), epsilon, smoothing_over=over)
    for b, t in np.argwhere(LABELS != 0):
        logits_V, label = LOGITS[b, t], LABELS[b, t]
        expected = cross_entropy(logits_V, smoothed_labels(label, epsilon, over))
        assert float(loss_BT[b, t]) == pytest.approx(expected, rel=1e-5)
        expected = cross_entropy(logits_V, smoothed_labels(label, 0, over))
        assert float(nll_BT[b, t]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("over", "loss", "least"),
    [("all", 0.6680, 0.3897), ("others", 0.7073, 0.4637), ("others_but_padding", 0.6900, 0.4349)],
)
def test_the_worked_example_of_the_paper_map(over, loss, least):
    """Five entries with probabilities .05 (padding), .1, .2, .6 (the label), .05; epsilon 0.1.

    `least` is the entropy of the target, which tensor2tensor, The Annotated Transformer and JoeyNMT
    take off, so that their loss can reach 0.
    """
    logits_11V = jnp.log(jnp.array([[[0.05, 0.1, 0.2, 0.6, 0.05]]]))
    loss_11, nll_11 = losses(logits_11V, jnp.array([[3]]), 0.1, smoothing_over=over)
    assert float(loss_11[0, 0]) == pytest.approx(loss, abs=5e-5)
    assert float(nll_11[0, 0]) == pytest.approx(-math.log(0.6), rel=1e-5)
    entries = {"all": 5, "others": 4, "others_but_padding": 3}[over]
    label = 0.9 + (0.1 / 5 if over == "all" else 0)
    others = [0.1 / entries] * (entries - (over == "all"))
    entropy = -sum(p * math.log(p) for p in [label, *others])
    assert entropy == pytest.approx(least, abs=5e-5)


@pytest.mark.parametrize("over", SHARING)
def test_gradient_is_the_softmax_less_the_smoothed_label(over):
    scales_BT = np.random.default_rng(2).normal(size=(B, T)).astype(np.float32)

    def loss(logits_BTV):
        loss_BT, _ = losses(logits_BTV, jnp.asarray(LABELS), 0.1, smoothing_over=over)
        return jnp.sum(loss_BT * scales_BT)

    gradient = jax.grad(loss)(jnp.asarray(LOGITS))
    for b, t in np.argwhere(LABELS != 0):
        probs_V = np.exp(LOGITS[b, t]) / np.exp(LOGITS[b, t]).sum()
        expected = (probs_V - smoothed_labels(LABELS[b, t], 0.1, over)) * scales_BT[b, t]
        np.testing.assert_allclose(gradient[b, t], expected, atol=1e-6)


def test_the_likelihood_has_its_own_gradient():
    gradient = jax.grad(lambda logits_BTV: losses(logits_BTV, jnp.asarray(LABELS), 0.1)[1].sum())(
        jnp.asarray(LOGITS)
    )
    expected = np.array(jax.nn.softmax(LOGITS))
    np.put_along_axis(
        expected, LABELS[..., None], np.take_along_axis(expected, LABELS[..., None], -1) - 1, -1
    )
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_logits_far_apart_or_far_from_zero_overflow_nowhere():
    logits_11V = jnp.array([[[1e4, -1e4, 0.0, 1e4 - 1]]])
    labels_11 = jnp.array([[3]])
    loss, gradient = jax.value_and_grad(
        lambda logits_11V: losses(logits_11V, labels_11, 0.0)[0].sum()
    )(logits_11V)
    # float32 has steps of 0.001 at 10,000.
    assert float(loss) == pytest.approx(1 + math.log1p(math.exp(-1)), abs=1e-3)
    share = 1 / (1 + math.e)
    np.testing.assert_allclose(gradient[0, 0], [1 - share, 0, 0, share - 1], atol=1e-6)


def test_one_pass_over_the_logits_finds_their_maximum_sum_and_label():
    logits_BTV = np.concatenate([LOGITS * 30, np.full((1, T, V), -1e30, np.float32)])
    logits_BTV[0, 0, 2] = -np.inf
    labels_BT = np.concatenate([LABELS, LABELS[:1]])
    max_BT, sum_BT, label_BT = statistics_in_one_pass(logits_BTV, labels_BT)
    np.testing.assert_array_equal(max_BT, logits_BTV.max(-1))
    expected_BT = np.exp(logits_BTV - logits_BTV.max(-1, keepdims=True)).sum(-1)
    np.testing.assert_allclose(sum_BT, expected_BT, rtol=1e-6)
    expected_BT = np.take_along_axis(logits_BTV, labels_BT[..., None], -1)[..., 0]
    np.testing.assert_array_equal(label_BT, expected_BT)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("over", SHARING)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.01)])
def test_the_loss_in_chunks_is_the_plain_loss_with_jaxs_own_gradients(
    backend, over, dtype, tolerance, monkeypatch
):
    """In bfloat16, logits and their gradients have 8 bits: 0.4 % each, of the largest element."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    D, rng = 11, np.random.default_rng(5)
    states_BTD = jnp.asarray(rng.normal(size=(B, T, D)), dtype)
    output_VD = jnp.asarray(rng.normal(size=(V, D)), jnp.float32)
    # The plain form computes in float32, from the values that the other rounds to.
    rounded_VD = output_VD.astype(dtype).astype(jnp.float32)

    def plain(states_BTD, output_VD):
        log_probs_BTV = jax.nn.log_softmax(states_BTD @ output_VD.T)
        targets = [[smoothed_labels(label, 0.1, over) for label in row] for row in LABELS]
        loss_BT = -jnp.sum(log_probs_BTV * jnp.array(targets), axis=-1)
        return jnp.sum(loss_BT * (LABELS != 0)) / 6

    smoothed = functools.partial(losses, smoothing_over=over)

    def in_chunks(states_BTD, output_VD):
        def sums_of(logits_BTV, labels_BT, means_BT):
            return loss_sums(logits_BTV, labels_BT, 0.1, means_BT, smoothed)

        labels_BT = jnp.asarray(LABELS)
        return loss_by_chunks(sums_of, 2, dtype, states_BTD, output_VD, labels_BT, 6.0)[0]

    arguments = states_BTD.astype(jnp.float32), rounded_VD
    expected, gradients = jax.value_and_grad(plain, argnums=(0, 1))(*arguments)
    loss, ours = jax.value_and_grad(in_chunks, argnums=(0, 1))(states_BTD, output_VD)
    assert float(loss) == pytest.approx(float(expected), rel=tolerance)
    for ours_, plain_ in zip(ours, gradients, strict=True):
        limit = tolerance * float(jnp.max(jnp.abs(plain_)))
        np.testing.assert_allclose(ours_.astype(np.float32), plain_, atol=limit)


def test_disagreement_is_the_mean_of_the_two_divergences():
    def log_softmax(logits_V):
        normalizer = math.log(sum(math.exp(z) for z in logits_V))
        return [float(z) - normalizer for z in logits_V]

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


def test_sums_leave_out_the_padding():
    sums = loss_sums(jnp.asarray(LOGITS), jnp.asarray(LABELS), 0.1)
    loss_BT, nll_BT = losses(jnp.asarray(LOGITS), jnp.asarray(LABELS), 0.1)
    real = LABELS != 0
    assert float(sums["tokens"]) == 6
    assert float(sums["loss"]) == pytest.approx(float(np.sum(loss_BT, where=real)), rel=1e-6)
    assert float(sums["nll"]) == pytest.approx(float(np.sum(nll_BT, where=real)), rel=1e-6)


def test_perplexity_is_that_of_the_unsmoothed_likelihood():
    uniform = loss_sums(jnp.zeros((B, T, V)), jnp.asarray(LABELS), 0.1)
    assert perplexity(float(uniform["nll"]), float(uniform["tokens"])) == pytest.approx(V, rel=1e-6)
    assert perplexity(2.0, 4) == pytest.approx(math.exp(0.5))
    assert perplexity(1e6, 1) == math.inf
