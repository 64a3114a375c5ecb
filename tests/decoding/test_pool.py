"""Many requests through one pool: each gets what a search for it alone gets, whatever the pool."""

import contextlib
import dataclasses
import os
import random
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jformer import components
from jformer.config import EOS, DecodeConfig
from jformer.decoding import pool
from jformer.decoding.ensemble import mean_logits
from jformer.decoding.pool import Request
from jformer.decoding.scoring import score_pairs
from jformer.decoding.search import Rules
from tests.decoding.machines import beam_over_lists, found_of
from tests.decoding.small import MODEL, V, decoder_of, log_probs_by, make

W = 3
CONFIG = DecodeConfig(beam_size=W, n_best=W, max_extra_length=30)
# Cached steps, other shapes and other rows of a batch round the sum of some 20 log-probabilities
# otherwise; of choices that are closer rounding decides.
CLOSE = 1e-4


def slow(value):
    """A case more of what others show in the fast tier: compiling takes all the time here."""
    return pytest.param(value, marks=pytest.mark.slow)


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
    found = decoder.find(requests, Rules(ranks_V=np.arange(V)))
    assert sorted(found) == list(range(len(requests)))
    return [found_of(found[n], decoder.config.n_best) for n in range(len(requests))]


def assert_found(found, expected):
    for ours, twins in zip(found, expected, strict=True):
        assert [one.tokens for one in ours] == [one.tokens for one in twins]
        for one, twin in zip(ours, twins, strict=True):
            assert one.score == pytest.approx(twin.score, rel=1e-5, abs=CLOSE)
            assert one.log_prob == pytest.approx(twin.log_prob, rel=1e-5, abs=CLOSE)


@pytest.fixture
def shapes(monkeypatch):
    """The shapes that a pool goes through: sentences, source positions, tokens."""
    seen, grown = [], pool.run_searches

    def watched(*arguments):
        state = arguments[4]
        B, _, T = state[1].live_tokens_WT.shape[-3:]
        seen.append((B, state[0].memory[0].mask_B11S.shape[-1], T))
        return grown(*arguments)

    monkeypatch.setattr(pool, "run_searches", watched)
    return seen


def test_there_are_outputs_of_all_kinds(requests):
    """What the tests below need: short ones, such as outlast a short T, and such as never end."""
    lengths = [
        (request.bucket, len(best[0].tokens)) for request, best in zip(*requests, strict=True)
    ]
    assert {bucket for bucket, _ in lengths} == {16, 32}
    assert min(length for _, length in lengths) <= 2
    assert sum(bucket == 16 and length > 32 for bucket, length in lengths) > 5
    assert sum(best[0].tokens[-1] != EOS for best in requests[1]) > 5


@pytest.mark.parametrize("places", [slow(1), slow(3), 16, slow(24), 64])
def test_each_request_finds_what_a_search_over_lists_finds_for_it_alone(places, requests, shapes):
    assert_found(found_by(decoder_of(CONFIG, places), requests[0]), requests[1])
    if places == 64:  # all at once: one shape holds them all
        assert set(shapes) == {(64, 32, 1 + 32 + 30)}
    else:
        assert len(shapes) > len(set(shapes))  # who is done leaves, and others take the places
        # Of 24 places so few are left that a long source stays until no short one waits.
        least = [(16, 32)] if places < 24 else []
        expected = {(places, S, T) for S, T in [*least, (32, 48), (64, 1 + 64 + 30)]}
        assert set(shapes) == expected


def test_threads_that_share_the_places_find_the_same(requests, shapes):
    decoder = dataclasses.replace(decoder_of(CONFIG, 24), max_threads=3)
    assert_found(found_by(decoder, requests[0]), requests[1])
    assert {rows for rows, *_ in shapes} == {8}


def test_an_error_in_one_thread_ends_the_others_and_reaches_the_caller(requests, monkeypatch):
    searching, calls = pool.run_searches, []

    def failing(*arguments):
        calls.append(threading.current_thread())
        if len(calls) == 1:
            raise ValueError("of one thread")
        return searching(*arguments)

    monkeypatch.setattr(pool, "run_searches", failing)
    decoder = dataclasses.replace(decoder_of(CONFIG, 16), max_threads=2)
    with pytest.raises(ValueError, match="of one thread"):
        decoder.find(requests[0] * 50)
    assert len(calls) < 50
    assert not any(thread.is_alive() for thread in calls)


@pytest.mark.parametrize(
    ("asked", "places", "threads"), [(None, 1, 1), (None, 31, 1), (1, 64, 1), (3, 64, 3), (9, 4, 4)]
)
def test_the_number_of_threads(asked, places, threads):
    decoder = dataclasses.replace(decoder_of(CONFIG, places), max_threads=asked)
    assert decoder.threads() == threads


def test_without_a_number_there_is_a_thread_for_each_core(monkeypatch):
    monkeypatch.setattr("jformer.decoding.pool.usable_cores", lambda: 3)
    assert [decoder_of(CONFIG, places).threads() for places in (32, 64)] == [2, 3]


ON_TWO_DEVICES = """
import dataclasses, jax
from jax.sharding import NamedSharding, PartitionSpec
from tests.decoding.test_pool import CONFIG, decoder_of, make

model, params = make()
mesh = jax.make_mesh((2,), ("data",))
everywhere = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
for placed in (params, everywhere):
    decoder = decoder_of(CONFIG, 64, (model, placed))
    print(dataclasses.replace(decoder, max_threads=3).threads())
"""


@pytest.mark.process
def test_parameters_on_several_devices_are_searched_with_by_one_thread():
    program, two = [sys.executable, "-c", ON_TWO_DEVICES], {"JAX_NUM_CPU_DEVICES": "2"}
    done = subprocess.run(program, capture_output=True, text=True, env={**os.environ, **two})
    assert done.stdout.split() == ["3", "1"], done.stderr


def test_the_order_of_the_requests_plays_no_part(requests):
    order = list(range(len(requests[0])))
    random.Random(1).shuffle(order)
    found = found_by(decoder_of(CONFIG, 16), [requests[0][n] for n in order])
    assert_found(found, [requests[1][n] for n in order])


@pytest.mark.slow
def test_samples_do_not_depend_on_the_pool():
    config = DecodeConfig(search="sampling(seed=7)", n_best=5, max_extra_length=30)
    requests = some_requests(40, 15)
    by_16, by_64 = (found_by(decoder_of(config, places), requests) for places in (16, 64))
    assert_found(by_16, by_64)
    assert len({tuple(one.tokens) for every in by_16 for one in every}) > 100


ENCODINGS = [
    f"{norm}-{positions}"
    for norm in ("post", "pre")
    for positions in components.BUILT_IN["positions"]
]


@pytest.mark.slow  # in the fast tier test_variants.py has the steps of each encoding
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_a_search_reports_is_what_forced_decoding_gives(encoding):
    """Cached steps against the whole decoder, where hypotheses change places as they do."""
    norm_position, positions = encoding.split("-")
    model = dataclasses.replace(MODEL, norm_position=norm_position, positions=positions)
    members, requests = [make(model)], some_requests(7, 15)
    found = found_by(decoder_of(SHORT, 64, *members), requests)
    assert_forced(members, requests, found)


SHORT = dataclasses.replace(CONFIG, max_extra_length=12)


def assert_forced(members, requests, found):
    """The log-probabilities, from a pass for each of the members."""
    pairs = [(r.source, one) for r, every in zip(requests, found, strict=True) for one in every]
    without_end = [(source, [t for t in one.tokens if t != EOS]) for source, one in pairs]
    passes = [score_pairs((model,), (p,), without_end, batch_size=64) for model, p in members]
    for (_, one), *each in zip(pairs, *passes, strict=True):
        shares = np.mean([np.exp(forced.log_probs_T.astype(np.float64)) for forced in each], axis=0)
        expected = np.log(shares)[: len(one.tokens)].sum()  # the end's only where there is one
        assert one.log_prob == pytest.approx(expected, rel=1e-5, abs=CLOSE)
    assert len({tuple(one.tokens) for _, one in pairs}) > 12


OTHER = dataclasses.replace(MODEL, d_model=18, num_heads=3, positions="rotary", tying="none")


def test_logits_of_an_ensemble_are_those_of_the_mean_of_probabilities():
    logits = np.random.default_rng(0).normal(size=(3, 5, 7)).astype(np.float32) * 4
    shares = np.exp(logits.astype(np.float64))
    expected = (shares / shares.sum(axis=-1, keepdims=True)).mean(axis=0)
    found = np.exp(np.asarray(mean_logits(list(logits)), np.float64))
    found /= found.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-6)  # float32


@pytest.mark.slow
def test_an_ensemble_of_a_model_with_itself_is_the_model():
    requests = some_requests(7, 15)
    once, twice = (found_by(decoder_of(SHORT, 64, *[make()] * n), requests) for n in (1, 2))
    assert_found(twice, once)


@pytest.mark.slow
def test_an_ensemble_searches_by_the_mean_of_probabilities():
    members, requests = [make(), make(OTHER, seed=1)], some_requests(7, 15)
    found = found_by(decoder_of(SHORT, 64, *members), requests)
    assert_forced(members, requests, found)


def test_what_is_drawn_for_a_request_depends_on_its_seed():
    config = DecodeConfig(search="sampling", n_best=5, max_extra_length=12)
    requests = [Request([5, 7, 11], [], seed) for seed in (1, 2, 3, 1)]
    samples = [[one.tokens for one in every] for every in found_by(decoder_of(config, 4), requests)]
    assert samples[0] == samples[3]
    assert samples[0] != samples[1] != samples[2] != samples[0]


SAMPLING = DecodeConfig(search="sampling", max_extra_length=30)


@pytest.mark.parametrize(
    ("config", "key", "value"),
    [
        (CONFIG, "length_penalty", 2.5),
        (CONFIG, "length_penalty_beta", 0.0),
        (CONFIG, "search", "beam(diversity=0.7)"),
        (CONFIG, "min_length", 4),
        (CONFIG, "max_length", 9),
        (SAMPLING, "search", f"sampling(seed={2**32 - 1})"),
        (SAMPLING, "search", "sampling(temperature=0.3)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_value_changes_what_is_found_and_compiles_nothing(config, key, value):
    requests = some_requests(8, 28)
    before = found_by(decoder_of(config, 8), requests)
    compiled = pool.run_searches._cache_size()
    other = dataclasses.replace(config, **{key: value})
    assert found_by(decoder_of(other, 8), requests) != before
    assert pool.run_searches._cache_size() == compiled


def test_sentences_that_come_one_after_another_compile_a_program_a_bucket_of_lengths():
    decoder, compiled = decoder_of(CONFIG, 64), pool.run_searches._cache_size()
    requests = [Request([5] * length, [], 0) for length in (1, 2, 7, 15, 16, 23, 31)]
    for request in requests:
        decoder.find([request])
    assert {request.bucket for request in requests} == {16, 32}
    assert pool.run_searches._cache_size() - compiled <= 2


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


@contextlib.contextmanager
def at_most(seconds):
    def stop(number, frame):
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_a_prefix_that_fills_its_bucket_comes_to_an_end_without_extra_length():
    decoder = decoder_of(dataclasses.replace(CONFIG, max_extra_length=0), 1)
    with at_most(seconds=60):
        for length in (15, 16):
            ((best, *_),) = found_by(decoder, [Request([5] * 9, [7] * length, 0)])
            assert best.tokens[:length] == [7] * length
            assert len(best.tokens) == length + 1


OUT_OF_MEMORY = """
import dataclasses, logging, resource
from jformer.config import DecodeConfig
from jformer.decoding.pool import Request
from jformer.errors import RunError
from tests.decoding.small import MODEL, decoder_of, make

logging.basicConfig(format="%(message)s")
# 90 MB of keys and values a sentence: 720 MB in 8 places, 180 MB in 2.
member = make(dataclasses.replace(MODEL, num_heads=2, d_k=2**16, d_v=2**16))
config = DecodeConfig(beam_size=5, n_best=5, max_extra_length=0)
requests = [Request([number], [], 0) for number in (5, 7, 11, 13, 17)]

def search(megabytes, config, requests):
    status = open("/proc/self/status").read()
    mapped = int(status.split("VmSize:")[1].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_AS, (mapped + (megabytes << 20), -1))
    decoder = decoder_of(config, 64, member)
    found = {n: each.tokens_WT.tolist() for n, each in decoder.find(requests).items()}
    print(decoder.slots, sorted(found.items()))

search(600, config, requests)
try:
    search(600, dataclasses.replace(config, beam_size=101), requests[:1])
except RunError as error:
    print(error)
search(4000, config, requests)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is limited by Linux")
def test_out_of_memory_means_fewer_sentences_at_a_time_or_an_error_that_says_what_to_lower():
    """Of a real process that may not have more; XLA says so in several ways."""
    program = [sys.executable, "-c", OUT_OF_MEMORY]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    little, error, enough = done.stdout.splitlines()
    assert little == enough.replace("64 ", "2 ", 1)
    assert "config.decode.batch_size=2" in done.stderr
    assert "config.decode.beam_size" in error
