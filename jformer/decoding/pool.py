"""Many sentences through one compiled search: finished ones leave, and others take their places.

A pool has a fixed number of places and static shapes: S source positions, T tokens. The longest
sentences come first, and the shapes shrink with them, so that few of the last steps, when places
stay empty, are dear. The few outputs that are very long wait at the end of a short T until there
are enough of them to pay for a long one.
"""

import dataclasses
import functools
import operator
from collections.abc import Iterator, Sequence
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

SHORTEST_BUCKET = 16  # source positions; buckets double from here
# A compiled search is made for these keys, takes those as arguments, and does not see the others.
COMPILED = ("search", "beam_size", "n_best")
ARGUMENTS = ("length_penalty", "length_penalty_beta", "min_length")

State = tuple[Sentence, Search]
# The ids of a term at the beginning of an output, and elsewhere.
Spellings = tuple[list[int], list[int]]


@dataclasses.dataclass(frozen=True)
class Request:
    """One sentence to decode: ids of the source without EOS, and of the output's prefix."""

    source: list[int]
    prefix: list[int]
    seed: int
    terms: tuple[Spellings, ...] = ()  # that must stand in the output
    words: int = 0  # number of words of the source, for a constraint
    spans: Sequence[tuple[int, int]] = ()  # for each token of the prefix, see prefixes.py

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


class Pool:
    """The state of the searches on the device, and the number of the request in each place.

    It is refilled in parts of its rows. `max_length` is that of sources, EOS included; `terms` the
    largest numbers of terms of a sentence and of tokens of a term, None without terms; `long` means
    that T suffices for every output of a bucket.
    """

    def __init__(
        self,
        models: Models,
        params: tuple[Any, ...],
        config: DecodeConfig,
        max_length: int,
        terms: tuple[int, int] | None,
        rules: Rules,
        rows: int,
        parts: int,
        long: bool,
    ):
        self._terms, self._rules = terms, rules
        self._params, self._config, self._max_length = params, config, max_length
        self._rows, self._always_long = rows, long
        compiled = {key: getattr(config, key) for key in COMPILED}
        # Without options, so that another seed or temperature does not compile again.
        compiled["search"] = name_of(config.search) or config.search
        self._static = (models, DecodeConfig(**compiled))
        self._keys = {key: np.asarray(getattr(config, key)) for key in ARGUMENTS}
        strategy = find("config.decode.search", "search", config.search)
        if jax.tree.leaves(strategy) == [strategy]:
            raise config.wrong("search", "must be a flax.struct.dataclass")
        if hasattr(strategy, "keep"):
            strategy = strategy.replace(keep="")  # is in the requests, and must not compile again
        self._strategy = jax.tree.map(np.asarray, strategy)  # an argument of compiled searches
        self.part = max(1, rows // parts)
        self._shape = (0, 0)
        self._numbers = np.full(rows, -1)  # of the requests; -1: the place is free
        self._buckets = np.zeros(rows, int)  # of the requests
        self._t = np.zeros(rows, int)
        self._state: Any = None

    def occupied(self) -> np.ndarray:
        return self._numbers >= 0

    def fit(self, bucket: int, last: bool) -> None:
        """Choose shapes for sources of this bucket and for the searches in the pool."""
        if not self._always_long:
            bucket = max([bucket, *self._buckets[self.occupied()]])
            while self._needs_more(self._tokens(bucket), last):
                bucket *= 2
        shape = (min(bucket, self._max_length), self._tokens(bucket))
        if shape == self._shape:
            return
        self._shape = shape
        empty = empty_state(*self._static, self._params, self._rows, *shape, self._terms)
        self._state = empty if self._state is None else resize(self._state, empty)

    def _tokens(self, bucket: int) -> int:
        """Return T in the shape of a bucket: where it is not always long, long enough for most."""
        config = self._config
        long = 1 + max(bucket + max(config.max_extra_length, 1), config.min_length + 1)
        return long if self._always_long else min(max(bucket + 16, bucket * 3 // 2), long)

    def _needs_more(self, T: int, last: bool) -> bool:
        """Return whether the searches that fill T tokens need more, or still wait for it."""
        occupied = self.occupied()
        full = occupied & (self._t >= T - 1)
        if self._shape[1] > T:
            return bool(full.any())  # those that have begun to go on
        enough = full.sum() >= max(1, self._rows // 4)
        return bool(enough or (last and full.any() and full.sum() == occupied.sum()))

    def insert(self, requests: dict[int, Request]) -> None:
        """Begin searches for at most `part` requests, in free places."""
        (S, T), config, R = self._shape, self._config, self.part
        source_RS = np.full((R, S), PAD, np.int32)
        prefix_RT = np.full((R, T), PAD, np.int32)
        spans_RT2 = np.zeros((R, T, 2), np.int32)
        limits_R = np.zeros(R, np.int32)
        seeds_R = np.zeros(R, np.int32)
        words_R = np.zeros(R, np.int32)
        C, L = self._terms or (0, 0)
        terms_RCKL = np.full((R, C, 2, L), PAD, np.int32)
        places_R = np.full(R, self._rows)  # out of bounds: rows without a request are dropped
        free = iter(np.flatnonzero(~self.occupied()))
        for row, (number, request) in enumerate(requests.items()):
            source_RS[row, : len(request.source) + 1] = [*request.source, EOS]
            prefix_RT[row, : len(request.prefix)] = request.prefix
            spans_RT2[row, : len(request.spans)] = np.reshape(request.spans, (-1, 2))
            limits_R[row] = request.limit(config)
            seeds_R[row] = request.seed
            words_R[row] = request.words
            for c, spellings in enumerate(request.terms):
                for k, ids in enumerate(spellings):
                    terms_RCKL[row, c, k, : len(ids)] = ids
            place = next(free)
            places_R[row] = place
            self._numbers[place] = number
            self._buckets[place] = request.bucket
            self._t[place] = 0
        terms = terms_RCKL if self._terms else None
        new = (source_RS, prefix_RT, limits_R, seeds_R, words_R, terms, spans_RT2)
        self._state = insert(*self._static, self._params, self._state, places_R, *new)

    def run(self, last: bool) -> Iterator[tuple[int, Hypotheses]]:
        """Search until a part of the pool is done, or all of it; yield and remove what is done."""
        waiting = ~self.occupied() | (self._t >= self._shape[1] - 1)
        enough = self._rows if last else min(self._rows, int(waiting.sum()) + self.part)
        arguments = (self._params, self._keys, self._strategy, self._state, enough, self._rules)
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
    words_B: Array,
    terms_BCKL: Array | None = None,
    spans_BT2: Array | None = None,
) -> State:
    """Encode the sources and return their searches before the first token."""
    W = find("config.decode.search", "search", config.search).width(config)
    memory = ensemble.encode_sources(models, params, source_BS)
    sentences_B = Sentence(memory, prefix_BT, limit_B, seed_B, terms_BCKL, words_B, spans_BT2)
    cache = ensemble.init_cache(models, W, prefix_BT.shape[1])
    return sentences_B, jax.vmap(lambda sentence: init_search(sentence, cache, W))(sentences_B)


@functools.partial(jax.jit, static_argnums=(0, 1, 3, 4, 5, 6))
def empty_state(
    models: Models,
    config: DecodeConfig,
    params: tuple[Any, ...],
    B: int,
    S: int,
    T: int,
    terms: tuple[int, int] | None = None,
) -> State:
    """Return a pool without sentences."""
    of_terms = (B, terms[0], 2, terms[1]) if terms else None
    shapes = ((B, S), (B, T), (B,), (B,), (B,), of_terms, (B, T, 2))
    inputs = [shape and jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes]
    state = jax.eval_shape(functools.partial(init_searches, models, config), params, *inputs)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), state)


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
    *new: Array | None,
) -> State:
    """Put new searches at `places_R`."""
    fresh = init_searches(models, config, params, *new)
    return jax.tree.map(lambda old, new: old.at[places_R].set(new, mode="drop"), state, fresh)


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=5)
def run_searches(
    models: Models,
    config: DecodeConfig,
    params: tuple[Any, ...],
    keys: dict[str, Array],
    strategy: Any,
    state: State,
    enough: Array,
    rules: Rules = NO_RULES,
) -> tuple[State, tuple[Array, Array, Hypotheses]]:
    """Advance until `enough` places wait; return the pool, and what the host needs to see of it.

    `keys` are those of the config that a compiled search takes as arguments, and `strategy` is the
    component that extends the hypotheses.
    """
    config = dataclasses.replace(config, **keys)
    sentences_B, searches_B = state
    step = ensemble.make_step(models, params)
    extend = functools.partial(strategy.extend, step, config, rules=rules)
    searches_B = advance(extend, sentences_B, searches_B, enough)
    found_B = jax.vmap(lambda search: result_of(search, config))(searches_B)
    return (sentences_B, searches_B), (searches_B.busy, searches_B.t, found_B)
