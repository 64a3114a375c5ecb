"""Forced decoding against the plain model, one pair at a time; alignments from its weights."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jformer.config import BOS, EOS, DecodeConfig, ModelConfig
from jformer.data.vocabulary import Vocabulary
from jformer.decoding.pool import Decoder
from jformer.decoding.scoring import (
    Attention,
    align,
    batches,
    logits_and_weights,
    pharaoh,
    score_pairs,
    words_of,
)
from jformer.errors import UserError
from jformer.model.transformer import Transformer
from tests import reference
from tests.conftest import random_params

V = 23
MODEL = ModelConfig(num_layers=1, d_model=12, d_ff=17, num_heads=3)
RNG = np.random.default_rng(0)
# Of several buckets, of equal and of different lengths, one side or both empty.
LENGTHS = [(3, 5), (20, 5), (0, 7), (15, 16), (3, 5), (4, 0)]
PAIRS = [tuple(RNG.integers(3, V, n).tolist() for n in lengths) for lengths in LENGTHS]


def make(seed, **changes):
    model = Transformer(dataclasses.replace(MODEL, **changes), V)
    return model, random_params(model, seed, deviation=0.6)  # far from a uniform distribution


def decoder_of(*members):
    return Decoder(*zip(*members, strict=True), DecodeConfig(batch_size=4), max_length=100)


def alone(model, params, pair):
    """Log-probabilities (T,) by the plain numpy loops, without any padding."""
    source, target = pair
    doubles = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    logits_TV = reference.forward(doubles, model.config, [*source, EOS], [BOS, *target])
    log_probs_TV = logits_TV - np.log(np.exp(logits_TV).sum(axis=1, keepdims=True))
    return log_probs_TV[np.arange(len(target) + 1), [*target, EOS]]


def weights_of(model, params, pair):
    """`{name: (H, T, S)}`, without any padding."""
    source_1S, target_1T = jnp.array([[*pair[0], EOS]]), jnp.array([[BOS, *pair[1]]])
    _, found = plain_weights(model, params, source_1S, target_1T)
    return {name: weights_1HTS[0] for name, weights_1HTS in found.items()}


plain_weights = jax.jit(logits_and_weights, static_argnums=0)


@pytest.fixture(scope="module")
def one():
    return make(0)


def test_log_probabilities_are_those_of_each_pair_alone_in_the_order_of_the_pairs(one):
    model, params = one
    found = score_pairs(decoder_of((model, params)), PAIRS)
    assert len(found) == len(PAIRS)
    for pair, forced in zip(PAIRS, found, strict=True):
        assert forced.weights_TS is None
        # Sums of other lengths, in float32.
        np.testing.assert_allclose(forced.log_probs_T, alone(model, params, pair), atol=1e-4)


def test_weights_are_the_mean_of_the_heads_of_the_layer_asked_for():
    model, params = make(3, num_layers=2)
    weights = weights_of(model, params, PAIRS[0])
    for layer in (1, 2):
        (forced,) = score_pairs(decoder_of((model, params)), PAIRS[:1], layer)
        expected_TS = weights[f"decoder_{layer - 1}/cross_attention"].mean(axis=0)
        np.testing.assert_allclose(forced.weights_TS, expected_TS, atol=1e-5)
        np.testing.assert_allclose(forced.weights_TS.sum(axis=1), 1, atol=1e-5)


def test_an_ensemble_has_the_mean_of_probabilities_and_of_weights(one):
    pair, members = PAIRS[0], [one, make(1, positions="rotary")]
    (forced,) = score_pairs(decoder_of(*members), [pair], layer=1)
    mean_T = np.mean([np.exp(alone(*member, pair)) for member in members], axis=0)
    np.testing.assert_allclose(np.exp(forced.log_probs_T), mean_T, rtol=1e-4)
    name = "decoder_0/cross_attention"
    weights = [weights_of(*member, pair)[name].mean(axis=0) for member in members]
    np.testing.assert_allclose(forced.weights_TS, np.mean(weights, axis=0), atol=1e-5)


def test_a_batch_holds_no_more_positions_than_fit(monkeypatch):
    monkeypatch.setattr("jformer.decoding.scoring.POSITIONS", 64)
    found = list(batches(PAIRS * 3, 8, limit=100))
    assert sorted(n for numbers, _, _ in found for n in numbers) == list(range(3 * len(PAIRS)))
    for numbers, source_BS, target_BT1 in found:
        assert len(numbers) <= len(source_BS) <= 8
        assert len(source_BS) == 1 or len(source_BS) * max(source_BS.shape[1], 16) <= 64
        assert source_BS.shape[1] in (16, 32, 64)
        assert target_BT1.shape[1] - 1 in (16, 32, 64)


def test_a_table_of_positions_is_used_to_its_end_and_not_beyond():
    model, params = make(2, positions="learned(max_positions=21)")
    (forced,) = score_pairs(decoder_of((model, params)), [PAIRS[1]])  # 20 tokens and EOS
    expected_T = alone(model, params, PAIRS[1])
    np.testing.assert_allclose(forced.log_probs_T, expected_T, atol=1e-4)
    with pytest.raises(UserError, match=r"max_positions=21\b.*\b41 tokens"):
        score_pairs(decoder_of((model, params)), [([], [7] * 40)])


TEXTS = ["the old house", "das alte Haus", "überraschend 3.5"]


@pytest.fixture(scope="module", params=["byte_bpe", "unigram"])
def vocabulary(request):
    return Vocabulary.train(TEXTS, 300, request.param)


def test_each_token_belongs_to_the_word_in_which_it_ends(vocabulary):
    for text in TEXTS:
        (ids,) = vocabulary.encode([text])
        words = words_of(ids, vocabulary)
        assert sorted(set(words.tolist())) == list(range(1, len(text.split()) + 1))
        assert np.all(np.diff(words) >= 0)
        for number, word in enumerate(text.split(), start=1):
            own = [token for token, n in zip(ids, words, strict=True) if n == number]
            assert vocabulary.decode(own).strip() == word
    (ids,) = vocabulary.encode(["  old"])
    assert words_of(ids, vocabulary)[-1] == 1  # spaces before it are in no word


def test_a_target_word_is_linked_to_the_source_word_that_its_tokens_attend_to_most():
    #  source words   0    1    1    2   EOS
    weights_TS = np.array(
        [
            [0.1, 0.2, 0.2, 0.4, 0.1],  # word 0: 1 with .4, 2 with .4 ...
            [0.1, 0.1, 0.3, 0.1, 0.4],  # ... and its second token decides for 1
            [0.6, 0.2, 0.0, 0.1, 0.1],  # word 1: 0
            [0.0, 0.0, 0.0, 0.1, 0.9],  # word 2: 2, as EOS is no word
            [0.9, 0.1, 0.0, 0.0, 0.0],  # the end
        ]
    )
    links = align(weights_TS, np.array([1, 1, 2, 3]), np.array([1, 2, 2, 3]))
    assert links == [(0, 1), (1, 0), (2, 2)]
    assert pharaoh(links) == "0-1 1-0 2-2"


def test_the_layers_of_an_attention_are_in_the_order_of_their_numbers():
    weights = {f"decoder_{n}/cross_attention": np.full((1, 2, 3), n) for n in (10, *range(10))}
    weights["encoder_0/self_attention"] = np.zeros((1, 3, 3))
    attention = Attention(weights, ["a", "b", "#2"], ["#1", "c"])
    layers = attention.layers("decoder", "cross_attention")
    assert [layer[0, 0, 0] for layer in layers] == list(range(11))
    assert attention.layers("decoder", "self_attention") == []
