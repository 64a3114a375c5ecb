"""Many sentences through one compiled search: who is done leaves, and others take the free places.

A pool has a fixed number of places and static shapes: S source positions, T tokens. Sentences come
in the order of their lengths, and the shapes grow with them. The few outputs that run on and on
wait at the end of a short T until there are enough of them to pay for a long one.
"""

import collections
import dataclasses
import functools
import itertools
import logging
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jformer.config import EOS, PAD, DecodeConfig
from jformer.decoding import beam, ensemble, sampling
from jformer.decoding.ensemble import Models
from jformer.decoding.search import Hypotheses, Sentence, advance, answer, init_search
from jformer.errors import RunError, is_out_of_memory

log = logging.getLogger(__name__)

SHORTEST_BUCKET = 16  # source positions; buckets double from here
PARTS = 8  # in which a pool is filled


@dataclasses.dataclass(frozen=True)
class Request:
    """Ids of a source without EOS, and of the tokens that each hypothesis is to begin with."""

    source: list[int]
    prefix: list[int]
    seed: int

    @property
    def bucket(self) -> int:
        longest = max(len(self.source) + 1, len(self.prefix))
        return max(SHORTEST_BUCKET, 1 << (longest - 1).bit_length())

    def limit(self, config: DecodeConfig) -> int:
        """Tokens of a hypothesis at most: `max_extra_length` more than in the source."""
        limit = max(len(self.source), len(self.prefix)) + config.max_extra_length
        limit = min(limit, config.max_length or limit)
        return max(limit, config.min_length + 1, len(self.prefix) + 1)


@dataclasses.dataclass
class Decoder:
    """Models, and how to search with them."""

    models: Models
    params: tuple[Any, ...]
    config: DecodeConfig
    max_length: int  # source positions, EOS included
    places: int  # becomes less where memory does not suffice

    def find(self, requests: Sequence[Request]) -> Iterator[tuple[int, Hypotheses]]:
        """The number and the hypotheses of each request, in the order in which they are found."""
        waiting = dict(enumerate(requests))
        while waiting:
            try:
                for number, hypotheses in self._find(dict(waiting)):
                    del waiting[number]
                    yield number, hypotheses
            except jax.errors.JaxRuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                if self.places == 1:
                    raise RunError(
                        "out of memory with one sentence: lower config.decode.beam_size"
                    ) from error
                self.places = max(1, min(self.places, len(requests)) // 2)
                log.warning("out of memory: %d sentences at a time from here on", self.places)

    def _find(self, requests: dict[int, Request]) -> Iterator[tuple[int, Hypotheses]]:
        order = sorted(requests, key=lambda n: (requests[n].bucket, len(requests[n].source)))
        buckets = {n: requests[n].bucket for n in order}
        if len(order) <= self.places:
            # All have a place at once: other shapes would only be compiled in vain.
            rows = min(self.places, 1 << (len(order) - 1).bit_length())
            pool = Pool(self, rows, parts=1, long=True)
            buckets = dict.fromkeys(order, max(buckets.values()))
        else:
            pool = Pool(self, self.places, PARTS, long=False)
        for bucket, group in itertools.groupby(order, key=buckets.__getitem__):
            queue = collections.deque(group)
            while queue:
                pool.fit(bucket, last=False)
                while queue and np.sum(~pool.live()) >= pool.part:
                    numbers = [queue.popleft() for _ in range(min(pool.part, len(queue)))]
                    pool.fill({number: requests[number] for number in numbers})
                yield from pool.run(last=False)
        while pool.live().any():
            pool.fit(bucket, last=True)
            yield from pool.run(last=True)


class Pool:
    """Searches on the device, and which request each of them is for."""

    def __init__(self, decoder: Decoder, rows: int, parts: int, long: bool):
        self._decoder, self._rows, self._always_long = decoder, rows, long
        self._static = (decoder.models, decoder.config)
        self.part = max(1, rows // parts)
        self._shape, self._long = (0, 0), False
        self._owners = np.full(rows, -1)
        self._t = np.zeros(rows, int)
        self._state: Any = None

    def live(self) -> np.ndarray:
        return self._owners >= 0

    def fit(self, bucket: int, last: bool) -> None:
        """Shapes for sources of this bucket, and for what is in the pool."""
        config = self._decoder.config
        long_T = 1 + max(bucket + max(config.max_extra_length, 1), config.min_length + 1)
        short_T = min(bucket * 3 // 2, long_T)
        full = self.live() & (self._t >= short_T - 1)
        # Where a quarter of the places waits, or nothing else is left, all go on.
        long = full.sum() >= max(1, self._rows // 4) or (last and full.sum() == self.live().sum())
        self._long = bool(self._always_long or long or (self._long and full.any()))
        shape = (min(bucket, self._decoder.max_length), long_T if self._long else short_T)
        if shape != self._shape:
            empty = empty_state(*self._static, self._decoder.params, self._rows, *shape)
            self._state = empty if self._state is None else resize(self._state, empty)
            self._shape = shape

    def fill(self, requests: dict[int, Request]) -> None:
        """Searches for at most `part` requests in free places."""
        (S, T), config, R = self._shape, self._decoder.config, self.part
        source_RS = np.full((R, S), PAD, np.int32)
        prefix_RT = np.full((R, T), PAD, np.int32)
        limits_R, seeds_R = np.zeros((2, R), np.int32)
        places_R = np.full(R, self._rows)  # there is no such place: what is put there is dropped
        for row, (number, request) in enumerate(requests.items()):
            source_RS[row, : len(request.source) + 1] = [*request.source, EOS]
            prefix_RT[row, : len(request.prefix)] = request.prefix
            limits_R[row], seeds_R[row] = request.limit(config), request.seed
            places_R[row] = np.argmin(self._owners)  # of -1, the first
            self._owners[places_R[row]] = number
            self._t[places_R[row]] = 0
        new = source_RS, prefix_RT, limits_R, seeds_R
        self._state = insert(*self._static, self._decoder.params, self._state, places_R, *new)

    def run(self, last: bool) -> Iterator[tuple[int, Hypotheses]]:
        """Go on until a part of the pool is done, or all of it; who is done leaves."""
        resting = ~self.live() | (self._t >= self._shape[1] - 1)
        enough = self._rows if last else min(self._rows, int(resting.sum()) + self.part)
        self._state, seen = run_searches(*self._static, self._decoder.params, self._state, enough)
        busy, t, found = jax.device_get(seen)
        self._t = np.where(self.live(), t, 0)
        for place in np.flatnonzero(self.live() & ~busy):
            number, self._owners[place] = int(self._owners[place]), -1
            yield number, jax.tree.map(operator.itemgetter(place), found)


def init_searches(
    models: Models, config: DecodeConfig, params, source_BS, prefix_BT, limit_B, seed_B
):
    """Sentences and their searches, before the first token."""
    W = config.beam_size if config.search == "beam" else config.n_best
    memory = ensemble.encode_sources(models, params, source_BS)
    sentences_B = Sentence(memory, prefix_BT, limit_B, seed_B)
    cache = ensemble.init_cache(models, W, prefix_BT.shape[1])
    return sentences_B, jax.vmap(lambda sentence: init_search(sentence, cache, W))(sentences_B)


@functools.partial(jax.jit, static_argnums=(0, 1, 3, 4, 5))
def empty_state(models, config, params, B, S, T):
    """A pool without sentences."""
    like = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((B, S), (B, T), (B,), (B,))]
    shapes = jax.eval_shape(functools.partial(init_searches, models, config), params, *like)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


@jax.jit
def resize(state, empty):
    """The same in other shapes; positions beyond those of `empty` are not in use."""

    def move(old, new):
        common = tuple(slice(min(a, b)) for a, b in zip(old.shape, new.shape, strict=True))
        return new.at[common].set(old[common])

    return jax.tree.map(move, state, empty)


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def insert(models, config, params, state, places_R, *new):
    """The pool with new searches at `places_R`."""
    fresh = init_searches(models, config, params, *new)
    return jax.tree.map(lambda old, new: old.at[places_R].set(new, mode="drop"), state, fresh)


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def run_searches(models, config, params, state, enough):
    """The pool when `enough` of its places rest, and what is to be seen of it."""
    sentences_B, searches_B = state
    grow = beam.beam_step if config.search == "beam" else sampling.sample_step
    grow = functools.partial(grow, ensemble.make_step(models, params), config)
    searches_B = advance(grow, sentences_B, searches_B, enough)
    found_B = jax.vmap(lambda search: answer(search, config))(searches_B)
    return (sentences_B, searches_B), (searches_B.busy, searches_B.t, found_B)
