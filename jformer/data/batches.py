"""Pairs of sentences to batches of ids: token-budget buckets over a few static shapes.

Every batch of a bucket has the same rows and columns, so the train step compiles once a bucket.
Batch number i is a pure function of `(seed, i)`: the epoch is `i // batches_per_epoch`, and each
epoch holds each pair exactly once. So the position in the data is one integer, and a resumed run
goes on with the batches that an uninterrupted one would have seen.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

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
    def from_rows(cls, rows: Sequence[np.ndarray]) -> "Ragged":
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        flat = np.concatenate(rows) if rows else np.zeros(0, np.int32)
        return cls(flat.astype(np.int32), offsets)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def padded(self, rows: np.ndarray, height: int, width: int) -> np.ndarray:
        """The given rows as (height, width), PAD to the right of each and in the rows left over."""
        columns = np.arange(width)
        starts, lengths = self.offsets[rows], self.lengths[rows]
        inside = columns < lengths[:, None]
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


def tokenize(split: Split, vocabulary: Vocabulary) -> TokenPairs:
    sources = [np.append(ids, EOS) for ids in vocabulary.encode(split.sources)]
    targets = [np.concatenate([[BOS], ids, [EOS]]) for ids in vocabulary.encode(split.targets)]
    return TokenPairs(Ragged.from_rows(sources), Ragged.from_rows(targets))


def bucket_lengths(lengths: np.ndarray, number: int) -> list[int]:
    """At most `number` lengths, the largest fitting all, with the least padding in total.

    Exact, by dynamic programming: the cheapest way to cover the lengths up to one candidate with k
    buckets is the cheapest way to cover those up to a smaller one with k - 1, and one bucket more.
    """
    rounded = -(-lengths // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    candidates, counts = np.unique(rounded, return_counts=True)
    below = np.concatenate([[0], np.cumsum(counts)])  # rows shorter than candidate i
    # cost[i]: positions that the rows of the first i candidates take; with no bucket, none do.
    cost = np.where(np.arange(len(candidates) + 1) == 0, 0.0, np.inf)
    choices = []
    for _ in range(min(number, len(candidates))):
        # total[i, j]: a bucket of candidate i - 1's length holds candidates j to i - 1.
        total = cost[None, :] + (below[1:, None] - below[None, :]) * candidates[:, None]
        total = np.where(np.arange(len(candidates) + 1) <= np.arange(len(candidates))[:, None], total, np.inf)
        choices.append(total.argmin(axis=1))
        cost = np.concatenate([[0.0], total.min(axis=1)])
    chosen, end = [], len(candidates)
    for choice in reversed(choices):
        if end == 0:
            break
        chosen.append(int(candidates[end - 1]))
        end = int(choice[end - 1])
    return chosen[::-1]


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
        self.per_epoch = sum(
            -(-len(members) // rows)
            for members, (rows, _) in zip(self._members, self.shapes, strict=True)
        )
        self._epoch = functools.lru_cache(maxsize=2)(self._plan_epoch)

    def _plan_epoch(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        """For each batch of the epoch, its bucket and its pairs."""
        rng = None if self.seed is None else np.random.default_rng((self.seed, epoch))
        plan = []
        for bucket, members in enumerate(self._members):
            order = members if rng is None else rng.permutation(members)
            rows = self.shapes[bucket][0]
            plan += [(bucket, order[i : i + rows]) for i in range(0, len(order), rows)]
        return plan if rng is None else [plan[i] for i in rng.permutation(len(plan))]

    def indices(self, number: int) -> np.ndarray:
        """Which pairs batch `number` holds."""
        return self._epoch(number // self.per_epoch)[number % self.per_epoch][1]

    def __getitem__(self, number: int) -> Batch:
        bucket, indices = self._epoch(number // self.per_epoch)[number % self.per_epoch]
        rows, length = self.shapes[bucket]
        return {
            "source_BS": self.pairs.sources.padded(indices, rows, length),
            "target_BT1": self.pairs.targets.padded(indices, rows, length + 1),
        }

    def non_pad_share(self) -> float:
        """Of all positions on both sides in an epoch, those that hold a token."""
        positions = sum(
            2 * rows * length * -(-len(members) // rows)
            for members, (rows, length) in zip(self._members, self.shapes, strict=True)
        )
        pairs = self.pairs
        return (pairs.sources.lengths.sum() + (pairs.targets.lengths - 1).sum()) / positions


def rows_that_fit(batch_tokens: int, length: int) -> int:
    rows = max(1, batch_tokens // length)
    return rows - rows % ROW_MULTIPLE if rows >= ROW_MULTIPLE else rows


def training_batches(
    split: Split,
    vocabulary: Vocabulary,
    *,
    batch_tokens: int,
    num_buckets: int,
    max_length: int,
    seed: int,
) -> tuple[Batches, dict[str, int]]:
    """The batches, and how many pairs were left out for which reason."""
    pairs = tokenize(split, vocabulary)
    empty = np.array([not s.strip() or not t.strip() for s, t in zip(split.sources, split.targets, strict=True)])
    too_long = (pairs.lengths > max_length) & ~empty
    keep = np.flatnonzero(~empty & ~too_long)
    skipped = {"empty": int(empty.sum()), f"longer than {max_length} tokens": int(too_long.sum())}
    if not len(keep):
        raise UserError(f"no training pair is left: {skipped}; see config.data.max_length")
    kept = TokenPairs(*(select(side, keep) for side in (pairs.sources, pairs.targets)))
    return Batches(kept, batch_tokens, num_buckets, seed), skipped


def select(ragged: Ragged, rows: np.ndarray) -> Ragged:
    return Ragged.from_rows([ragged.flat[ragged.offsets[i] : ragged.offsets[i + 1]] for i in rows])


def iterate(batches: Batches, start: int, stop: int) -> Iterator[Batch]:
    """Batches `start` to `stop - 1`, made ahead of their use in a thread.

    The iterator's `get_state` and `set_state` are the position in the data.
    """
    numbers = grain.MapDataset.range(stop).map(batches.__getitem__)
    iterator = iter(numbers.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=8)))
    iterator.set_state({"next_index": start})
    return iterator
