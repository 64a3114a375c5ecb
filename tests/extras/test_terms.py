"""Terms that must stand in an output, against brute force; see machines.py."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jformer.config import EOS, DecodeConfig
from jformer.extras.terms import deal, follow, no_progress, tokens_met
from tests.decoding.machines import (
    EDGES_V2,
    V,
    exhaustive,
    log_prob_of,
    penalty,
    random_machine,
    search,
    terms_array,
)

CLOSE = 1e-4  # of sums of up to seven float32 log-probabilities around -2
CLEAR = 1e-5  # choices closer than that are left to rounding
WIDE = 48  # two words make 16 hypotheses of four tokens; each has three ways to go on
A, C, D = 3, 4, 5
SEEDS = st.integers(0, 10**6)
# Of the two words of a machine, at the beginning and elsewhere.
TWO_WORDS = st.lists(st.sampled_from([A, C]), min_size=1, max_size=3)
TERMS = st.lists(st.tuples(TWO_WORDS, TWO_WORDS), min_size=1, max_size=2)


GO_ON = [token for token in range(V) if EDGES_V2[token, 0]]


def config_of(W, **changes):
    return DecodeConfig(beam_size=W, **changes)


def stands(spellings, tokens):
    """As whole words: a token that goes on with the term's word may not follow it."""
    first, later = spellings
    return any(
        tokens[i : i + len(spelling)] == spelling
        and not any(tokens[i + len(spelling) :][:1] == [on] for on in GO_ON)
        for spelling, places in ((first, [0]), (later, range(len(tokens))))
        for i in places
    )


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(2, 5), st.floats(0, 2), TERMS)
def test_a_beam_as_wide_as_the_space_finds_the_best_that_has_the_terms(seed, limit, alpha, terms):
    machine, config = random_machine(seed, 2), config_of(WIDE, length_penalty=alpha)
    ended, _ = exhaustive(machine, limit, config)
    having = [one for one in ended if all(stands(term, one.tokens) for term in terms)]
    assume(having)
    assume(len(having) == 1 or having[0].score - having[1].score > CLEAR)
    best = search(config, [machine], [limit], terms=[terms])[1][0][0]
    assert best.tokens == having[0].tokens
    assert best.score == pytest.approx(having[0].score, abs=CLOSE)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.sampled_from([1, 3]), TERMS)
def test_an_output_that_ends_has_the_terms_and_the_models_own_scores(seed, W, terms):
    # The room for two terms of three tokens and the end; some that overlap find none in time.
    machine, config = random_machine(seed, 4), config_of(W)
    best = search(config, [machine], [7], terms=[terms])[1][0][0]
    if best.tokens[-1] == EOS:
        assert all(stands(term, best.tokens) for term in terms)
    total = log_prob_of(machine, best.tokens)
    assert best.log_prob == pytest.approx(total, abs=CLOSE)
    assert best.score == pytest.approx(total / penalty(len(best.tokens), config), abs=CLOSE)


@pytest.mark.parametrize("W", [1, 3])
@pytest.mark.parametrize("seed", range(20))
def test_a_narrow_beam_meets_its_terms(seed, W):
    terms = [([A, C], [D, A]), ([C], [C])]
    best = search(config_of(W), [random_machine(seed, 4)], [7], terms=[terms])[1][0][0]
    assert all(stands(term, best.tokens) for term in terms)


@pytest.mark.parametrize("seed", range(20))
def test_a_sentence_without_terms_has_its_output_whatever_stands_beside_it(seed):
    machines = [random_machine(seed + 1000 * i, 5) for i in range(3)]
    alone = search(config_of(3, n_best=3), machines, [7, 6, 7])[1]
    beside = search(
        config_of(3, n_best=3), machines, [7, 6, 7], terms=[[], [([A, C], [D, A])], []]
    )[1]
    assert beside[0] == alone[0]
    assert beside[2] == alone[2]
    assert stands(([A, C], [D, A]), beside[1][0].tokens)


def test_a_term_without_room_is_left_out_and_the_output_is_given():
    machine = random_machine(5, 4)
    best = search(config_of(3), [machine], [2], terms=[[([A, C, D], [A, C, D])]])[1][0][0]
    assert len(best.tokens) == 2
    assert best.log_prob == pytest.approx(log_prob_of(machine, best.tokens), abs=CLOSE)


def test_a_term_may_stand_in_a_prefix():
    machine, term = random_machine(7, 4), ([C, A], [C, A])
    wanted = search(config_of(3), [machine], [7], prefixes=[[D, C, A]])[1][0]
    assert (
        wanted == search(config_of(3), [machine], [7], prefixes=[[D, C, A]], terms=[[term]])[1][0]
    )


def test_a_term_that_begins_again_within_itself_is_not_overlooked():
    """A A C in A A A C, and all other histories of two words."""
    terms = [([C, C], [A, A, C]), ([A], [C, A, C])]
    terms_CKL = jnp.array(terms_array([terms])[0])
    histories_WT = np.array([*itertools.product([A, C], repeat=6)], np.int32)
    progress = no_progress(terms_CKL, len(histories_WT))
    assert not progress.has_WC.any()
    for t, tokens_W in enumerate(histories_WT.T):
        goes_on_W = EDGES_V2[tokens_W, 0] & (t > 0)
        progress = follow(terms_CKL, progress, tokens_W, goes_on_W, t)
        for history, met_C, count in zip(
            histories_WT[:, : t + 1].tolist(),
            progress.has_WC.tolist(),
            tokens_met(terms_CKL, progress).tolist(),
            strict=True,
        ):
            assert met_C == [stands(term, history) for term in terms]
            begun = [
                max(
                    n
                    for k, spelling in enumerate(term)
                    for n in range(len(spelling))
                    if history[len(history) - n :] == spelling[:n] and (k or n in (0, len(history)))
                )
                for term in terms
            ]
            assert count == sum(3 if met else n for met, n in zip(met_C, begun, strict=True))


@pytest.mark.parametrize("seed", range(10))
def test_places_are_dealt_in_turn_to_the_numbers_of_met_tokens(seed):
    rng = np.random.default_rng(seed)
    scores_M, met_M = rng.normal(size=23), rng.integers(0, 4, 23)
    scores_M[rng.integers(0, 23, 5)] = -np.inf
    order = sorted(range(23), key=lambda i: -scores_M[i])
    piles = [[i for i in order if met_M[i] == n and scores_M[i] > -np.inf] for n in (3, 2, 1, 0)]
    dealt = [i for hand in itertools.zip_longest(*piles) for i in hand if i is not None]
    assert deal(jnp.array(scores_M), jnp.array(met_M), len(dealt)).tolist() == dealt
