"""Many sentences through one compiled search: finished ones leave, and others take their places.

A pool has a fixed number of places and static shapes: S source positions, T tokens. Sentences come
in the order of their lengths, and the shapes grow with them. The few outputs that are very long
wait at the end of a short T until there are enough of them to pay for a long one.
"""

import collections
import dataclasses
import functools
import itertools
import logging
import operator
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jformer.config import EOS, PAD, DecodeConfig
from jformer.decoding import beam, ensemble, sampling
from jformer.decoding.ensemble import Models
from jformer.decoding.search import (
    Hypotheses,
    Search,
    Sentence,
    advance,
    init_search,
    result_of,
)
from jformer.errors import RunError, is_out_of_memory

log = logging.getLogger(__name__)

SHORTEST_BUCKET = 16  # source positions; buckets double from here
PARTS = 8  # a pool is refilled in parts of this share of its places
PLACES_PER_THREAD = 16  # with fewer, a search is mostly overhead
# A compiled search is made for these keys, takes those as arguments, and does not see the others.
COMPILED = ("search", "beam_size", "n_best", "top_k", "top_p")
ARGUMENTS = (
    "length_penalty", "length_penalty_beta", "diversity", "min_length", "temperature", "seed",
)  # fmt: skip

State = tuple[Sentence, Search]


@dataclasses.dataclass(frozen=True)
class Request:
    """One sentence to decode: ids of the source without EOS, and of the output's prefix."""

    source: list[int]
    prefix: list[int]
    seed: int

    @property
    def bucket(self) -> int:
        """The number of source positions in whose static shape it is decoded."""
        longest = max(len(self.source) + 1, len(self.prefix))
        return max(SHORTEST_BUCKET, 1 << (longest - 1).bit_length())

    def limit(self, config: DecodeConfig) -> int:
        """Return the maximum number of tokens of a hypothesis, EOS counted."""
        limit = max(len(self.source), len(self.prefix)) + config.max_extra_length
        limit = min(limit, config.max_length or limit)
        return max(limit, config.min_length + 1, len(self.prefix) + 1)


@dataclasses.dataclass
class Decoder:
    """Models with their parameters, and how to search with them."""

    models: Models
    params: tuple[Any, ...]
    config: DecodeConfig
    max_length: int  # source positions, EOS included
    places: int  # sentences at a time; lowered where memory does not suffice

    def find(self, requests: Sequence[Request]) -> dict[int, Hypotheses]:
        """Decode all requests: return the hypotheses by the number of the request."""
        found: dict[int, Hypotheses] = {}
        while len(found) < len(requests):
            waiting = {n: each for n, each in enumerate(requests) if n not in found}
            try:
                self._find(waiting, found)
            except jax.errors.JaxRuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                if self.places == 1:
                    raise RunError(
                        "out of memory with one sentence: lower config.decode.beam_size"
                    ) from error
                self.places = max(1, min(self.places, len(requests)) // 2)
                log.warning("out of memory: config.decode.batch_size=%d from here on", self.places)
        return found

    def _find(self, requests: dict[int, Request], found: dict[int, Hypotheses]) -> None:
        """Decode the requests, in several threads if that pays, and add what is found."""
        order = sorted(requests, key=lambda n: (requests[n].bucket, len(requests[n].source)))
        buckets = {n: requests[n].bucket for n in order}
        stop = threading.Event()

        def search(pool: Pool, numbers: list[int]) -> None:
            for bucket, group in itertools.groupby(numbers, key=buckets.__getitem__):
                queue = collections.deque(group)
                while queue and not stop.is_set():
                    pool.fit(bucket, last=False)
                    while queue and np.sum(~pool.occupied()) >= pool.part:
                        part = [queue.popleft() for _ in range(min(pool.part, len(queue)))]
                        pool.insert({number: requests[number] for number in part})
                    found.update(pool.run(last=False))
            while pool.occupied().any() and not stop.is_set():
                pool.fit(bucket, last=True)
                found.update(pool.run(last=True))

        if len(order) <= self.places:
            # There is a place for each from the start: one shape, instead of one per bucket.
            rows = min(self.places, 1 << (len(order) - 1).bit_length())
            buckets = dict.fromkeys(order, max(buckets.values()))
            return search(Pool(self, rows, parts=1, long=True), order)
        threads = self.threads()
        pools = [Pool(self, self.places // threads, PARTS, long=False) for _ in range(threads)]
        if threads == 1:
            return search(pools[0], order)
        with ThreadPoolExecutor(threads) as executor:
            # Each gets sentences of all lengths, so that they end at about the same time.
            shares = [order[n::threads] for n in range(threads)]
            searches = [executor.submit(search, *each) for each in zip(pools, shares, strict=True)]
            try:
                for each in as_completed(searches):
                    each.result()
            finally:
                stop.set()  # after an error or Ctrl-C the others end, too

    def threads(self) -> int:
        """Return the number of threads that search, each with its share of the places.

        XLA runs most operations of a search on one core of a CPU, so that the others would wait.
        """
        devices = set().union(*(leaf.devices() for leaf in jax.tree.leaves(self.params)))
        if len(devices) > 1:
            return 1  # all devices have to get the programs in the same order
        most = self.config.threads
        if most is None:
            most = os.cpu_count() or 1 if jax.default_backend() == "cpu" else 1
            most = min(most, self.places // PLACES_PER_THREAD)
        return max(1, min(most, self.places))


class Pool:
    """The state of the searches on the device, and the number of the request in each place."""

    def __init__(self, decoder: Decoder, rows: int, parts: int, long: bool):
        self._decoder, self._rows, self._always_long = decoder, rows, long
        config = decoder.config
        compiled = {key: getattr(config, key) for key in COMPILED}
        self._static = (decoder.models, DecodeConfig(**compiled))
        self._keys = {key: np.asarray(getattr(config, key)) for key in ARGUMENTS}
        self.part = max(1, rows // parts)
        self._shape, self._long = (0, 0), False
        self._numbers = np.full(rows, -1)  # of the requests; -1: the place is free
        self._t = np.zeros(rows, int)
        self._state: Any = None

    def occupied(self) -> np.ndarray:
        return self._numbers >= 0

    def fit(self, bucket: int, last: bool) -> None:
        """Choose shapes for sources of this bucket and for the searches in the pool."""
        config = self._decoder.config
        long_T = 1 + max(bucket + max(config.max_extra_length, 1), config.min_length + 1)
        short_T = min(bucket * 3 // 2, long_T)
        self._long = self._always_long or self._needs_long(short_T, last)
        T = long_T if self._long else short_T
        shape = (min(bucket, self._decoder.max_length), T)
        if shape == self._shape:
            return
        self._shape = shape
        empty = empty_state(*self._static, self._decoder.params, self._rows, *shape)
        self._state = empty if self._state is None else resize(self._state, empty)

    def _needs_long(self, short_T: int, last: bool) -> bool:
        """Return whether searches that fill a short T go on in a long one, or still wait for it."""
        occupied = self.occupied()
        full = occupied & (self._t >= short_T - 1)
        if full.sum() >= max(1, self._rows // 4):
            return True
        if last and full.sum() == occupied.sum():
            return True  # no other search is left to wait for
        return self._long and bool(full.any())  # those that have begun to go on

    def insert(self, requests: dict[int, Request]) -> None:
        """Begin searches for at most `part` requests, in free places."""
        (S, T), config, R = self._shape, self._decoder.config, self.part
        source_RS = np.full((R, S), PAD, np.int32)
        prefix_RT = np.full((R, T), PAD, np.int32)
        limits_R = np.zeros(R, np.int32)
        seeds_R = np.zeros(R, np.int32)
        places_R = np.full(R, self._rows)  # out of bounds: rows without a request are dropped
        free = iter(np.flatnonzero(~self.occupied()))
        for row, (number, request) in enumerate(requests.items()):
            source_RS[row, : len(request.source) + 1] = [*request.source, EOS]
            prefix_RT[row, : len(request.prefix)] = request.prefix
            limits_R[row] = request.limit(config)
            seeds_R[row] = request.seed
            place = next(free)
            places_R[row] = place
            self._numbers[place] = number
            self._t[place] = 0
        new = (source_RS, prefix_RT, limits_R, seeds_R)
        self._state = insert(*self._static, self._decoder.params, self._state, places_R, *new)

    def run(self, last: bool) -> Iterator[tuple[int, Hypotheses]]:
        """Search until a part of the pool is done, or all of it; yield and remove what is done."""
        waiting = ~self.occupied() | (self._t >= self._shape[1] - 1)
        enough = self._rows if last else min(self._rows, int(waiting.sum()) + self.part)
        arguments = (self._decoder.params, self._keys, self._state, enough)
        self._state, seen = run_searches(*self._static, *arguments)
        busy, t, found = jax.device_get(seen)
        self._t = np.where(self.occupied(), t, 0)
        for place in np.flatnonzero(self.occupied() & ~busy):
            number = int(self._numbers[place])
            self._numbers[place] = -1
            yield number, jax.tree.map(operator.itemgetter(place), found)


def init_searches(
    models: Models,
    config: DecodeConfig,
    params: tuple[Any, ...],
    source_BS: Array,
    prefix_BT: Array,
    limit_B: Array,
    seed_B: Array,
) -> State:
    """Encode the sources and return their searches before the first token."""
    W = config.beam_size if config.search == "beam" else config.n_best
    memory = ensemble.encode_sources(models, params, source_BS)
    sentences_B = Sentence(memory, prefix_BT, limit_B, seed_B)
    cache = ensemble.init_cache(models, W, prefix_BT.shape[1])
    return sentences_B, jax.vmap(lambda sentence: init_search(sentence, cache, W))(sentences_B)


@functools.partial(jax.jit, static_argnums=(0, 1, 3, 4, 5))
def empty_state(
    models: Models, config: DecodeConfig, params: tuple[Any, ...], B: int, S: int, T: int
) -> State:
    """Return a pool without sentences."""
    inputs = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((B, S), (B, T), (B,), (B,))]
    shapes = jax.eval_shape(functools.partial(init_searches, models, config), params, *inputs)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


@jax.jit
def resize(state: State, empty: State) -> State:
    """Copy the state into the shapes of `empty`; positions beyond those are not in use."""

    def copy(old, new):
        common = tuple(slice(min(a, b)) for a, b in zip(old.shape, new.shape, strict=True))
        return new.at[common].set(old[common])

    return jax.tree.map(copy, state, empty)


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def insert(
    models: Models,
    config: DecodeConfig,
    params: tuple[Any, ...],
    state: State,
    places_R: Array,
    *new: Array,
) -> State:
    """Put new searches at `places_R`."""
    fresh = init_searches(models, config, params, *new)
    return jax.tree.map(lambda old, new: old.at[places_R].set(new, mode="drop"), state, fresh)


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=4)
def run_searches(
    models: Models,
    config: DecodeConfig,
    params: tuple[Any, ...],
    keys: dict[str, Array],
    state: State,
    enough: Array,
) -> tuple[State, tuple[Array, Array, Hypotheses]]:
    """Advance until `enough` places wait; return the pool, and what the host needs to see of it.

    `keys` are those of the config that a compiled search takes as arguments.
    """
    config = dataclasses.replace(config, **keys)
    sentences_B, searches_B = state
    extend: Callable = beam.beam_step if config.search == "beam" else sampling.sample_step
    extend = functools.partial(extend, ensemble.make_step(models, params), config)
    searches_B = advance(extend, sentences_B, searches_B, enough)
    found_B = jax.vmap(lambda search: result_of(search, config))(searches_B)
    return (sentences_B, searches_B), (searches_B.busy, searches_B.t, found_B)
