"""Many sentences in one compiled search: new sentences replace finished ones in its slots.

A `Decoder` has models and search settings. It decodes requests in a single pool if all fit at once,
otherwise in a pool per thread.

A pool has a fixed number of slots and static shapes: S source positions, T tokens. The longest
sentences come first, and the shapes shrink with them, so that the last steps, with many empty
slots, are cheap. T suffices for most outputs. While an output is longer, the pool has the shapes of
longer sources.
"""

import dataclasses
import functools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from jformer.components import find
from jformer.config import EOS, PAD, DecodeConfig
from jformer.decoding.constraints import NO_RULES, Rules, Task
from jformer.decoding.ensemble import Models, encode_sources, make_step
from jformer.decoding.search import Hypotheses, Search, Sentence, advance, init_search, result_of
from jformer.errors import explaining_out_of_memory
from jformer.model.decoding import init_cache

MIN_BUCKET = 16  # source positions of the smallest bucket; each next one doubles
PARTS = 8  # a pool is refilled when this share of its slots is empty
SLOTS_PER_THREAD = 16  # with fewer slots, a search is mostly overhead
KEYS = ("beam_size", "n_best", "length_penalty", "length_penalty_beta", "min_length")

# A compiled search takes the last three keys as arguments, and uses no others.
jax.tree_util.register_pytree_node(
    DecodeConfig,
    lambda x: ((x.length_penalty, x.length_penalty_beta, x.min_length), (x.beam_size, x.n_best)),
    lambda static, values: DecodeConfig(**dict(zip(KEYS, (*static, *values), strict=True))),
)

State = tuple[Sentence, Search]


@dataclasses.dataclass(frozen=True)
class Request:
    """One sentence to decode: ids of the source without EOS, and of the output's prefix."""

    source: list[int]
    prefix: list[int]
    seed: int
    spans: Sequence[tuple[int, int]] = ()  # one per token of the prefix, see constraints.py
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


@struct.dataclass
class Decoder:
    """Models with their parameters and the settings of a search."""

    models: Models = struct.field(pytree_node=False)
    params: tuple[Any, ...]
    config: DecodeConfig
    max_length: int = struct.field(pytree_node=False)  # source positions, EOS included

    def find(self, requests: Sequence[Request], rules: Rules = NO_RULES) -> list[Hypotheses]:
        """Decode all requests, and return the hypotheses of each."""
        batch_size = self.config.batch_size
        all_at_once = len(requests) <= batch_size
        threads = 1 if all_at_once else thread_count(batch_size)
        slots = min(slots_for(len(requests)), batch_size) // threads
        part = slots if all_at_once else max(1, slots // PARTS)
        order = sorted(
            range(len(requests)), key=lambda n: (-requests[n].bucket, -len(requests[n].source))
        )
        # Each thread gets sentences of all lengths, so that all end at about the same time.
        queues = [order[n::threads] for n in range(threads)]
        found: dict[int, Hypotheses] = {}
        with (
            explaining_out_of_memory("while decoding: lower config.decode.batch_size"),
            ThreadPoolExecutor(threads) as executor,
        ):
            run = functools.partial(self.run_pool, requests, rules, slots, part)
            pools = [executor.submit(run, queue) for queue in queues]
            try:
                for pool in as_completed(pools):
                    found |= pool.result()
            finally:
                for queue in queues:  # an error or Ctrl-C also ends the other threads
                    queue.clear()
        return [found[n] for n in range(len(requests))]

    def run_pool(
        self, requests: Sequence[Request], rules: Rules, slots: int, part: int, queue: list[int]
    ) -> dict[int, Hypotheses]:
        """Decode the requests with the indices in `queue`, which has the longest first.

        The pool is refilled with `part` requests at a time. If that is all slots, T suffices for
        every output of a bucket, so that no output compiles another program.
        """
        config = self.config
        strategy = find("config.decode.search", "search", config.search)
        strategy = jax.tree.map(np.asarray, strategy)  # an argument of compiled searches
        in_slots: dict[int, int] = {}  # the request in each slot
        found: dict[int, Hypotheses] = {}
        state, shape = None, (0, 0)
        max_t = 0  # of the unfinished searches
        while queue or in_slots:
            current = [*in_slots.values(), *queue[:1]]
            bucket = max(requests[n].bucket for n in current)
            new_shape = self.shape(bucket, max_t, part == slots)
            if new_shape != shape:
                shape = new_shape
                batch = stack([requests[current[0]]] * part, config, *shape)
                state = resize(self, strategy, slots, state, *batch)

            while queue and slots - len(in_slots) >= part:
                free = [slot for slot in range(slots) if slot not in in_slots]
                rows = list(zip(free, queue[:part], strict=False))
                del queue[:part]
                in_slots |= rows
                rows += rows[-1:] * (part - len(rows))  # the last request also fills missing rows
                batch = stack([requests[n] for _, n in rows], config, *shape)
                slots_R = np.array([slot for slot, _ in rows])
                state = insert(self, strategy, state, slots_R, *batch)

            min_waiting = min(slots, slots - len(in_slots) + part)
            state, seen = run_searches(self, strategy, rules, state, min_waiting)
            busy, t, hypotheses = jax.device_get(seen)
            max_t = np.max(t, where=busy, initial=0)
            for slot in [slot for slot in in_slots if not busy[slot]]:
                found[in_slots.pop(slot)] = jax.tree.map(lambda x, n=slot: x[n], hypotheses)
        return found

    def shape(self, bucket: int, max_t: int, for_all: bool) -> tuple[int, int]:
        """Return S and T of a pool, with T `for_all` outputs or only for most.

        If a search has reached the end of T, the pool gets the shape of longer sources.
        """
        config = self.config
        max_T = 1 + max(bucket + max(config.max_extra_length, 1), config.min_length + 1)
        T = max_T if for_all else min(max(bucket + 16, bucket * 3 // 2), max_T)
        if max_t >= T - 1:
            return self.shape(2 * bucket, max_t, for_all)
        return min(bucket, self.max_length), T


def slots_for(number: int) -> int:
    """Return the slots for a small number of requests: a power of four, to compile few shapes."""
    slots = 1
    while slots < number:
        slots *= 4
    return slots


def thread_count(slots: int) -> int:
    """Return the number of threads that search, each with its share of the slots.

    XLA runs most operations of a search on one core of a CPU; other cores would be idle.
    """
    if jax.default_backend() != "cpu":
        return 1
    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, min(cores, slots // SLOTS_PER_THREAD))


def stack(
    requests: Sequence[Request], config: DecodeConfig, S: int, T: int
) -> tuple[np.ndarray, Sentence]:
    """Return the sources (R, S) of R requests, and their sentences without memory."""

    def padded(values: Sequence[Any], length: int, zero: Any = PAD) -> np.ndarray:
        return np.array([*values, *[zero] * (length - len(values))], np.int32)

    def row(request: Request) -> tuple[np.ndarray, Sentence]:
        sentence = Sentence(
            memory=None,
            prefix_T=padded(request.prefix, T),
            spans_T2=padded(request.spans, T, (0, 0)),
            limit=np.int32(request.limit(config)),
            seed=np.int32(request.seed),
            given=request.given,
            progress=request.progress,
        )
        return padded([*request.source, EOS], S), sentence

    return jax.tree.map(lambda *leaves: np.stack(leaves), *map(row, requests))


def init_searches(
    decoder: Decoder, strategy: Any, source_BS: Array, sentences_B: Sentence
) -> State:
    """Encode the sources and return their searches before the first token."""
    W, T = strategy.width(decoder.config), sentences_B.prefix_T.shape[1]
    memory = encode_sources(decoder.models, decoder.params, source_BS)
    sentences_B = dataclasses.replace(sentences_B, memory=memory)
    cache = tuple(init_cache(model.config, W, T) for model in decoder.models)
    return sentences_B, jax.vmap(lambda sentence: init_search(sentence, cache, W))(sentences_B)


@functools.partial(jax.jit, static_argnames="slots")
def resize(decoder: Decoder, strategy: Any, slots: int, state: State | None, *batch: Any) -> State:
    """Copy the state into the shapes of a batch, or return a state without sentences.

    Positions beyond the smaller shapes are not in use.
    """
    shapes = jax.eval_shape(init_searches, decoder, strategy, *batch)
    empty = jax.tree.map(lambda x: jnp.zeros((slots, *x.shape[1:]), x.dtype), shapes)

    def copy(old, new):
        common = tuple(slice(min(a, b)) for a, b in zip(old.shape, new.shape, strict=True))
        return new.at[common].set(old[common])

    return empty if state is None else jax.tree.map(copy, state, empty)


@functools.partial(jax.jit, donate_argnames="state")
def insert(decoder: Decoder, strategy: Any, state: State, slots_R: Array, *batch: Any) -> State:
    """Put new searches into `slots_R`."""
    new = init_searches(decoder, strategy, *batch)
    return jax.tree.map(lambda old, new: old.at[slots_R].set(new), state, new)


@functools.partial(jax.jit, donate_argnames="state")
def run_searches(
    decoder: Decoder, strategy: Any, rules: Rules, state: State, min_waiting: Array
) -> tuple[State, tuple[Array, Array, Hypotheses]]:
    """Advance until `min_waiting` slots wait: return the pool, and what the host reads of it."""
    config, (sentences_B, searches_B) = decoder.config, state
    step = make_step(decoder.models, decoder.params)
    extend = functools.partial(strategy.extend, Task(step, config, rules))
    searches_B = advance(extend, sentences_B, searches_B, min_waiting)
    found_B = jax.vmap(lambda search: result_of(search, config))(searches_B)
    return (sentences_B, searches_B), (searches_B.busy, searches_B.t, found_B)
