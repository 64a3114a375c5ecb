"""The worked examples of docs/differences.md: what the conventions of the field give."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jformer.config import DecodeConfig, ModelConfig
from jformer.decoding.search import length_penalty
from jformer.extras.annotated import sinusoids_in_halves
from jformer.model.layers import make_norm
from jformer.model.positions import sinusoids
from jformer.training.loss import loss_sums


def test_sinusoids():
    ours = sinusoids(jnp.arange(2), 4)[1]
    np.testing.assert_allclose(ours, [0.84147, 0.54030, 0.01000, 0.99995], atol=5e-6)
    theirs = sinusoids_in_halves(jnp.arange(2), 4)[1]
    np.testing.assert_allclose(theirs, [0.84147, 0.00010, 0.54030, 1.00000], atol=5e-6)


def test_layer_norms():
    """Of small numbers: only there does it matter where epsilon stands."""
    x = np.array([1.0, 2.0, 3.0, 4.0]) / 1000
    # Each row by itself: the second changes nothing of the first.
    rows = jnp.asarray(np.stack([x, [9.0, 0.0, 0.0, 5.0]]), jnp.float32)
    ours, _ = nn.LayerNorm().init_with_output(jax.random.key(0), rows)
    assert float(ours[0, 0]) == pytest.approx(-1.0000, abs=5e-5)
    centred = x[0] - x.mean()
    assert centred / (np.var(x) + 1e-8) ** 0.5 == pytest.approx(-1.3363, abs=5e-5)
    assert centred / (np.std(x, ddof=1) + 1e-6) == pytest.approx(-1.1610, abs=5e-5)
    for norm, epsilon, number in (
        ("layer_norm", 1e-8, -1.3363),
        ("sample_layer_norm", 1e-6, -1.1610),
    ):
        config = ModelConfig(norm=f"{norm}(epsilon={epsilon})")
        theirs, _ = make_norm(config).init_with_output(jax.random.key(0), rows[None])
        assert float(theirs[0, 0, 0]) == pytest.approx(number, abs=5e-5)


def test_length_penalties():
    gnmt, plain = DecodeConfig(length_penalty=0.6), DecodeConfig(length_penalty_beta=0.0)
    assert -6 / length_penalty(10, gnmt) == pytest.approx(-3.4625, abs=5e-5)
    assert -6 / length_penalty(10, plain) == pytest.approx(-1.5071, abs=5e-5)


def test_loss_normalisers():
    """Logits whose loss is 2 for three tokens, and 8 for one: two entries, the other one likely."""

    def sums_of(losses):
        other = jnp.log(jnp.expm1(jnp.array(losses)))  # log(e^0 + e^other) - 0 = loss
        logits_1TV = jnp.stack([other, jnp.zeros(len(losses))], axis=-1)[None]
        return loss_sums(logits_1TV, jnp.ones((1, len(losses)), jnp.int32), 0.0)

    first, second = sums_of([2.0, 2.0, 2.0]), sums_of([8.0])
    both = jax.tree.map(lambda a, b: float(a + b), first, second)
    assert both["loss"] / both["tokens"] == pytest.approx(3.5, rel=1e-6)
    means = [float(sums["loss"] / sums["tokens"]) for sums in (first, second)]
    assert np.mean(means) == pytest.approx(5, rel=1e-6)
    assert np.sum(means) == pytest.approx(10, rel=1e-6)
    assert 14 / (both["tokens"] + 1e-7) - 3.5 == pytest.approx(-8.75e-8, rel=1e-3)
