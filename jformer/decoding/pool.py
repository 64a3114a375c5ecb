"""Many sentences through one compiled search: finished ones leave, and others take their slots.

A `Decoder` holds models and how to search with them. It decodes requests in pools: one for each
thread, or a single pool if all requests fit at once.

A pool has a fixed number of slots and static shapes: S source positions, T tokens. The longest
sentences come first, and the shapes shrink with them, so that the last steps, with many empty
slots, are cheap. Few outputs are very long. They wait at the end of a short T until there are
enough of them to pay for a long one.
"""

import collections
import dataclasses
import functools
import logging
import operator
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jformer.components import find, name_of
from jformer.config import EOS, PAD, DecodeConfig
from jformer.decoding import ensemble
from jformer.decoding.ensemble import Models
from jformer.decoding.search import (
    NO_RULES,
    Hypotheses,
    Rules,
    Search,
    Sentence,
    advance,
    init_search,
    result_of,
)
from jformer.errors import RunError, is_out_of_memory

log = logging.getLogger(__name__)

MIN_BUCKET = 16  # source positions; buckets double from here
PARTS = 8  # a pool is refilled when this share of its slots is empty
SLOTS_PER_THREAD = 16  # with fewer, a search is mostly overhead
# Keys that a search is compiled for, and keys that it takes as arguments.
COMPILED = ("search", "beam_size", "n_best")
ARGUMENTS = ("length_penalty", "length_penalty_beta", "min_length")

State = tuple[Sentence, Search]
Static = tuple[Models, DecodeConfig]  # what a program is compiled for


@dataclasses.dataclass(frozen=True)
class Request:
    """One sentence to decode: ids of the source without EOS, and of the output's prefix."""

    source: list[int]
    prefix: list[int]
    seed: int
    spans: Sequence[tuple[int, int]] = ()  # for each token of the prefix, see prefixes.py
    given: Any = None  # of a constraint, as `progress`
    progress: Any = None

    @property
    def bucket(self) -> int:
        """The number of source positions in whose static shape it is decoded."""
        longest = max(len(self.source) + 1, len(self.prefix))
        return max(MIN_BUCKET, 1 << (longest - 1).bit_length())

    def limit(self, config: DecodeConfig) -> int:
        """Return the maximum number of tokens of a hypothesis, EOS counted."""
        limit = max(len(self.source), len(self.prefix)) + config.max_extra_length
        limit = min(limit, config.max_length or limit)
        return max(limit, config.min_length + 1, len(self.prefix) + 1)


def slots_for(number: int) -> int:
    """Return the slots for few requests: a power of four, so that few shapes are compiled."""
    slots = 1
    while slots < number:
        slots *= 4
    return slots


@dataclasses.dataclass
class Decoder:
    """Models with their parameters, and how to search with them."""

    models: Models
    params: tuple[Any, ...]
    config: DecodeConfig
    max_length: int  # source positions, EOS included
    slots: int  # sentences at a time; lowered when the memory does not suffice
    max_threads: int | None = None  # by default on a CPU one per core, elsewhere one

    def find(self, requests: Sequence[Request], rules: Rules = NO_RULES) -> dict[int, Hypotheses]:
        """Decode all requests: return the hypotheses by the index of the request."""
        found: dict[int, Hypotheses] = {}
        while len(found) < len(requests):
            waiting = {n: each for n, each in enumerate(requests) if n not in found}
            try:
                self._find(waiting, found, rules)
            except jax.errors.JaxRuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                if self.slots == 1:
                    raise RunError(
                        "out of memory with one sentence: lower config.decode.beam_size"
                    ) from error
                self.slots = max(1, min(self.slots, len(requests)) // 2)
                log.warning("out of memory: config.decode.batch_size=%d from here on", self.slots)
        return found

    def _find(
        self, requests: dict[int, Request], found: dict[int, Hypotheses], rules: Rules
    ) -> None:
        """Decode the requests, in several threads if that pays, and add them to `found`."""
        order = sorted(requests, key=lambda n: (-requests[n].bucket, -len(requests[n].source)))
        stop = threading.Event()
        if len(order) <= self.slots:
            slots = min(slots_for(len(order)), self.slots)
            pool = Pool(self, rules, requests[order[0]], slots, slots, long=True)
            return search(pool, requests, order, found, stop)
        threads = self.threads()
        slots = self.slots // threads
        pools = [
            Pool(self, rules, requests[order[0]], slots, max(1, slots // PARTS), long=False)
            for _ in range(threads)
        ]
        if threads == 1:
            return search(pools[0], requests, order, found, stop)
        with ThreadPoolExecutor(threads) as executor:
            # Each gets sentences of all lengths, so that they end at about the same time.
            searches = [
                executor.submit(search, pool, requests, order[n::threads], found, stop)
                for n, pool in enumerate(pools)
            ]
            try:
                for each in as_completed(searches):
                    each.result()
            finally:
                stop.set()  # after an error or Ctrl-C the others end, too

    def threads(self) -> int:
        """Return the number of threads that search, each with its share of the slots.

        XLA runs most operations of a search on one core of a CPU, so that the others would wait.
        """
        devices = set().union(*(leaf.devices() for leaf in jax.tree.leaves(self.params)))
        if len(devices) > 1:
            return 1  # all devices have to get the programs in the same order
        threads = self.max_threads
        if threads is None:
            threads = usable_cores() if jax.default_backend() == "cpu" else 1
            threads = min(threads, self.slots // SLOTS_PER_THREAD)
        return max(1, min(threads, self.slots))


def usable_cores() -> int:
    """Return the number of cores that this process may use, as set by `taskset`."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def search(
    pool: "Pool",
    requests: dict[int, Request],
    numbers: Sequence[int],
    found: dict[int, Hypotheses],
    stop: threading.Event,
) -> None:
    """Decode the requests with these numbers, the longest first, and add them to `found`."""
    queue = collections.deque(numbers)
    while queue and not stop.is_set():
        pool.fit(requests[queue[0]].bucket)
        while queue and np.sum(~pool.occupied()) >= pool.part:
            part = [queue.popleft() for _ in range(min(pool.part, len(queue)))]
            pool.insert({number: requests[number] for number in part})
        found.update(pool.run(last=False))
    while pool.occupied().any() and not stop.is_set():
        pool.fit(requests[numbers[-1]].bucket, last=True)
        found.update(pool.run(last=True))


class Pool:
    """The state of the searches on the device, and the number of the request in each slot.

    It is refilled with `part` requests at a time, shaped like `example`. If it is `long`, T
    suffices for every output of a bucket.
    """

    def __init__(
        self, decoder: Decoder, rules: Rules, example: Request, slots: int, part: int, long: bool
    ):
        config = decoder.config
        self.part = part
        self._params, self._rules = decoder.params, rules
        self._example = dataclasses.replace(example, source=[], prefix=[], spans=())
        self._config, self._max_length, self._long = config, decoder.max_length, long
        compiled = {key: getattr(config, key) for key in COMPILED}
        # Without options, so that another seed or temperature does not compile again.
        compiled["search"] = name_of(config.search) or config.search
        self._static = (decoder.models, DecodeConfig(**compiled))
        self._keys = {key: np.asarray(getattr(config, key)) for key in ARGUMENTS}
        strategy = find("config.decode.search", "search", config.search)
        if jax.tree.leaves(strategy) == [strategy]:
            raise config.wrong("search", "must be a flax.struct.dataclass")
        self._strategy = jax.tree.map(np.asarray, strategy)  # an argument of compiled searches
        self._shape = (0, 0)
        self._numbers = np.full(slots, -1)  # of the requests; -1: the slot is free
        self._buckets = np.zeros(slots, int)  # of the requests
        self._t = np.zeros(slots, int)
        self._state: Any = None

    def occupied(self) -> np.ndarray:
        return self._numbers >= 0

    def fit(self, bucket: int, last: bool = False) -> None:
        """Choose shapes for sources of this bucket and for the searches in the pool."""
        bucket = max([bucket, *self._buckets[self.occupied()]])
        while not self._long and self._needs_more(self._tokens(bucket), last):
            bucket *= 2
        shape = (min(bucket, self._max_length), self._tokens(bucket))
        if shape == self._shape:
            return
        self._shape = shape
        batch = self._batch([self._example])
        empty = empty_state(self._static, self._params, len(self._numbers), *batch)
        self._state = empty if self._state is None else resize(self._state, empty)

    def _tokens(self, bucket: int) -> int:
        """Return T in the shape of a bucket: unless it is `long`, long enough for most."""
        config = self._config
        long = 1 + max(bucket + max(config.max_extra_length, 1), config.min_length + 1)
        return long if self._long else min(max(bucket + 16, bucket * 3 // 2), long)

    def _needs_more(self, T: int, last: bool) -> bool:
        """Return whether T is too short for the searches that fill it."""
        occupied = self.occupied()
        full = occupied & (self._t >= T - 1)
        if self._shape[1] > T:
            return bool(full.any())  # they already have more
        enough = full.sum() >= max(1, len(full) // 4)
        return bool(enough or (last and full.any() and full.sum() == occupied.sum()))

    def insert(self, requests: dict[int, Request]) -> None:
        """Begin searches for at most `part` requests, in free slots."""
        slots = np.flatnonzero(~self.occupied())[: len(requests)]
        self._numbers[slots] = [*requests]
        self._buckets[slots] = [request.bucket for request in requests.values()]
        self._t[slots] = 0
        # Rows without a request are dropped, because their slots are out of bounds.
        slots_R = np.full(self.part, len(self._numbers))
        slots_R[: len(slots)] = slots
        batch = self._batch([*requests.values()])
        self._state = insert(self._static, self._params, self._state, slots_R, *batch)

    def _batch(self, requests: Sequence[Request]) -> tuple[np.ndarray, Sentence]:
        """Return sources and sentences, without their memory, of `part` rows."""
        (S, T), R = self._shape, self.part
        source_RS = np.full((R, S), PAD, np.int32)
        prefix_RT = np.full((R, T), PAD, np.int32)
        spans_RT2 = np.zeros((R, T, 2), np.int32)
        limits_R, seeds_R = np.zeros((2, R), np.int32)
        for row, request in enumerate(requests):
            source_RS[row, : len(request.source) + 1] = [*request.source, EOS]
            prefix_RT[row, : len(request.prefix)] = request.prefix
            spans_RT2[row, : len(request.spans)] = np.reshape(request.spans, (-1, 2))
            limits_R[row] = request.limit(self._config)
            seeds_R[row] = request.seed

        def stack(*leaves):
            rows = np.zeros((R, *leaves[0].shape), leaves[0].dtype)
            rows[: len(leaves)] = leaves
            return rows

        constraint = [(request.given, request.progress) for request in requests]
        given, progress = jax.tree.map(stack, *constraint)
        sentences = Sentence(None, prefix_RT, limits_R, seeds_R, spans_RT2, given, progress)
        return source_RS, sentences

    def run(self, last: bool) -> Iterator[tuple[int, Hypotheses]]:
        """Search until a part of the pool is done, or all of it; yield and remove what is done."""
        slots = len(self._numbers)
        waiting = ~self.occupied() | (self._t >= self._shape[1] - 1)
        min_waiting = slots if last else min(slots, int(waiting.sum()) + self.part)
        arguments = (self._params, self._keys, self._strategy, self._state, min_waiting)
        self._state, seen = run_searches(self._static, *arguments, self._rules)
        busy, t, found = jax.device_get(seen)
        self._t = np.where(self.occupied(), t, 0)
        for slot in np.flatnonzero(self.occupied() & ~busy):
            number = int(self._numbers[slot])
            self._numbers[slot] = -1
            yield number, jax.tree.map(operator.itemgetter(slot), found)


def init_searches(
    static: Static, params: tuple[Any, ...], source_BS: Array, sentences_B: Sentence
) -> State:
    """Encode the sources and return their searches before the first token."""
    models, config = static
    W = find("config.decode.search", "search", config.search).width(config)
    memory = ensemble.encode_sources(models, params, source_BS)
    sentences_B = dataclasses.replace(sentences_B, memory=memory)
    cache = ensemble.init_cache(models, W, sentences_B.prefix_T.shape[1])
    return sentences_B, jax.vmap(lambda sentence: init_search(sentence, cache, W))(sentences_B)


@functools.partial(jax.jit, static_argnums=(0, 2))
def empty_state(
    static: Static, params: tuple[Any, ...], slots: int, source_RS: Array, sentences_R: Sentence
) -> State:
    """Return a pool without sentences, of the shapes of some sentences."""
    inputs = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((slots, *x.shape[1:]), x.dtype), (source_RS, sentences_R)
    )
    state = jax.eval_shape(functools.partial(init_searches, static), params, *inputs)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), state)


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


@functools.partial(jax.jit, static_argnums=0, donate_argnums=4)
def run_searches(
    static: Static,
    params: tuple[Any, ...],
    keys: dict[str, Array],
    strategy: Any,
    state: State,
    min_waiting: Array,
    rules: Rules,
) -> tuple[State, tuple[Array, Array, Hypotheses]]:
    """Advance until `min_waiting` slots wait; return the pool, and what the host needs to see.

    `keys` are those of the config that a compiled search takes as arguments, and `strategy` is the
    component that extends the hypotheses.
    """
    models, config = static[0], dataclasses.replace(static[1], **keys)
    sentences_B, searches_B = state
    step = ensemble.make_step(models, params)
    extend = functools.partial(strategy.extend, step, config, rules=rules)
    searches_B = advance(extend, sentences_B, searches_B, min_waiting)
    found_B = jax.vmap(lambda search: result_of(search, config))(searches_B)
    return (sentences_B, searches_B), (searches_B.busy, searches_B.t, found_B)
