"""Many sentences at a time, in one thread or several, as many as memory holds."""

import collections
import dataclasses
import functools
import logging
import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import jax
import numpy as np

from jformer.components import find
from jformer.config import DecodeConfig
from jformer.decoding.ensemble import Models
from jformer.decoding.pool import Pool, Request
from jformer.decoding.search import NO_RULES, Hypotheses, Rules
from jformer.errors import RunError, is_out_of_memory

log = logging.getLogger(__name__)

PARTS = 8  # a pool is refilled in parts of this share of its places
PLACES_PER_THREAD = 16  # with fewer, a search is mostly overhead


@dataclasses.dataclass
class Decoder:
    """Models with their parameters, and how to search with them."""

    models: Models
    params: tuple[Any, ...]
    config: DecodeConfig
    max_length: int  # source positions, EOS included
    places: int  # sentences at a time; lowered where memory does not suffice
    max_threads: int | None = None  # by default on a CPU one per core, elsewhere one

    @property
    def keep(self) -> str:
        """The strings of a source that a beam must keep in the output, see lexicon.py."""
        return getattr(find("config.decode.search", "search", self.config.search), "keep", "")

    def find(self, requests: Sequence[Request], rules: Rules = NO_RULES) -> dict[int, Hypotheses]:
        """Decode all requests: return the hypotheses by the number of the request.

        Requests with terms need `rules.edges_V2` of the vocabulary, see lexicon.py.
        """
        found: dict[int, Hypotheses] = {}
        while len(found) < len(requests):
            waiting = {n: each for n, each in enumerate(requests) if n not in found}
            try:
                self._find(waiting, found, rules)
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

    def _find(
        self,
        requests: dict[int, Request],
        found: dict[int, Hypotheses],
        rules: Rules,
    ) -> None:
        """Decode the requests, in several threads if that pays, and add what is found."""
        order = sorted(requests, key=lambda n: (-requests[n].bucket, -len(requests[n].source)))
        buckets = {n: requests[n].bucket for n in order}
        stop = threading.Event()

        def search(pool: Pool, numbers: list[int]) -> None:
            queue = collections.deque(numbers)
            while queue and not stop.is_set():
                pool.fit(buckets[queue[0]], last=False)
                while queue and np.sum(~pool.occupied()) >= pool.part:
                    part = [queue.popleft() for _ in range(min(pool.part, len(queue)))]
                    pool.insert({number: requests[number] for number in part})
                found.update(pool.run(last=False))
            while pool.occupied().any() and not stop.is_set():
                pool.fit(buckets[numbers[-1]], last=True)
                found.update(pool.run(last=True))

        make_pool = functools.partial(
            Pool,
            self.models,
            self.params,
            self.config,
            self.max_length,
            largest_terms(requests.values()),
            rules,
        )
        if len(order) <= self.places:
            # There is a place for each from the start: one shape, instead of one per bucket.
            rows = min(self.places, 1 << (len(order) - 1).bit_length())
            buckets = dict.fromkeys(order, max(buckets.values()))
            return search(make_pool(rows, parts=1, long=True), order)
        threads = self.threads()
        pools = [make_pool(self.places // threads, parts=PARTS, long=False) for _ in range(threads)]
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
        most = self.max_threads
        if most is None:
            most = usable_cores() if jax.default_backend() == "cpu" else 1
            most = min(most, self.places // PLACES_PER_THREAD)
        return max(1, min(most, self.places))


def usable_cores() -> int:
    """Return the number of cores that this process may use, as set by `taskset`."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def largest_terms(requests: Iterable[Request]) -> tuple[int, int] | None:
    """Return the largest number of terms of a request and of tokens of a term, or None.

    They are rounded up to powers of two, so that few searches are compiled.
    """
    of_each = [request.terms for request in requests if request.terms]
    if not of_each:
        return None
    longest = max(len(ids) for terms in of_each for spellings in terms for ids in spellings)
    most = max(map(len, of_each))
    return 1 << (most - 1).bit_length(), 1 << (longest - 1).bit_length()
