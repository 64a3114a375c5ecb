"""Pairs of sentences to batches of ids: token-budget buckets over a few static shapes.

Every batch of a bucket has the same rows and columns, so the train step compiles once a bucket.
Batch number i is a pure function of `(seed, i)`: the epoch is `i // batches_per_epoch`, and each
epoch holds each pair exactly once. So the position in the data is one integer, and a resumed run
goes on with the batches that an uninterrupted one would have seen.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import grain
import numpy as np

from jformer.config import BOS, EOS, PAD, UserError
from jformer.data.corpora import Split
from jformer.data.vocabulary import Vocabularies

Batch = dict[str, np.ndarray]

LENGTH_MULTIPLE = 4  # of bucket lengths: finer ones would gain little and compile as often
ROW_MULTIPLE = 8  # of bucket rows, so that they divide among devices


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Rows of different lengths in one flat array, row i from `offsets[i]` to `offsets[i + 1]`."""

    flat: np.ndarray
    offsets: np.ndarray

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]]) -> "Ragged":
        offsets = np.cumsum([0, *map(len, rows)])
        return cls(np.fromiter(itertools.chain.from_iterable(rows), np.int32, offsets[-1]), offsets)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def padded(self, rows: np.ndarray, height: int, width: int) -> np.ndarray:
        """The given rows as (height, width), PAD to the right of each and in the rows left over."""
        columns = np.arange(width)
        starts = self.offsets[rows]
        inside = columns < (self.offsets[rows + 1] - starts)[:, None]
        result = np.full((height, width), PAD, np.int32)
        result[: len(rows)][inside] = self.flat[(starts[:, None] + columns)[inside]]
        return result


@dataclasses.dataclass(frozen=True)
class TokenPairs:
    """Source rows end in EOS; target rows begin with BOS and end in EOS."""

    sources: Ragged
    targets: Ragged

    @property
    def lengths(self) -> np.ndarray:
        """Positions that a pair takes on its longer side."""
        return np.maximum(self.sources.lengths, self.targets.lengths - 1)


def tokenize(split: Split, vocabularies: Vocabularies) -> TokenPairs:
    sources = vocabularies.source.encode(split.sources)
    targets = vocabularies.target.encode(split.targets)
    return TokenPairs(
        Ragged.from_rows([[*ids, EOS] for ids in sources]),
        Ragged.from_rows([[BOS, *ids, EOS] for ids in targets]),
    )


def trainable(split: Split, pairs: TokenPairs, max_length: int) -> tuple[np.ndarray, str]:
    """The rows to train on, and in words how many were left out and why."""
    sides = zip(split.sources, split.targets, strict=True)
    filled = np.array([bool(source.strip() and target.strip()) for source, target in sides])
    short = pairs.lengths <= max_length
    left_out = (
        f"{np.sum(~filled):,} pairs with an empty side and {np.sum(filled & ~short):,} "
        f"of more than {max_length} tokens left out"
    )
    if not np.any(filled & short):
        raise UserError(f"no pair to train on: {left_out}; see config.data.max_length")
    return np.flatnonzero(filled & short), left_out


def bucket_lengths(lengths: np.ndarray, number: int) -> list[int]:
    """At most `number` lengths, the largest fitting all, with the least padding in total.

    Exact, by dynamic programming: the cheapest cover of the rows up to a length with k buckets is
    the cheapest of those up to a shorter one with k - 1, and one bucket more.
    """
    rounded = -(-lengths // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    candidates, counts = np.unique(rounded, return_counts=True)
    shorter = np.concatenate([[0], np.cumsum(counts)])  # rows below candidate i
    # covers[i]: the positions that the rows below candidate i take, and their buckets.
    covers: list[tuple[float, list[int]]] = [(0, [])] + [(np.inf, [])] * len(candidates)
    for _ in range(min(number, len(candidates))):
        covers = [covers[0]] + [
            min(
                (cost + (shorter[i] - shorter[j]) * length, [*buckets, length])
                for j, (cost, buckets) in enumerate(covers[:i])
            )
            for i, length in enumerate(candidates, start=1)
        ]
    return [int(length) for length in covers[-1][1]]


def rows_that_fit(batch_tokens: int, length: int) -> int:
    rows = max(1, batch_tokens // length)
    return rows - rows % ROW_MULTIPLE if rows >= ROW_MULTIPLE else rows


class Batches:
    """Random access to the batches of all epochs of some rows of `pairs`: `batches[i]`, i >= 0.

    A batch has at most `batch_tokens` positions on each side, padding included. Its last rows may
    be empty, where a bucket's pairs do not fill a batch; they weigh nothing.
    """

    def __init__(
        self, pairs: TokenPairs, rows: np.ndarray, batch_tokens: int, num_buckets: int, seed: int
    ):
        self.pairs, self.rows, self.seed = pairs, rows, seed
        lengths = pairs.lengths[rows]
        longest = bucket_lengths(lengths, num_buckets)
        bucket_of = np.searchsorted(longest, lengths)
        self.shapes = [(rows_that_fit(batch_tokens, length), length) for length in longest]
        self._members = [rows[bucket_of == bucket] for bucket in range(len(longest))]
        self._epoch = functools.lru_cache(maxsize=2)(self._plan_epoch)
        self.per_epoch = len(self._epoch(0))

    def _plan_epoch(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        """For each batch of the epoch, its bucket and its rows of `pairs`."""
        rng = np.random.default_rng((self.seed, epoch))
        plan = []
        for bucket, members in enumerate(self._members):
            order, height = rng.permutation(members), self.shapes[bucket][0]
            plan += [(bucket, order[i : i + height]) for i in range(0, len(order), height)]
        return [plan[i] for i in rng.permutation(len(plan))]

    def plan(self, number: int) -> tuple[int, np.ndarray]:
        """The bucket of batch `number`, and the rows of `pairs` that it holds."""
        return self._epoch(number // self.per_epoch)[number % self.per_epoch]

    def __getitem__(self, number: int) -> Batch:
        bucket, members = self.plan(number)
        height, length = self.shapes[bucket]
        return {
            "source_BS": self.pairs.sources.padded(members, height, length),
            "target_BT1": self.pairs.targets.padded(members, height, length + 1),
        }

    def non_pad_share(self) -> float:
        """Of all positions on both sides in an epoch, those that hold a token."""
        positions = sum(2 * math.prod(self.shapes[bucket]) for bucket, _ in self._epoch(0))
        tokens = self.pairs.sources.lengths + self.pairs.targets.lengths - 1
        return tokens[self.rows].sum() / positions


def iterate(batches: Batches, stop: int, position: dict | None = None) -> Any:
    """Batches up to `stop - 1`, from `position` or the first, made ahead of their use in a thread.

    The iterator's `get_state()` is the position, of which JSON is made for a checkpoint.
    """
    numbers = grain.MapDataset.range(stop).map(batches.__getitem__)
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=8)
    iterator = iter(numbers.to_iter_dataset(options))
    if position is not None:
        iterator.set_state(position)
    return iterator
