"""Ragged arrays: texts of different lengths in one flat array, in memory or memory-mapped."""

import dataclasses
import itertools
import mmap
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Rows of different lengths in one array; row i is `flat[offsets[i] : offsets[i + 1]]`."""

    flat: np.ndarray  # this and the arrays below may be memory-mapped files
    offsets: np.ndarray
    word_starts: np.ndarray | None = None  # whether each id begins a word, for BPE dropout

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]]) -> "Ragged":
        return cls.from_lengths(
            np.fromiter(itertools.chain.from_iterable(rows), np.int32), [len(row) for row in rows]
        )

    @classmethod
    def from_lengths(cls, flat: np.ndarray, lengths: Sequence[int] | np.ndarray) -> "Ragged":
        return cls(flat, np.append(0, np.cumsum(lengths, dtype=np.int64)))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        lengths = np.diff(self.offsets).astype(np.int32)
        release(self.offsets)
        return lengths

    def tokens(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the given rows concatenated, and their lengths."""
        begins = self.offsets[rows]
        lengths = self.offsets[rows + 1] - begins
        tokens = self.flat.take(ranges(begins, lengths))
        release(self.flat, self.offsets)
        return tokens, lengths

    def followed_by(self, other: "Ragged") -> "Ragged":
        offsets = np.concatenate([self.offsets, self.offsets[-1] + other.offsets[1:]])
        return Ragged(np.concatenate([self.flat, other.flat]), offsets)


class TokenPairs(NamedTuple):
    """Pairs of token ids. Both sides end in EOS, as labels do; a batch adds the target's BOS."""

    sources: Ragged
    targets: Ragged

    def lengths(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the source and target positions, S and T, that each pair takes."""
        return self.sources.lengths[rows], self.targets.lengths[rows]


def ranges(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the concatenation of `begins[i], ..., begins[i] + lengths[i] - 1` for all i."""
    shifts = begins - np.cumsum(lengths) + lengths
    return np.repeat(shifts, lengths) + np.arange(lengths.sum())


def choose(first: np.ndarray, a: Ragged, b: Ragged) -> Ragged:
    """Return row i of `a` where `first[i]` is true, and of `b` elsewhere."""
    if first.all():
        return a
    rows = np.arange(len(first))
    return Ragged.from_lengths(*a.followed_by(b).tokens(np.where(first, rows, len(a) + rows)))


def release(*arrays: np.ndarray) -> None:
    """Release the pages of memory-mapped files from this process; ignore other arrays.

    Otherwise a large corpus would soon count as memory that this process uses.
    """
    for array in arrays:
        if isinstance(array.base, mmap.mmap):
            array.base.madvise(mmap.MADV_DONTNEED)
