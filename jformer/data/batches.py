"""Batches of token ids in few static shapes, shuffled in each epoch and resumable at any batch.

A layout, `Buckets` or `Packing`, has a few `shapes` `(B, S, T)`, each compiled once. `B * S` and
`B * T` are at most the batch's tokens, padding included, unless a single row is longer.

An epoch depends only on the seed and its number, and has each training row exactly once. The
position is a few integers, so a resumed run sees the batches of an uninterrupted one, on any number
of processes.
"""

import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from jformer.components import find, split_list
from jformer.config import BOS, PAD, Config
from jformer.data.tokens import Ragged, TokenPairs
from jformer.data.vocabulary import Vocabularies

Batch = dict[str, np.ndarray]
# A random version of all pairs.
Augment = Callable[[TokenPairs, np.random.Generator], TokenPairs]
Position = dict[str, int]  # the epoch, its next batch, and the total number of batches so far
# The pairs in each row, sorted by shape, and the number of rows of each shape.
Arrangement = tuple[Ragged, np.ndarray]

PREFETCHED = 8  # batches built ahead of the current one
ROW_MULTIPLE = 8  # batch rows are multiples, to divide among devices
OPEN_ROWS = 16  # packed rows that may take the next pair


def rows_that_fit(batch_tokens: int, length: int) -> int:
    rows = max(1, batch_tokens // length)
    return rows - rows % ROW_MULTIPLE if rows >= ROW_MULTIPLE else rows


def round_up(lengths, multiple: int):
    return -(-lengths // multiple) * multiple


class Buckets:
    """One pair per row; pairs of similar lengths share a batch.

    There are at most `number` shapes, with lengths that are multiples of `multiple`.
    """

    def __init__(self, S: np.ndarray, T: np.ndarray, batch_tokens: int, number: int, multiple: int):
        lengths = sorted(bucket_lengths(S, T, number, multiple), key=sum, reverse=True)
        self.shapes = [(rows_that_fit(batch_tokens, max(pair)), *pair) for pair in lengths]

    def arrange(self, S: np.ndarray, T: np.ndarray) -> Arrangement:
        """Assign each pair to the smallest shape that it fits.

        Pairs that do not fill a batch move to a larger shape if that takes fewer positions.
        """
        shape_of = self.smallest(S, T)
        for number, (height, s, t) in reversed(list(enumerate(self.shapes))):
            members = np.flatnonzero(shape_of == number)
            left = members[len(members) - len(members) % height :]
            larger = [k for k in range(number) if np.all(np.array(self.shapes[k][1:]) >= (s, t))]
            if larger and len(left) * sum(self.shapes[larger[-1]][1:]) < height * (s + t):
                shape_of[left] = larger[-1]
        rows = Ragged(np.argsort(shape_of, kind="stable"), np.ones(len(S), np.int32))
        return rows, np.bincount(shape_of, minlength=len(self.shapes))

    def smallest(self, S: np.ndarray, T: np.ndarray) -> np.ndarray:
        """Return the number of the smallest shape that each pair fits."""
        shape_of = np.zeros(len(S), np.uint8)
        for number, (_, s, t) in enumerate(self.shapes):
            shape_of[(s >= S) & (t >= T)] = number  # shapes are sorted, largest first
        return shape_of

    def trim(self, S: np.ndarray, T: np.ndarray) -> None:
        """Limit the rows of each shape to its number of pairs."""
        numbers = np.bincount(self.smallest(S, T), minlength=len(self.shapes)).tolist()
        shapes = zip(self.shapes, numbers, strict=True)
        self.shapes = [(min(height, number), s, t) for (height, s, t), number in shapes if number]


def bucket_lengths(
    S: np.ndarray, T: np.ndarray, number: int, multiple: int
) -> list[tuple[int, int]]:
    """Return at most `number` pairs of lengths, chosen greedily for little padding.

    The first fits all pairs. Each further choice saves the most positions, given that every pair
    uses the smallest lengths that it fits.
    """
    cell_S, cell_T = (-(-lengths // multiple) for lengths in (S, T))
    pairs_ST = np.zeros((cell_S.max() + 1, cell_T.max() + 1), np.int64)
    np.add.at(pairs_ST, (cell_S, cell_T), 1)
    size_ST = multiple * np.indices(pairs_ST.shape).sum(axis=0)  # positions in a row

    chosen = [(round_up(int(S.max()), multiple), round_up(int(T.max()), multiple))]
    taken_ST = np.full_like(size_ST, size_ST[-1, -1])  # positions that a pair takes so far
    while len(chosen) < number:
        # The positions that each cell's lengths would save, over pairs that take the same so far.
        saved_ST = np.zeros_like(size_ST)
        for taken in {sum(lengths) for lengths in chosen}:
            within_ST = (pairs_ST * (taken_ST == taken)).cumsum(axis=0).cumsum(axis=1)
            saved_ST += within_ST * (taken - size_ST).clip(min=0)
        if not saved_ST.any():
            break
        # On ties, prefer the longest source, then the shortest target. The choice must not change,
        # because a resumed run must get the same batches.
        cells_N2 = np.argwhere(saved_ST == saved_ST.max())
        s, t = min(cells_N2.tolist(), key=lambda cell: (-cell[0], cell[1]))
        taken_ST[: s + 1, : t + 1] = taken_ST[: s + 1, : t + 1].clip(max=size_ST[s, t])
        chosen.append((multiple * s, multiple * t))
    return chosen


@dataclasses.dataclass
class PackedRow:
    """The free positions of a row, and the pairs in it."""

    free_S: int
    free_T: int
    pairs: list[int] = dataclasses.field(default_factory=list)


class Packing:
    """Several pairs per row; attention masks keep them apart.

    A row has `length` positions for the language with more tokens, and proportionally fewer for the
    other: a multiple of `multiple`, or the length of the longest pair.
    """

    def __init__(self, S: np.ndarray, T: np.ndarray, batch_tokens: int, length: int, multiple: int):
        longer = int(max(S.sum(), T.sum()))
        widths = []
        for lengths in (S, T):
            share = -(-int(lengths.sum()) * length // longer)
            widths.append(min(length, max(int(lengths.max()), round_up(share, multiple))))
        self.shapes = [(rows_that_fit(batch_tokens, length), *widths)]

    def arrange(self, S: np.ndarray, T: np.ndarray) -> Arrangement:
        """Put each pair into the first open row that has room for it.

        If no row has room, the oldest open row is complete, and a new row replaces it.
        """
        _, width_S, width_T = self.shapes[0]
        complete: list[list[int]] = []
        rows: deque[PackedRow] = deque()
        for pair, (s, t) in enumerate(zip(S.tolist(), T.tolist(), strict=True)):
            row = next((row for row in rows if row.free_S >= s and row.free_T >= t), None)
            if row is None:
                if len(rows) == OPEN_ROWS:
                    complete.append(rows.popleft().pairs)
                row = PackedRow(width_S, width_T)
                rows.append(row)
            row.free_S -= s
            row.free_T -= t
            row.pairs.append(pair)
        complete += [row.pairs for row in rows]
        return Ragged.from_rows(complete), np.array([len(complete)])


@dataclasses.dataclass(frozen=True)
class Epoch:
    """The rows of an epoch, and its batches as ranges of rows."""

    pairs: TokenPairs
    rows: Ragged  # indices into `pairs`
    batches: np.ndarray  # (number of the shape, first row, end row) of each

    def __len__(self) -> int:
        return len(self.batches)


@dataclasses.dataclass(eq=False)
class Batches:
    """Plans epochs over the given rows of `pairs`, and builds each batch as arrays.

    `augments` draw the tokens of all pairs again for each epoch. A pair that then does not fit the
    layout keeps its original tokens.
    """

    pairs: TokenPairs
    rows: np.ndarray
    layout: Buckets | Packing
    seed: int
    augments: Sequence[Augment] = ()

    def __post_init__(self) -> None:
        self.epoch = functools.lru_cache(maxsize=1)(self._plan)

    def _plan(self, number: int) -> Epoch:
        rng = np.random.default_rng((self.seed, number))
        order = rng.permutation(self.rows)
        pairs, shapes = self.pairs, self.layout.shapes
        if self.augments:
            drawn = augmented(pairs, self.augments, rng)
            S, T = (side.lengths for side in drawn)
            fits = np.any([(s >= S) & (t >= T) for _, s, t in shapes], axis=0)
            pairs = TokenPairs(*(choose(fits, *both) for both in zip(drawn, pairs, strict=True)))
        rows, rows_of_shapes = self.layout.arrange(*pairs.lengths(order))
        batches, first = [], 0
        for shape, (height, _, _) in enumerate(shapes):
            end = first + int(rows_of_shapes[shape])
            batches += [(shape, i, min(i + height, end)) for i in range(first, end, height)]
            first = end
        shuffled = np.array(batches, np.int32)[rng.permutation(len(batches))]
        return Epoch(pairs, Ragged(order[rows.flat], rows.lengths), shuffled)

    def batch(self, epoch: int, number: int, part: int = 0, parts: int = 1) -> Batch:
        """Return batch `number` of an epoch, or one of `parts` equal parts of its rows.

        The last rows may be padding without weight in the loss.
        """
        plan = self.epoch(epoch)
        shape, first, last = plan.batches[number]
        height, S, T = self.layout.shapes[shape]
        height = -(-height // parts)
        rows = plan.rows.take(np.arange(first, last)[part * height :][:height])
        row = np.repeat(np.arange(len(rows)), rows.lengths)  # of each pair
        sources, targets = (side.take(rows.flat) for side in plan.pairs)

        def padded(width: int, texts: Ragged, values: np.ndarray) -> np.ndarray:
            """Concatenate the texts of each row, starting at its first position."""
            filled = np.arange(width) < np.bincount(row, texts.lengths, height)[:, None]
            array = np.full(filled.shape, PAD, np.int32)
            array[filled] = values
            return array

        batch = {
            "source_BS": padded(S, sources, sources.flat),
            "target_BT": padded(T, targets, shift_right(targets)),
            "labels_BT": padded(T, targets, targets.flat),
        }
        if isinstance(self.layout, Packing):
            segment = 1 + np.arange(len(row)) - np.searchsorted(row, row)
            source_segment = np.repeat(segment, sources.lengths)
            target_segment = np.repeat(segment, targets.lengths)
            batch["source_segments_BS"] = padded(S, sources, source_segment)
            batch["target_segments_BT"] = padded(T, targets, target_segment)
        return batch

    def token_utilization(self) -> float:
        """Return the fraction of the first epoch's positions, on both sides, that are tokens."""
        plan = self.epoch(0)
        shapes = np.array(self.layout.shapes, np.int64)[plan.batches[:, 0]]
        tokens = sum(int(lengths.sum()) for lengths in plan.pairs.lengths(plan.rows.flat))
        return tokens / int((shapes[:, 0] * shapes[:, 1:].sum(axis=1)).sum())


def choose(first: np.ndarray, a: Ragged, b: Ragged) -> Ragged:
    """Return row i of `a` if `first[i]` is true, else row i of `b`."""
    both = Ragged(np.append(a.flat, b.flat), np.append(a.lengths, b.lengths))
    return both.take(np.arange(len(a)) + np.where(first, 0, len(a)))


def shift_right(texts: Ragged) -> np.ndarray:
    """Return the concatenated texts, each with BOS before it and without its EOS."""
    shifted = np.roll(texts.flat, 1)
    shifted[texts.offsets[:-1]] = BOS
    return shifted


def iterate(
    batches: Batches, stop: int, position: Position | None = None, part: int = 0, parts: int = 1
) -> Iterator[tuple[Batch, Position]]:
    """Yield the batches from `position`, or the first, to the `stop`-th, prefetched by a thread.

    Each comes with the position after it, which is the same in every process.
    """

    def batches_from(epoch: int, batch: int, taken: int) -> Iterator[tuple[Batch, Position]]:
        while taken < stop:
            if batch == len(batches.epoch(epoch)):
                epoch, batch = epoch + 1, 0
            made = batches.batch(epoch, batch, part, parts)
            batch, taken = batch + 1, taken + 1
            yield made, {"epoch": epoch, "batch": batch, "taken": taken}

    made = batches_from(**(position or {"epoch": 0, "batch": 0, "taken": 0}))
    with ThreadPoolExecutor(1) as thread:
        coming = deque(thread.submit(next, made, None) for _ in range(PREFETCHED))
        while item := coming.popleft().result():
            coming.append(thread.submit(next, made, None))
            yield item


def make_batches(
    config: Config, pairs: TokenPairs, rows: np.ndarray, vocabularies: Vocabularies
) -> Batches:
    """Return the batches of the training pairs `rows`, with the layout of the config."""
    data, tokens = config.data, config.train.batch_tokens
    names = split_list(data.augment)
    parts = [find("config.data.augment", "augmentation", name) for name in names]
    augments = [part(vocabularies) for part in parts]
    # The layout fits one random version of each pair, as a sample of all epochs.
    drawn = augmented(pairs, augments, np.random.default_rng(config.seed))
    S, T = (
        np.maximum(plain, new.clip(max=data.max_length))
        for plain, new in zip(pairs.lengths(rows), drawn.lengths(rows), strict=True)
    )
    layout: Buckets | Packing
    if data.batching == "packed":
        layout = Packing(S, T, tokens, data.max_length, data.length_multiple)
    else:
        layout = Buckets(S, T, tokens, data.num_buckets, data.length_multiple)
    return Batches(pairs, rows, layout, config.seed, augments)


def augmented(
    pairs: TokenPairs, augments: Sequence[Augment], rng: np.random.Generator
) -> TokenPairs:
    for augment in augments:
        pairs = augment(pairs, rng)
    return pairs
