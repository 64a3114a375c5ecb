"""Ragged arrays: texts of different lengths in one flat array, in memory or memory-mapped."""

import dataclasses
import itertools
import mmap
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

Starts = np.ndarray | None  # whether each id begins a word, for BPE dropout


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Rows of different lengths in one array; row i is `flat[offsets[i] : offsets[i + 1]]`."""

    flat: np.ndarray  # this and the arrays below may be memory-mapped files
    offsets: np.ndarray
    word_starts: Starts = None

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]], word_starts: Starts = None) -> Self:
        flat = np.fromiter(itertools.chain.from_iterable(rows), np.int32)
        return cls.from_lengths(flat, [len(row) for row in rows], word_starts)

    @classmethod
    def from_lengths(cls, flat: np.ndarray, lengths: ArrayLike, word_starts: Starts = None) -> Self:
        return cls(flat, np.append(0, np.cumsum(lengths, dtype=np.int64)), word_starts)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        lengths = np.diff(self.offsets).astype(np.int32)
        release(self.offsets)
        return lengths

    def rows(self) -> list[list[int]]:
        ids = self.flat.tolist()
        return [ids[begin:end] for begin, end in itertools.pairwise(self.offsets.tolist())]

    def take(self, rows: np.ndarray) -> "Ragged":
        """Return the given rows, in memory."""
        begins = self.offsets[rows]
        lengths = self.offsets[rows + 1] - begins
        places = ranges(begins, lengths)
        starts = None if self.word_starts is None else self.word_starts.take(places)
        taken = Ragged.from_lengths(self.flat.take(places), lengths, starts)
        release(self.flat, self.offsets)
        return taken

    def followed_by(self, other: "Ragged") -> "Ragged":
        """Return the rows of both; starts of words are kept if both have them."""
        offsets = np.append(self.offsets, self.offsets[-1] + other.offsets[1:])
        starts = None
        if self.word_starts is not None and other.word_starts is not None:
            starts = np.append(self.word_starts, other.word_starts)
        return Ragged(np.append(self.flat, other.flat), offsets, starts)


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
    return a.followed_by(b).take(np.where(first, rows, len(a) + rows))


def release(*arrays: np.ndarray) -> None:
    """Release the pages of memory-mapped files from this process; ignore other arrays.

    Otherwise a large corpus would soon count as memory that this process uses.
    """
    for array in arrays:
        if isinstance(array.base, mmap.mmap):
            array.base.madvise(mmap.MADV_DONTNEED)
