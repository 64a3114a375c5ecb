"""Many sentences in one compiled search: new sentences replace finished ones in its slots.

A `Decoder` has models and search settings. It decodes requests in pools: one per thread, or a
single pool if all requests fit at once.

A pool has a fixed number of slots and static shapes: S source positions, T tokens. The longest
sentences come first, and the shapes shrink with them, so that the last steps, with many empty
slots, are cheap. T suffices for most outputs. While an output is longer, the pool has the shapes of
longer sources.
"""

import dataclasses
import functools
import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jformer.components import find
from jformer.config import EOS, DecodeConfig
from jformer.decoding import ensemble
from jformer.decoding.constraints import NO_RULES, Rules
from jformer.decoding.ensemble import Models
from jformer.decoding.search import (
    Hypotheses,
    Search,
    Sentence,
    advance,
    init_search,
    result_of,
)
from jformer.errors import explaining_out_of_memory

MIN_BUCKET = 16  # source positions of the smallest bucket; each next one doubles
PARTS = 8  # a pool is refilled when this share of its slots is empty
SLOTS_PER_THREAD = 16  # with fewer slots, a search is mostly overhead

State = tuple[Sentence, Search]
Static = tuple[Models, int]  # static arguments of compiled programs: the models, and W hypotheses


@dataclasses.dataclass(frozen=True)
class Request:
    """One sentence to decode: ids of the source without EOS, and of the output's prefix."""

    source: list[int]
    prefix: list[int]
    seed: int
    spans: Sequence[tuple[int, int]] = ()  # one per token of the prefix, see prefixes.py
    given: Any = None  # for a constraint, like `progress`
    progress: Any = None

    @property
    def bucket(self) -> int:
        """The number of source positions of the static shape that decodes this sentence."""
        longest = max(len(self.source) + 1, len(self.prefix))
        return max(MIN_BUCKET, 1 << (longest - 1).bit_length())

    def limit(self, config: DecodeConfig) -> int:
        """Return the maximum number of tokens of a hypothesis, EOS counted."""
        limit = max(len(self.source), len(self.prefix)) + config.max_extra_length
        limit = min(limit, config.max_length or limit)
        return max(limit, config.min_length + 1, len(self.prefix) + 1)


def slots_for(number: int) -> int:
    """Return the slots for a small number of requests: a power of four, to compile few shapes."""
    slots = 1
    while slots < number:
        slots *= 4
    return slots


@dataclasses.dataclass(frozen=True)
class Decoder:
    """Models with their parameters and the settings of a search."""

    models: Models
    params: tuple[Any, ...]
    config: DecodeConfig
    max_length: int  # source positions, EOS included
    slots: int  # sentences at a time

    def find(self, requests: Sequence[Request], rules: Rules = NO_RULES) -> dict[int, Hypotheses]:
        """Decode all requests: return the hypotheses by the index of the request."""
        order = sorted(
            range(len(requests)), key=lambda n: (-requests[n].bucket, -len(requests[n].source))
        )
        longest_first = {n: requests[n] for n in order}
        with explaining_out_of_memory("while decoding: lower config.decode.batch_size"):
            if len(requests) > self.slots:
                return self._find_in_threads(longest_first, rules)
            slots = min(slots_for(len(requests)), self.slots)
            return Pool(self, rules, slots, slots).decode(longest_first, threading.Event())

    def _find_in_threads(self, requests: dict[int, Request], rules: Rules) -> dict[int, Hypotheses]:
        threads, stop = self.threads(), threading.Event()
        slots = self.slots // threads
        pools = [Pool(self, rules, slots, max(1, slots // PARTS)) for _ in range(threads)]
        if threads == 1:
            return pools[0].decode(requests, stop)
        # Each thread gets sentences of all lengths, so that all end at about the same time.
        shares = [dict(list(requests.items())[n::threads]) for n in range(threads)]
        with ThreadPoolExecutor(threads) as executor:
            searches = [
                executor.submit(pool.decode, share, stop)
                for pool, share in zip(pools, shares, strict=True)
            ]
            try:
                found: dict[int, Hypotheses] = {}
                for each in as_completed(searches):
                    found |= each.result()
                return found
            finally:
                stop.set()  # an error or Ctrl-C also ends the other threads

    def threads(self) -> int:
        """Return the number of threads that search, each with its share of the slots.

        XLA runs most operations of a search on one core of a CPU; other cores would be idle.
        """
        devices = set().union(*(leaf.devices() for leaf in jax.tree.leaves(self.params)))
        # All devices must receive the programs in the same order.
        if len(devices) > 1 or jax.default_backend() != "cpu":
            return 1
        return max(1, min(usable_cores(), self.slots // SLOTS_PER_THREAD))


def usable_cores() -> int:
    """Return the number of cores that this process may use, as set by `taskset`."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Pool:
    """The state of the searches on the device, and the request in each slot.

    It is refilled with `part` requests at a time. If that is all slots, T suffices for every output
    of a bucket, so that no output compiles another program.
    """

    def __init__(self, decoder: Decoder, rules: Rules, slots: int, part: int):
        self._decoder, self._rules, self._part = decoder, rules, part
        strategy = find("config.decode.search", "search", decoder.config.search)
        self._strategy = jax.tree.map(np.asarray, strategy)  # an argument of compiled searches
        self._static = (decoder.models, strategy.width(decoder.config))
        self._numbers = np.zeros(slots, int)  # of the requests
        self._buckets = np.zeros(slots, int)  # of the requests; 0: free slot
        self._max_t = 0  # of the unfinished searches
        self._shape = (0, 0)
        self._state: Any = None

    def decode(self, requests: dict[int, Request], stop: threading.Event) -> dict[int, Hypotheses]:
        """Decode requests, the longest first, until `stop` is set."""
        found: dict[int, Hypotheses] = {}
        queue = deque(requests)
        while (queue or self._buckets.any()) and not stop.is_set():
            bucket = requests[queue[0]].bucket if queue else 0
            self._fit(max(bucket, self._buckets.max()), example=next(iter(requests.values())))
            while queue and np.sum(self._buckets == 0) >= self._part:
                part = [queue.popleft() for _ in range(min(self._part, len(queue)))]
                self._insert({number: requests[number] for number in part})
            found |= self._run()
        return found

    def _fit(self, bucket: int, example: Request) -> None:
        """Choose shapes for sources of this bucket and for the outputs so far."""
        while self._max_t >= self._tokens(bucket) - 1:
            bucket *= 2
        shape = (min(bucket, self._decoder.max_length), self._tokens(bucket))
        if shape == self._shape:
            return
        self._shape = shape
        batch = self._batch([dataclasses.replace(example, source=[], prefix=[], spans=())])
        empty = empty_state(self._static, len(self._buckets), self._decoder.params, *batch)
        self._state = empty if self._state is None else resize(self._state, empty)

    def _tokens(self, bucket: int) -> int:
        """Return T in the shapes of a bucket."""
        config = self._decoder.config
        max_T = 1 + max(bucket + max(config.max_extra_length, 1), config.min_length + 1)
        if self._part == len(self._buckets):
            return max_T
        return min(max(bucket + 16, bucket * 3 // 2), max_T)  # long enough for most outputs

    def _insert(self, requests: dict[int, Request]) -> None:
        """Start searches for at most `part` requests, in free slots."""
        slots = np.flatnonzero(self._buckets == 0)[: len(requests)]
        self._numbers[slots] = [*requests]
        self._buckets[slots] = [request.bucket for request in requests.values()]
        # Rows without a request are dropped, because their slots are out of bounds.
        slots_R = np.full(self._part, len(self._buckets))
        slots_R[: len(slots)] = slots
        batch = self._batch([*requests.values()])
        self._state = insert(self._static, self._decoder.params, self._state, slots_R, *batch)

    def _batch(self, requests: Sequence[Request]) -> tuple[np.ndarray, Sentence]:
        """Return sources and sentences, without their memory, of `part` rows."""
        S, T = self._shape

        def row(request: Request) -> tuple[np.ndarray, Sentence]:
            sentence = Sentence(
                memory=None,
                prefix_T=padded(request.prefix, (T,)),
                limit=np.int32(request.limit(self._decoder.config)),
                seed=np.int32(request.seed),
                spans_T2=padded(np.reshape(request.spans, (-1, 2)), (T, 2)),
                given=request.given,
                progress=request.progress,
            )
            return padded([*request.source, EOS], (S,)), sentence

        return jax.tree.map(
            lambda *rows: padded(rows, (self._part, *rows[0].shape), rows[0].dtype),
            *map(row, requests),
        )

    def _run(self) -> dict[int, Hypotheses]:
        """Search until a part or all of the pool waits; remove and return completed searches."""
        slots = len(self._buckets)
        min_waiting = min(slots, np.sum(self._buckets == 0) + self._part)
        self._state, seen = run_searches(
            self._decoder.models,
            self._decoder.params,
            self._decoder.config,
            self._strategy,
            self._rules,
            self._state,
            min_waiting,
        )
        busy, t, found = jax.device_get(seen)
        self._max_t = np.max(t, where=busy, initial=0)
        done = np.flatnonzero((self._buckets > 0) & ~busy)
        self._buckets[done] = 0
        return {int(self._numbers[n]): jax.tree.map(itemgetter(n), found) for n in done}


def padded(values: Any, shape: tuple[int, ...], dtype: Any = np.int32) -> np.ndarray:
    """Return an array of this shape that begins with the values; the rest is 0 (PAD)."""
    result = np.zeros(shape, dtype)
    result[: len(values)] = values
    return result


def init_searches(
    static: Static, params: tuple[Any, ...], source_BS: Array, sentences_B: Sentence
) -> State:
    """Encode the sources and return their searches before the first token."""
    models, W = static
    memory = ensemble.encode_sources(models, params, source_BS)
    sentences_B = dataclasses.replace(sentences_B, memory=memory)
    cache = ensemble.init_cache(models, W, sentences_B.prefix_T.shape[1])
    return sentences_B, jax.vmap(lambda sentence: init_search(sentence, cache, W))(sentences_B)


@functools.partial(jax.jit, static_argnums=(0, 1))
def empty_state(static: Static, slots: int, params: tuple[Any, ...], *batch: Any) -> State:
    """Return a pool without sentences, in the shapes of a batch."""
    searches = init_searches(static, params, *batch)  # for the shapes: XLA drops the computation
    return jax.tree.map(lambda x: jnp.zeros((slots, *x.shape[1:]), x.dtype), searches)


@jax.jit
def resize(state: State, empty: State) -> State:
    """Copy the state into the shapes of `empty`; positions beyond them are not in use."""

    def copy(old, new):
        common = tuple(slice(min(a, b)) for a, b in zip(old.shape, new.shape, strict=True))
        return new.at[common].set(old[common])

    return jax.tree.map(copy, state, empty)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def insert(
    static: Static, params: tuple[Any, ...], state: State, slots_R: Array, *batch: Any
) -> State:
    """Put new searches into `slots_R`."""
    new = init_searches(static, params, *batch)
    return jax.tree.map(lambda old, new: old.at[slots_R].set(new, mode="drop"), state, new)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=5)
def run_searches(
    models: Models,
    params: tuple[Any, ...],
    config: DecodeConfig,
    strategy: Any,
    rules: Rules,
    state: State,
    min_waiting: Array,
) -> tuple[State, tuple[Array, Array, Hypotheses]]:
    """Advance until `min_waiting` slots wait; return the pool, and the state that the host reads.

    `strategy` is the component that extends the hypotheses.
    """
    sentences_B, searches_B = state
    step = ensemble.make_step(models, params)
    extend = functools.partial(strategy.extend, step, config, rules=rules)
    searches_B = advance(extend, sentences_B, searches_B, min_waiting)
    found_B = jax.vmap(lambda search: result_of(search, config))(searches_B)
    return (sentences_B, searches_B), (searches_B.busy, searches_B.t, found_B)
