"""Forced decoding against the plain model, one pair at a time."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jformer.config import BOS, EOS, ModelConfig, UserError
from jformer.evaluation.forced import batches, force
from jformer.model.transformer import Transformer, attention_weights

V = 23
MODEL = ModelConfig(num_layers=1, d_model=12, d_ff=17, num_heads=3)
RNG = np.random.default_rng(0)
# Of several buckets, of equal and of different lengths, one side or both empty.
LENGTHS = [(3, 5), (20, 5), (0, 7), (15, 16), (3, 5), (4, 0)]
PAIRS = [tuple(RNG.integers(3, V, n).tolist() for n in lengths) for lengths in LENGTHS]


def make(seed, **changes):
    model = Transformer(dataclasses.replace(MODEL, **changes), V)
    tokens_11 = np.ones((1, 1), np.int32)
    params = jax.jit(model.init)(jax.random.key(seed), tokens_11, tokens_11)["params"]
    return model, jax.tree.map(lambda x: 3 * x, params)  # far from a uniform distribution


def alone(model, params, pair):
    """Log-probabilities (T,), and the weights {name: (H, T, S)}, without any padding."""
    source, target = pair
    source_1S, target_1T = jnp.array([[*source, EOS]]), jnp.array([[BOS, *target]])
    logits_TV = plain(model, params, source_1S, target_1T)[0]
    weights = plain_weights(model, params, source_1S, target_1T)
    labels_T = jnp.array([*target, EOS])
    log_probs_TV = jax.nn.log_softmax(logits_TV)
    return log_probs_TV[jnp.arange(len(labels_T)), labels_T], weights


plain = jax.jit(lambda model, p, *tokens: model.apply({"params": p}, *tokens), static_argnums=0)
plain_weights = jax.jit(attention_weights, static_argnums=0)


@pytest.fixture(scope="module")
def one():
    return make(0)


def test_log_probabilities_are_those_of_each_pair_alone_in_the_order_of_the_pairs(one):
    model, params = one
    found = force((model,), (params,), PAIRS, 4)
    assert len(found) == len(PAIRS)
    for pair, forced in zip(PAIRS, found, strict=True):
        assert forced.weights_TS is None
        # Sums of other lengths, in float32.
        np.testing.assert_allclose(forced.log_probs_T, alone(model, params, pair)[0], atol=1e-4)


def test_weights_are_the_mean_of_the_heads_of_the_layer_asked_for():
    model, params = make(3, num_layers=2)
    weights = alone(model, params, PAIRS[0])[1]
    for layer in (1, 2):
        (forced,) = force((model,), (params,), PAIRS[:1], 4, layer)
        expected_TS = weights[f"decoder_{layer - 1}/cross_attention"][0].mean(axis=0)
        np.testing.assert_allclose(forced.weights_TS, expected_TS, atol=1e-5)
        np.testing.assert_allclose(forced.weights_TS.sum(axis=1), 1, atol=1e-5)


def test_an_ensemble_has_the_mean_of_probabilities_and_of_weights(one):
    models, params = zip(one, make(1, positions="rotary"), strict=True)
    pair = PAIRS[0]
    (forced,) = force(models, params, [pair], 4, layer=1)
    each = [alone(model, p, pair) for model, p in zip(models, params, strict=True)]
    mean_T = np.mean([np.exp(log_probs_T) for log_probs_T, _ in each], axis=0)
    np.testing.assert_allclose(np.exp(forced.log_probs_T), mean_T, rtol=1e-4)
    weights = [weights["decoder_0/cross_attention"][0].mean(axis=0) for _, weights in each]
    np.testing.assert_allclose(forced.weights_TS, np.mean(weights, axis=0), atol=1e-5)


def test_a_batch_holds_no_more_positions_than_fit(monkeypatch):
    monkeypatch.setattr("jformer.evaluation.forced.POSITIONS", 64)
    found = list(batches(PAIRS * 3, 8))
    assert sorted(n for numbers, _, _ in found for n in numbers) == list(range(3 * len(PAIRS)))
    for numbers, source_BS, target_BT1 in found:
        assert len(numbers) <= len(source_BS) <= 8
        assert len(source_BS) == 1 or len(source_BS) * max(source_BS.shape[1], 16) <= 64
        assert source_BS.shape[1] in (16, 32, 64)
        assert target_BT1.shape[1] - 1 in (16, 32, 64)


def test_no_pairs_have_no_scores(one):
    assert force((one[0],), (one[1],), [], 4) == []


def test_a_table_of_positions_is_used_to_its_end_and_not_beyond():
    model, params = make(2, positions="learned", max_positions=21)
    (forced,) = force((model,), (params,), [PAIRS[1]], 4)  # 20 tokens and EOS
    expected_T = alone(model, params, PAIRS[1])[0]
    np.testing.assert_allclose(forced.log_probs_T, expected_T, atol=1e-4)
    with pytest.raises(UserError, match="max_positions=21: a text to be scored has 41 tokens"):
        force((model,), (params,), [([], [7] * 40)], 4)
