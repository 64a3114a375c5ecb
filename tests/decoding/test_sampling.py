"""What is drawn, how often and from what: against the distribution itself and a numpy twin."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from jformer.config import BOS, EOS, PAD, DecodeConfig
from jformer.decoding.sampling import Sampling, filter_logits
from tests.decoding.machines import (
    B,
    log_prob_of,
    penalty,
    random_machine,
    search,
    state_after,
)

A, C, D = 3, 4, 5
MANY = 4001
# With a probability of one in a million a true sampler would fail; the seeds are fixed, so that it
# fails always or never.
FALSE_ALARM = 1e-6
CLOSE = 1e-4  # float32 sums of a few log-probabilities


def config_of(n_best, search="sampling", **changes):
    return DecodeConfig(search=search, n_best=n_best, **changes)


def sampling(**options):
    """The value of `search` with options."""
    return f"sampling({', '.join(f'{name}={value}' for name, value in options.items())})"


def samples_of(machine, limit, config, seed=0, **more):
    return search(config, [machine], [limit], seeds=[seed], **more)[1][0]


def softmax(logits_V):
    weights_V = np.exp(logits_V - np.max(logits_V))
    return weights_V / weights_V.sum()


def kept_by(logits_V, sampling):
    """The tokens that the filters leave, by their definition, in the order of probability."""
    order = sorted(range(len(logits_V)), key=lambda token: -logits_V[token])
    if sampling.top_k:
        order = order[: sampling.top_k]
    shares = softmax(logits_V[order] / sampling.temperature)
    number = 1
    while number < len(order) and shares[:number].sum() < sampling.top_p:
        number += 1
    return order[:number]


def distribution(machine, tokens, **options):
    """Probability of each token that may come after `tokens`."""
    logits_V = machine.logits_SV[state_after(machine, tokens)].astype(np.float64)
    logits_V[[PAD, BOS]] = -np.inf
    kept = kept_by(logits_V, Sampling(**options))
    shares = softmax(logits_V[kept] / Sampling(**options).temperature)
    return {token: share for token, share in zip(kept, shares, strict=True) if share > 0}


WAYS = [{"temperature": 0.5}, {"top_p": 0.75}, {"temperature": 2.0, "top_k": 3, "top_p": 0.9}]


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_pairs_of_tokens_are_drawn_as_often_as_they_are_likely(options):
    machine, config = random_machine(29, 3, scale=0.4), config_of(MANY, sampling(**options))
    expected = {}
    for first, p in distribution(machine, [], **options).items():
        rest = {None: 1.0} if first == EOS else distribution(machine, [first], **options)
        for second, q in rest.items():
            expected[first, second] = p * q * MANY
    drawn = dict.fromkeys(expected, 0)
    for one in samples_of(machine, 2, config):
        drawn[tuple([*one.tokens, None][:2])] += 1  # what must not come has no entry
    assert sum(drawn.values()) == MANY
    assert min(expected.values()) > 5  # so that chi-square holds
    deviation = sum((drawn[pair] - n) ** 2 / n for pair, n in expected.items())
    assert deviation < stats.chi2.isf(FALSE_ALARM, len(expected) - 1)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0, 1, 3, 7, 50]),
    st.sampled_from([0.01, 0.3, 0.5, 0.9, 1.0]),
    st.sampled_from([0.5, 1.0, 3.0]),
)
def test_only_the_likeliest_tokens_stay_and_keep_their_logits(seed, top_k, top_p, temperature):
    logits_WV = np.random.default_rng(seed).normal(size=(2, 11)).astype(np.float32) * 2
    logits_WV[:, 4] = -np.inf
    sampling = Sampling(top_k=top_k, top_p=top_p, temperature=temperature)
    # Rounding may decide of a token, if those before it hold top_p within a millionth.
    less, more = (dataclasses.replace(sampling, top_p=top_p + d) for d in (-1e-6, 1e-6))
    result_WV = np.asarray(filter_logits(logits_WV, sampling))
    for logits_V, result_V in zip(logits_WV.astype(np.float64), result_WV, strict=True):
        least, most = ({*kept_by(logits_V, s)} - {4} for s in (less, more))
        kept = np.flatnonzero(result_V > -np.inf)
        assert least <= {*kept.tolist()} <= most
        np.testing.assert_allclose(result_V[kept], logits_V[kept] / temperature, rtol=1e-6)


def test_the_log_probability_is_that_of_the_model_whatever_the_temperature():
    machine = random_machine(37, 3)
    for way in ("sampling", "sampling(temperature=2.5, top_k=2)"):
        config = config_of(13, way, length_penalty=0.6)
        for one in samples_of(machine, 6, config):
            assert one.log_prob == pytest.approx(log_prob_of(machine, one.tokens), abs=CLOSE)
            expected = one.log_prob / penalty(len(one.tokens), config)
            assert one.score == pytest.approx(expected, abs=CLOSE)


def test_what_is_drawn_depends_on_both_seeds():
    machine = random_machine(43, 3)
    drawn = {
        (seed, of_config): samples_of(machine, 7, config_of(13, sampling(seed=of_config)), seed)
        for seed, of_config in itertools.product((0, 1, 2**32 - 1), (0, 1))
    }
    for a, b in itertools.combinations(drawn, 2):
        assert drawn[a] != drawn[b]
    assert samples_of(machine, 7, config_of(13), 1) == drawn[1, 0]


def test_what_is_drawn_for_a_sentence_does_not_depend_on_the_others():
    machines, seeds = [random_machine(n, 3) for n in range(B)], [5, 6, 7]
    config = config_of(13)
    _, together = search(config, machines, [7, 3, 5], seeds=seeds)
    for machine, limit, seed, expected in zip(machines, [7, 3, 5], seeds, together, strict=True):
        assert samples_of(machine, limit, config, seed) == expected


def test_a_sample_is_the_same_however_many_there_are():
    machine = random_machine(47, 3, scale=1.0)
    many = samples_of(machine, 7, config_of(13))
    assert samples_of(machine, 7, config_of(5)) == many[:5]
    assert len({tuple(one.tokens) for one in many}) > 5
