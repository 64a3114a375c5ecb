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
from jformer.data.vocabulary import Vocabulary

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

    def take(self, rows: np.ndarray) -> "Ragged":
        return self.from_rows(
            [self.flat[self.offsets[i] : self.offsets[i + 1]].tolist() for i in rows]
        )

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


def tokenize(split: Split, vocabulary: Vocabulary, rows: Sequence[int] | None = None) -> TokenPairs:
    """All pairs of the split, or those at `rows`."""
    rows = range(len(split)) if rows is None else rows
    sources, targets = ([side[i] for i in rows] for side in (split.sources, split.targets))
    return TokenPairs(
        Ragged.from_rows([[*ids, EOS] for ids in vocabulary.encode(sources)]),
        Ragged.from_rows([[BOS, *ids, EOS] for ids in vocabulary.encode(targets)]),
    )


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
                (
                    cost + (shorter[i] - shorter[j]) * candidates[i - 1],
                    [*buckets, candidates[i - 1]],
                )
                for j, (cost, buckets) in enumerate(covers[:i])
            )
            for i in range(1, len(candidates) + 1)
        ]
    return [int(length) for length in covers[-1][1]]


class Batches:
    """Random access to the batches of all epochs: `batches[i]` for any i >= 0.

    A batch has at most `batch_tokens` positions on each side, padding included. Its last rows may
    be empty, where a bucket's pairs do not fill a batch; they weigh nothing.
    """

    def __init__(self, pairs: TokenPairs, batch_tokens: int, num_buckets: int, seed: int | None):
        """With `seed=None` the order is that of the data, the same in each epoch."""
        self.pairs, self.seed = pairs, seed
        longest = bucket_lengths(pairs.lengths, num_buckets)
        bucket_of = np.searchsorted(longest, pairs.lengths)
        self.shapes = [(rows_that_fit(batch_tokens, length), length) for length in longest]
        self._members = [np.flatnonzero(bucket_of == b) for b in range(len(longest))]
        self._epoch = functools.lru_cache(maxsize=2)(self._plan_epoch)
        self.per_epoch = len(self._epoch(0))

    def _plan_epoch(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        """For each batch of the epoch, its bucket and its pairs."""
        rng = None if self.seed is None else np.random.default_rng((self.seed, epoch))
        plan = []
        for bucket, members in enumerate(self._members):
            order = members if rng is None else rng.permutation(members)
            rows = self.shapes[bucket][0]
            plan += [(bucket, order[i : i + rows]) for i in range(0, len(order), rows)]
        return plan if rng is None else [plan[i] for i in rng.permutation(len(plan))]

    def plan(self, number: int) -> tuple[int, np.ndarray]:
        """The bucket of batch `number`, and the pairs that it holds."""
        return self._epoch(number // self.per_epoch)[number % self.per_epoch]

    def __getitem__(self, number: int) -> Batch:
        bucket, indices = self.plan(number)
        rows, length = self.shapes[bucket]
        return {
            "source_BS": self.pairs.sources.padded(indices, rows, length),
            "target_BT1": self.pairs.targets.padded(indices, rows, length + 1),
        }

    def non_pad_share(self) -> float:
        """Of all positions on both sides in an epoch, those that hold a token."""
        positions = sum(2 * math.prod(self.shapes[bucket]) for bucket, _ in self._epoch(0))
        sources, targets = self.pairs.sources.lengths, self.pairs.targets.lengths - 1
        return (sources.sum() + targets.sum()) / positions


def rows_that_fit(batch_tokens: int, length: int) -> int:
    rows = max(1, batch_tokens // length)
    return rows - rows % ROW_MULTIPLE if rows >= ROW_MULTIPLE else rows


def trainable(split: Split, vocabulary: Vocabulary, max_length: int) -> tuple[TokenPairs, str]:
    """The pairs to train on, and in words how many were left out and why."""
    sides = zip(split.sources, split.targets, strict=True)
    filled = [i for i, (source, target) in enumerate(sides) if source.strip() and target.strip()]
    pairs = tokenize(split, vocabulary, filled)
    short = np.flatnonzero(pairs.lengths <= max_length)
    left_out = (
        f"{len(split) - len(filled):,} pairs with an empty side and {len(filled) - len(short):,} "
        f"of more than {max_length} tokens left out"
    )
    if not len(short):
        raise UserError(f"no pair to train on: {left_out}; see config.data.max_length")
    if len(short) < len(filled):
        pairs = TokenPairs(pairs.sources.take(short), pairs.targets.take(short))
    return pairs, left_out


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
