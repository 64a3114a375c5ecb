"""Dropout's own generator is held to statistics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jformer.model.numerics import Dropout, hash_bits

N = 100_000


def kept(rate, key, shape=(N,)):
    ones = jnp.ones(shape)
    return np.asarray(Dropout(rate).apply({}, ones, True, rngs={"dropout": jax.random.key(key)}))


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_zeroes_at_its_rate_and_keeps_the_mean(rate):
    out = kept(rate, key=0)
    error = 5 * (rate * (1 - rate) / N) ** 0.5  # five deviations: one false alarm in 10^6
    assert abs(np.mean(out == 0) - rate) < error
    np.testing.assert_allclose(out[out != 0], 1 / (1 - rate), rtol=1e-6)


@pytest.mark.parametrize("lag", [1, 16, 512])
def test_masks_of_neighbouring_positions_are_independent(lag):
    zeros = kept(0.3, key=1) == 0
    assert_uncorrelated(zeros[:-lag], zeros[lag:])


@pytest.mark.parametrize("other", [2, 1 << 20])
def test_masks_of_different_keys_are_independent(other):
    assert_uncorrelated(kept(0.3, key=1) == 0, kept(0.3, key=other) == 0)


def test_masks_of_modules_of_parts_and_of_layers_are_independent():
    """Numbers folded into the key of a step, and a key split."""
    key, fold_in = jax.random.key(0), jax.random.fold_in
    keys = [key, *(fold_in(key, n) for n in (0, 1, 2)), *jax.random.split(fold_in(key, 3), 3)]
    masks = [np.asarray(hash_bits(key, (N,))) < 0.3 * 2**32 for key in keys]
    for a in range(len(masks)):
        for b in range(a):
            assert_uncorrelated(masks[a], masks[b])


def test_every_bit_of_the_hash_is_set_half_of_the_time():
    bits = np.asarray(hash_bits(jax.random.key(7), (N,)))
    shares = [np.mean((bits >> n) & 1) for n in range(32)]
    assert np.max(np.abs(np.array(shares) - 0.5)) < 5 * 0.5 / N**0.5


def assert_uncorrelated(a, b):
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / len(a) ** 0.5  # five deviations
