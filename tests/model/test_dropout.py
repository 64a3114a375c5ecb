"""Dropout's own generator is held to statistics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jformer.model.numerics import Dropout, dropout_key, hash_bits

N = 100_000


def kept(rate, key, shape=(N,)):
    ones = jnp.ones(shape)
    return np.asarray(Dropout(rate).apply({}, ones, True, rngs={"dropout": jax.random.key(key)}))


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9])
def test_dropout_zeroes_at_its_rate_and_keeps_the_mean(rate):
    out = kept(rate, key=0)
    error = 5 * (rate * (1 - rate) / N) ** 0.5  # five deviations: one false alarm in 10^6
    assert abs(np.mean(out == 0) - rate) < error
    np.testing.assert_allclose(out[out != 0], 1 / (1 - rate), rtol=1e-6)


def test_in_bfloat16_too_the_mean_stays():
    """1 - rate itself would be rounded, 0.9 to 0.8984: 0.17 % too much for each element."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=N), jnp.bfloat16)
    out = Dropout(0.1).apply({}, x, True, rngs={"dropout": jax.random.key(0)})
    assert out.dtype == jnp.bfloat16
    x, out = (np.asarray(each, np.float64) for each in (x, out))
    factor = np.mean(out[out != 0] / x[out != 0])
    # The roundings of 90,000 elements, of up to 2^-9 each, nearly cancel.
    assert factor == pytest.approx(1 / 0.9, rel=1e-4)


@pytest.mark.parametrize("lag", [1, 2, 3, 16, 128, 512, 4096])
def test_masks_of_neighbouring_positions_are_independent(lag):
    zeros = kept(0.3, key=1) == 0
    assert_uncorrelated(zeros[:-lag], zeros[lag:])


@pytest.mark.parametrize("other", [2, 3, 1 << 20])
def test_masks_of_different_keys_are_independent(other):
    assert_uncorrelated(kept(0.3, key=1) == 0, kept(0.3, key=other) == 0)


def test_masks_of_successive_steps_and_layers_are_independent():
    step_key = jax.random.key(0)
    masks = [
        np.asarray(hash_bits(jax.random.fold_in(step_key, n), (N,))) < 0.3 * 2**32 for n in range(6)
    ]
    for a in range(6):
        for b in range(a):
            assert_uncorrelated(masks[a], masks[b])


def test_masks_of_modules_of_parts_and_of_layers_are_independent():
    """Numbers folded into the key of a step, in either order or twice, and a key split."""
    key = dropout_key(jax.random.key(0))
    fold_in = jax.random.fold_in
    keys = [key, *(fold_in(key, n) for n in (0, 1, 2, 2**31)), *jax.random.split(key, 3)[1:]]
    keys += [fold_in(fold_in(key, a), b) for a, b in ((1, 2), (2, 1), (1, 1), (2, 2))]
    keys += [dropout_key(jax.random.key(1)), fold_in(dropout_key(jax.random.key(1)), 1)]
    masks = [np.asarray(hash_bits(key, (N,))) < 0.3 * 2**32 for key in keys]
    for a in range(len(masks)):
        for b in range(a):
            assert_uncorrelated(masks[a], masks[b])


def test_every_bit_of_the_hash_is_set_half_of_the_time():
    bits = np.asarray(hash_bits(jax.random.key(7), (N,)))
    shares = [np.mean((bits >> n) & 1) for n in range(32)]
    assert np.max(np.abs(np.array(shares) - 0.5)) < 5 * 0.5 / N**0.5


def test_bytes_of_the_hash_are_uniform():
    for shift in (0, 8, 16, 24):
        counts = np.bincount((np.asarray(hash_bits(jax.random.key(8), (N,))) >> shift) & 255)
        chi_square = np.sum((counts - N / 256) ** 2 / (N / 256))
        assert 255 - 5 * 510**0.5 < chi_square < 255 + 5 * 510**0.5


def assert_uncorrelated(a, b):
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / len(a) ** 0.5  # five deviations
