"""Beam search on small machines, against brute force and a search over lists; see machines.py."""

import dataclasses
import functools
import math

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from jformer.config import BOS, EOS, DecodeConfig
from tests.decoding.machines import (
    beam_over_lists,
    chain,
    exhaustive,
    log_prob_of,
    log_probs_after,
    options,
    penalty,
    random_machine,
    search,
    words_of,
)

# Sums of up to seven float32 log-probabilities around -2 are off by some 1e-6.
CLOSE = 1e-4
# Choices closer than that are left to rounding, and shown by no test.
CLEAR = 1e-5


def config_of(W, alpha=0.0, **changes):
    return DecodeConfig(beam_size=W, length_penalty=alpha, **changes)


def best_of(machine, limit, config, **more):
    return search(config, [machine], [limit], **more)[1][0]


# Two words make at most 16 hypotheses of four tokens; each has three ways to go on.
WIDE = 48

A, C, D = 3, 4, 5

#              .6 / A --.51-- EOS       greedy takes A, then EOS:   .6 * .51 = .306
#   BOS --------- |     \.49-- C -> EOS                             .6 * .49 = .294
#              .4 \ D --1.-- EOS        the best is D EOS:          .4 * 1.  = .40
GARDEN_PATH = chain({BOS: {A: 0.6, D: 0.4}, A: {EOS: 0.51, C: 0.49}, C: {EOS: 1.0}, D: {EOS: 1.0}})
ENDLESS = chain({BOS: {A: 1.0}, A: {C: 1.0}, C: {A: 1.0}})


def test_a_beam_of_two_finds_what_greedy_walks_past():
    assert best_of(GARDEN_PATH, 5, config_of(1))[0].tokens == [A, EOS]
    best = best_of(GARDEN_PATH, 5, config_of(2))[0]
    assert best.tokens == [D, EOS]
    assert best.log_prob == best.score == pytest.approx(math.log(0.4), abs=CLOSE)


@pytest.mark.parametrize(
    ("beta", "divisor"), [(5.0, ((5 + 2) / 6) ** 0.6), (0.0, 2**0.6), (1.0, ((1 + 2) / 2) ** 0.6)]
)
def test_scores_are_divided_by_the_papers_penalty(beta, divisor):
    best = best_of(GARDEN_PATH, 5, config_of(2, 0.6, length_penalty_beta=beta))[0]
    assert best.score == pytest.approx(math.log(0.4) / divisor, abs=CLOSE)
    assert best.log_prob == pytest.approx(math.log(0.4), abs=CLOSE)


@pytest.mark.parametrize("W", [1, 3])
def test_hypotheses_without_an_end_stop_at_the_limit_and_are_kept_whole(W):
    best = best_of(ENDLESS, 5, config_of(W, 0.6))[0]
    assert best.tokens == [A, C, A, C, A]
    assert best.score == pytest.approx(0, abs=CLOSE)


ALPHAS = st.floats(0, 2)
BETAS = st.sampled_from([0.0, 1.0, 5.0, 7.5])
SEEDS = st.integers(0, 10**6)


@settings(max_examples=20, deadline=None)
@given(
    seed=SEEDS,
    words=st.integers(1, 2),
    limit=st.integers(1, 5),
    prefix=st.lists(st.just(A), max_size=3),
    alpha=ALPHAS,
    beta=BETAS,
    n=st.integers(1, 32),
)
# The last of the seventeen and the one behind it are equally good.
@example(seed=665430, words=2, limit=5, prefix=[], alpha=0.0, beta=0.0, n=17)
def test_a_beam_as_wide_as_the_space_finds_the_n_best_that_begin_with_a_prefix(
    seed, words, limit, prefix, alpha, beta, n
):
    machine, prefix = random_machine(seed, words), prefix[: limit - 1]
    config = config_of(WIDE, alpha, length_penalty_beta=beta, n_best=n)
    found = best_of(machine, limit, config, prefixes=[prefix])
    check_best(found, exhaustive(machine, limit, config, prefix)[0], n)


def check_best(hypotheses, every, n):
    """They are the first `n` of `every`; of two that are equally good, either may come."""
    assert len({tuple(one.tokens) for one in hypotheses}) == len(hypotheses)
    known = {tuple(one.tokens): one for one in every}
    for one, twin in zip(hypotheses, every[:n], strict=True):
        own = known[tuple(one.tokens)]
        assert one.score == pytest.approx(own.score, abs=CLOSE)
        assert one.log_prob == pytest.approx(own.log_prob, abs=CLOSE)
        assert own is twin or abs(own.score - twin.score) < CLEAR


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.integers(1, 3), ALPHAS, BETAS)
def test_a_beam_of_one_is_greedy(seed, words, alpha, beta):
    machines = [random_machine(seed + b, words) for b in range(2)]
    limits, config = [6, 3], config_of(1, alpha, length_penalty_beta=beta)
    _, outputs = search(config, machines, limits)
    for machine, limit, (one,) in zip(machines, limits, outputs, strict=True):
        tokens = []
        while len(tokens) < limit and tokens[-1:] != [EOS]:
            nexts = [(log_prob_of(machine, [*tokens, x]), x) for x in [EOS, *words_of(machine)]]
            best, second = sorted(nexts, reverse=True)[:2]
            assume(best[0] - second[0] > CLEAR)
            tokens.append(best[1])
        assert one.tokens == tokens
        assert one.log_prob == pytest.approx(log_prob_of(machine, tokens), abs=CLOSE)
        assert one.score == pytest.approx(one.log_prob / penalty(len(tokens), config), abs=CLOSE)


def beam(diversity, early_stopping):
    return f"beam(diversity={diversity}, early_stopping={early_stopping})"


@st.composite
def asked(draw):
    """A beam and what is asked of it: `(config, limit, prefix)`."""
    W, limit = draw(st.sampled_from([2, 3, 4])), draw(st.integers(1, 7))
    config = config_of(
        W, draw(ALPHAS), length_penalty_beta=draw(BETAS), n_best=draw(st.integers(1, W)),
        min_length=draw(st.integers(0, limit - 1)),
        search=beam(draw(st.sampled_from([0.0, 0.0, 0.3, 1.0])), draw(st.booleans())),
    )  # fmt: skip
    return config, limit, draw(st.lists(st.sampled_from([A, C, D]), max_size=limit - 1))


@settings(max_examples=40, deadline=None)
@given(SEEDS, asked())
def test_any_beam_takes_the_steps_and_finds_the_hypotheses_of_a_search_over_lists(seed, question):
    config, limit, prefix = question
    machines = [random_machine(seed, 3), random_machine(seed + 1, 3)]
    limits, prefixes = [limit, 7], [prefix, []]
    searches_B, outputs = search(config, machines, limits, prefixes)
    for b, machine in enumerate(machines):
        log_probs = functools.partial(log_probs_after, machine)
        twin = beam_over_lists(log_probs, limits[b], config, prefixes[b])
        assume(twin.margin > CLEAR)
        assert int(searches_B.t[b]) == twin.steps
        assert [one.tokens for one in outputs[b]] == [one.tokens for one in twin.best]
        for one, expected in zip(outputs[b], twin.best, strict=True):
            assert one.score == pytest.approx(expected.score, abs=CLOSE)
            assert one.log_prob == pytest.approx(expected.log_prob, abs=CLOSE)


@settings(max_examples=40, deadline=None)
@given(SEEDS, asked())
def test_the_early_end_of_a_search_takes_nothing_from_its_n_best(seed, question):
    config, limit, prefix = question
    diversity = options(config)["diversity"]
    config = dataclasses.replace(config, search=beam(diversity, early_stopping=False))
    machine = random_machine(seed, 3)
    log_probs = functools.partial(log_probs_after, machine)
    twin = beam_over_lists(log_probs, limit, config, prefix, early_end=False)
    early = beam_over_lists(log_probs, limit, config, prefix)
    assume(min(twin.margin, early.margin) > CLEAR)
    assert twin.steps == limit
    hypotheses = best_of(machine, limit, config, prefixes=[prefix])
    assert [one.tokens for one in hypotheses] == [one.tokens for one in twin.best]


def test_diversity_takes_off_for_the_choice_and_leaves_the_scores():
    # A's two children are better than D's one, but the second of them makes room for it.
    machine = chain(
        {BOS: {A: 0.8, D: 0.2}, A: {C: 0.55, D: 0.45}, C: {EOS: 1.0}, D: {C: 1.0}}
    )  # A C .44, A D .36, D C .2
    alike = best_of(machine, 2, config_of(2, n_best=2))
    assert [one.tokens for one in alike] == [[A, C], [A, D]]
    diverse = best_of(machine, 2, config_of(2, n_best=2, search="beam(diversity=1.0)"))
    assert [one.tokens for one in diverse] == [[A, C], [D, C]]
    assert [one.log_prob for one in diverse] == [
        pytest.approx(math.log(p), abs=CLOSE) for p in (0.44, 0.2)
    ]
