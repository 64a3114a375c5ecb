"""Many requests through one pool: each gets what a search for it alone gets, whatever the pool."""

import dataclasses
import threading

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jformer.config import EOS, DecodeConfig
from jformer.decoding import pool
from jformer.decoding.pool import Request
from jformer.decoding.scoring import score_pairs
from jformer.errors import RunError
from tests.decoding.machines import beam_over_lists, found_of
from tests.decoding.small import MODEL, V, decoder_of, log_probs_by, make

W = 3
CONFIG = DecodeConfig(beam_size=W, n_best=W, max_extra_length=30)
# Cached steps, other shapes and other rows of a batch round the sum of some 20 log-probabilities
# otherwise; of choices that are closer rounding decides.
CLOSE = 1e-4


def some_requests(number, longest, seed=0):
    rng = np.random.default_rng(seed)
    result = []
    for n in range(number):
        prefix = rng.integers(3, V, 5 if n % 7 == 3 else 0).tolist()
        source = rng.integers(3, V, rng.integers(0, longest + 1)).tolist()
        result.append(Request(source, prefix, seed=n))
    return result


@pytest.fixture(scope="module")
def requests():
    """Of two buckets; and what searches over lists find for them, where no choice was close."""
    requests = some_requests(32, 28)
    twins = [alone(request, CONFIG, make()) for request in requests]
    kept = [n for n, twin in enumerate(twins) if twin.margin > CLOSE]
    assert len(kept) > 24
    return [requests[n] for n in kept], [twins[n].best for n in kept]


def alone(request, config, *members):
    log_probs_after = log_probs_by(members, request.source)
    return beam_over_lists(log_probs_after, request.limit(config), config, request.prefix)


def found_by(decoder, requests):
    """In the order of the requests."""
    found = decoder.find(requests)
    assert len(found) == len(requests)
    return [found_of(each, decoder.config.n_best) for each in found]


def assert_found(found, expected):
    for ours, twins in zip(found, expected, strict=True):
        assert [one.tokens for one in ours] == [one.tokens for one in twins]
        for one, twin in zip(ours, twins, strict=True):
            assert one.score == pytest.approx(twin.score, rel=1e-5, abs=CLOSE)
            assert one.log_prob == pytest.approx(twin.log_prob, rel=1e-5, abs=CLOSE)


@pytest.fixture
def shapes(monkeypatch):
    """The shapes that a pool goes through: sentences, source positions, tokens."""
    seen, run_searches = [], pool.run_searches

    def watched(*arguments):
        *_, (sentences_B, searches_B), _ = arguments
        B, _, T = searches_B.live_tokens_WT.shape
        seen.append((B, sentences_B.memory[0].mask_B11S.shape[-1], T))
        return run_searches(*arguments)

    monkeypatch.setattr(pool, "run_searches", watched)
    return seen


@pytest.mark.parametrize("slots", [pytest.param(3, marks=pytest.mark.slow), 16, 64])
def test_each_request_finds_what_a_search_over_lists_finds_for_it_alone(slots, requests, shapes):
    assert_found(found_by(decoder_of(CONFIG, slots), requests[0]), requests[1])
    if slots == 64:  # all at once: one shape suffices for them all
        assert set(shapes) == {(64, 32, 1 + 32 + 30)}
    else:
        assert len(shapes) > len(set(shapes))  # others take the slots of finished searches
        assert set(shapes) == {(slots, 16, 32), (slots, 32, 48), (slots, 64, 1 + 64 + 30)}


def test_threads_that_share_the_slots_find_the_same(requests, shapes, monkeypatch):
    monkeypatch.setattr(pool, "thread_count", lambda slots: 3)
    assert_found(found_by(decoder_of(CONFIG, 48), requests[0] * 2), requests[1] * 2)
    assert {slots for slots, *_ in shapes} == {16}


def test_an_error_in_one_thread_ends_the_others_and_reaches_the_caller(requests, monkeypatch):
    run_searches, threads = pool.run_searches, []

    def failing(*arguments):
        threads.append(threading.current_thread())
        if len(threads) == 1:
            raise ValueError("of one thread")
        return run_searches(*arguments)

    monkeypatch.setattr(pool, "run_searches", failing)
    monkeypatch.setattr(pool, "thread_count", lambda slots: 2)
    with pytest.raises(ValueError, match="of one thread"):
        decoder_of(CONFIG, 32).find(requests[0] * 50)
    assert len(threads) < 50
    assert not any(thread.is_alive() for thread in threads)


def test_an_error_for_lack_of_memory_names_the_key_to_lower(monkeypatch):
    def fail(*arguments):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    monkeypatch.setattr(pool, "run_searches", fail)
    with pytest.raises(RunError, match=r"config\.decode\.batch_size"):
        decoder_of(CONFIG, 16).find([Request([5], [], 0)])


SHORT = dataclasses.replace(CONFIG, max_extra_length=12)
OTHER = dataclasses.replace(MODEL, d_model=18, num_heads=3, positions="rotary", tying="none")


def test_an_ensemble_searches_by_the_mean_of_the_probabilities_of_forced_decoding():
    members, requests = [make(), make(OTHER, seed=1)], some_requests(7, 15)
    found = found_by(decoder_of(SHORT, 64, *members), requests)
    pairs = [(r.source, one) for r, every in zip(requests, found, strict=True) for one in every]
    without_end = [(source, [t for t in one.tokens if t != EOS]) for source, one in pairs]
    passes = [score_pairs(decoder_of(SHORT, 64, each), without_end) for each in members]
    for (_, one), *each in zip(pairs, *passes, strict=True):
        shares = np.mean([np.exp(forced.log_probs_T.astype(np.float64)) for forced in each], axis=0)
        expected = np.log(shares)[: len(one.tokens)].sum()  # without EOS if the limit came first
        assert one.log_prob == pytest.approx(expected, rel=1e-5, abs=CLOSE)
    assert len({tuple(one.tokens) for _, one in pairs}) > 12


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (
            CONFIG,
            [
                {"length_penalty": 2.5},
                {"length_penalty_beta": 0.0},
                {"search": "beam(diversity=0.7)"},
                {"min_length": 4},
                {"max_length": 9},
            ],
        ),
        (
            DecodeConfig(search="sampling", max_extra_length=30),
            [{"search": f"sampling(seed={2**32 - 1})"}, {"search": "sampling(temperature=0.3)"}],
        ),
    ],
    ids=["beam", "sampling"],
)
def test_another_value_changes_what_is_found_and_compiles_nothing(config, changes):
    requests = some_requests(8, 28)
    before = found_by(decoder_of(config, 8), requests)
    compiled = pool.run_searches._cache_size()
    for change in changes:
        other = dataclasses.replace(config, **change)
        assert found_by(decoder_of(other, 8), requests) != before, change
    assert pool.run_searches._cache_size() == compiled


@given(
    source=st.integers(0, 40),
    prefix=st.integers(0, 40),
    min_length=st.integers(0, 60),
    extra=st.integers(0, 30),
    max_length=st.none() | st.integers(1, 60),
)
def test_the_limit_of_a_request(source, prefix, min_length, extra, max_length):
    config = DecodeConfig(min_length=min_length, max_extra_length=extra, max_length=max_length)
    limit = Request([5] * source, [7] * prefix, 0).limit(config)
    least = max(min_length, prefix) + 1  # so that what must come fits, and EOS
    if prefix <= source and max_length is None:
        assert limit == max(source + extra, least)
    else:
        assert limit >= least
    if max_length is not None:
        assert limit <= max(max_length, least)


def test_a_prefix_that_fills_its_bucket_comes_to_an_end_without_extra_length():
    decoder = decoder_of(dataclasses.replace(CONFIG, max_extra_length=0), 1)
    for length in (15, 16):
        ((best, *_),) = found_by(decoder, [Request([5] * 9, [7] * length, 0)])
        assert best.tokens[:length] == [7] * length
        assert len(best.tokens) == length + 1
