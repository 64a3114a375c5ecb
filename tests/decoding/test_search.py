"""The search on hand-written logit tables, against brute force and a list-based twin.

A table's row is the last token, its column the next: log-probabilities of a first-order chain.
"""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jformer.config import BOS, EOS, PAD
from jformer.decoding.search import beam_search

NEVER = -1e9


def chain_step(table_VV):
    """A step whose cache is the history of each hypothesis, so that a wrong reorder shows."""

    def step(cache, tokens_BW, t):
        history_BWT = cache["history"].at[:, :, t].set(tokens_BW)
        return {"history": history_BWT}, table_VV[history_BWT[:, :, t]]

    return step


def search(table_VV, limits, beam_size, alpha):
    return compiled_search(
        jnp.asarray(table_VV, jnp.float32), jnp.asarray(limits), max(limits), beam_size, alpha
    )


@functools.partial(jax.jit, static_argnums=(2, 3))
def compiled_search(table_VV, limits_B, max_length, beam_size, alpha):
    cache = {"history": jnp.zeros((limits_B.shape[0], beam_size, max_length), jnp.int32)}
    return beam_search(chain_step(table_VV), cache, limits_B, max_length, beam_size, alpha)


def tokens_of(hypotheses, b=0, w=0):
    return [int(token) for token in hypotheses.tokens_BWT[b, w] if token != PAD]


def table(rows):
    """`{last: {next: probability}}` as log-probabilities over 6 tokens; no row: no state."""
    result = np.zeros((6, 6))
    for last, nexts in rows.items():
        result[last] = -np.inf
        for token, probability in nexts.items():
            result[last, token] = math.log(probability)
    return result


A, C, D = 3, 4, 5

#              .6 / A --.5-- EOS        greedy takes A, then EOS:   .6 * .5 = .30
#   BOS --------- |     \.5-- C -> EOS                              .6 * .5 = .30
#              .4 \ D --1.-- EOS        the best is D EOS:          .4 * 1. = .40
GARDEN_PATH = table({BOS: {A: 0.6, D: 0.4}, A: {EOS: 0.51, C: 0.49}, C: {EOS: 1.0}, D: {EOS: 1.0}})


def test_a_beam_of_one_takes_the_likeliest_token_each_time():
    assert tokens_of(search(GARDEN_PATH, [5], 1, 0.0)) == [A, EOS]


def test_a_beam_of_two_finds_what_greedy_walks_past():
    found = search(GARDEN_PATH, [5], 2, 0.0)
    assert tokens_of(found) == [D, EOS]
    assert float(found.scores_BW[0, 0]) == pytest.approx(math.log(0.4), abs=1e-5)


def test_a_length_penalty_prefers_the_longer_hypothesis():
    # EOS at once has .5; A C D EOS has .5 * .9 * .9 = .405, but is worth more for its length.
    rows = table(
        {BOS: {EOS: 0.5, A: 0.5}, A: {C: 0.9, EOS: 0.1}, C: {D: 0.9, EOS: 0.1}, D: {EOS: 1.0}}
    )
    assert tokens_of(search(rows, [6], 4, 0.0)) == [EOS]
    assert tokens_of(search(rows, [6], 4, 2.0)) == [A, C, D, EOS]


def test_scores_are_divided_by_the_papers_penalty():
    found = search(GARDEN_PATH, [5], 2, 0.6)
    assert float(found.scores_BW[0, 0]) == pytest.approx(
        math.log(0.4) / ((5 + 2) / 6) ** 0.6, abs=1e-5
    )


def test_hypotheses_without_an_end_stop_at_the_limit_and_are_kept_whole():
    endless = table({BOS: {A: 1.0}, A: {C: 1.0}, C: {A: 1.0}})
    for beam_size in (1, 3):
        assert tokens_of(search(endless, [5], beam_size, 0.6)) == [A, C, A, C, A]


def test_an_end_at_once_is_an_empty_hypothesis():
    at_once = table({BOS: {EOS: 0.9, A: 0.1}, A: {EOS: 1.0}})
    for beam_size in (1, 2):
        assert tokens_of(search(at_once, [4], beam_size, 0.6)) == [EOS]


def test_each_sentence_has_its_own_limit():
    endless = table({BOS: {A: 1.0}, A: {C: 1.0}, C: {A: 1.0}})
    for beam_size in (1, 2):
        found = search(endless, [2, 5, 0], beam_size, 0.6)
        assert [tokens_of(found, b) for b in range(3)] == [[A, C], [A, C, A, C, A], []]


def random_table(seed, V):
    """Any token may follow any; PAD and BOS never do, as after training."""
    logits = np.random.default_rng(seed).normal(size=(V, V)) * 2
    logits[:, [PAD, BOS]] = NEVER
    return np.asarray(jax.nn.log_softmax(jnp.asarray(logits, jnp.float32)))


def every_hypothesis(log_probs, limit, alpha):
    """Brute force: `[(score, tokens)]` of all that end within the limit, best first."""
    V = len(log_probs)
    scored = []
    for length in range(1, limit + 1):
        for body in itertools.product(range(3, V), repeat=length - 1):
            tokens = [BOS, *body, EOS]
            total = sum(float(log_probs[a, b]) for a, b in itertools.pairwise(tokens))
            scored.append((total / ((5 + length) / 6) ** alpha, tokens[1:]))
    return sorted(scored, reverse=True)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    V=st.integers(4, 5),
    limit=st.integers(1, 4),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
)
def test_a_beam_as_wide_as_the_space_finds_the_optimum(seed, V, limit, alpha):
    log_probs = random_table(seed, V)
    best_score, best_tokens = every_hypothesis(log_probs, limit, alpha)[0]
    found = search(log_probs, [limit], 32, alpha)
    assert float(found.scores_BW[0, 0]) == pytest.approx(best_score, abs=1e-4)
    assert tokens_of(found) == best_tokens


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), alpha=st.sampled_from([0.0, 0.6, 2.0]))
def test_a_beam_of_one_is_greedy(seed, alpha):
    log_probs = random_table(seed, 7)
    limits = [6, 3]
    found = search(log_probs, limits, 1, alpha)
    for b, limit in enumerate(limits):
        tokens, total = [BOS], 0.0
        while len(tokens) <= limit and tokens[-1] != EOS:
            total += float(np.max(log_probs[tokens[-1]]))
            tokens.append(int(np.argmax(log_probs[tokens[-1]])))
        assert tokens_of(found, b) == tokens[1:]
        expected = total / ((5 + len(tokens) - 1) / 6) ** alpha
        assert float(found.scores_BW[b, 0]) == pytest.approx(expected, rel=1e-4)


def beam_search_with_lists(log_probs, limit, W, alpha):
    """The same search, of one sentence, over Python lists."""
    hypotheses, ended = [(0.0, [BOS])], []
    for t in range(1, limit + 1):
        grown = sorted(
            (
                (total + float(log_probs[tokens[-1], token]), [*tokens, token])
                for total, tokens in hypotheses
                for token in range(len(log_probs))
            ),
            key=lambda item: -item[0],
        )[: 2 * W]
        ended += [
            (total / ((5 + t) / 6) ** alpha, tokens[1:])
            for total, tokens in grown[:W]
            if tokens[-1] == EOS
        ]
        ended = sorted(ended, key=lambda item: -item[0])[:W]
        hypotheses = [item for item in grown if item[1][-1] != EOS][:W]
        bound = hypotheses[0][0] / ((5 + limit) / 6) ** alpha
        if len(ended) == W or (ended and ended[0][0] >= bound):
            break
    if ended:
        return ended
    length = len(hypotheses[0][1]) - 1
    return [(total / ((5 + length) / 6) ** alpha, tokens[1:]) for total, tokens in hypotheses]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    W=st.sampled_from([2, 3, 4]),
    alpha=st.sampled_from([0.0, 0.6, 1.5]),
)
def test_any_beam_finds_what_a_search_over_lists_finds(seed, W, alpha):
    tables = [random_table(seed + b, 8) for b in range(2)]
    limits = [7, 4]
    for log_probs in tables:
        found = search(log_probs, limits, W, alpha)
        for b, limit in enumerate(limits):
            expected = beam_search_with_lists(log_probs, limit, W, alpha)
            for w, (score, tokens) in enumerate(expected):
                assert float(found.scores_BW[b, w]) == pytest.approx(score, abs=1e-4)
                # Hypotheses that pass through the same pairs of tokens tie, in any order.
                assert sorted(tokens_of(found, b, w)) == sorted(tokens)
            assert np.all(np.isneginf(found.scores_BW[b, len(expected) :]))


def test_the_loop_ends_when_no_open_hypothesis_can_win():
    # One hypothesis of three has ended; the open one has .1 against its .9 and cannot catch up.
    early_end = table({BOS: {EOS: 0.9, A: 0.1}, A: {C: 1.0}, C: {A: 1.0}})
    calls = []
    base = chain_step(jnp.asarray(early_end, jnp.float32))

    def step(cache, tokens_BW, t):
        jax.debug.callback(lambda t: calls.append(int(t)), t)
        return base(cache, tokens_BW, t)

    cache = {"history": jnp.zeros((1, 3, 50), jnp.int32)}
    jax.block_until_ready(beam_search(step, cache, jnp.array([50]), 50, 3, 0.6))
    jax.effects_barrier()
    assert calls == [0]
