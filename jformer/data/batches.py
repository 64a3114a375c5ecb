"""The batch iterator: shuffled batches of token ids in static shapes, resumable at any batch.

An epoch depends only on the seed and its number, and contains each training pair exactly once (or
as often as data.weights repeats it). The position is a few integers (epoch, next batch, batches
taken), so a resumed run sees the batches of an uninterrupted one, on any number of processes.
"""

import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from jformer.components import find, split_list
from jformer.config import BOS, PAD, Config, DataConfig
from jformer.data.layout import Buckets, Packing
from jformer.data.tokens import TokenPairs, choose
from jformer.data.vocabulary import Vocabularies

Batch = dict[str, np.ndarray]
# A random version of all pairs.
Augment = Callable[[TokenPairs, np.random.Generator], TokenPairs]
Position = dict[str, int]  # the epoch, its next batch, and how many batches were taken in all

PREFETCHED = 8  # batches made ahead of the one in use


@dataclasses.dataclass(frozen=True)
class Epoch:
    """The pairs of an epoch in row order, and its batches as ranges of rows."""

    pairs: TokenPairs
    members: np.ndarray  # indices into `pairs`
    row_offsets: np.ndarray  # row r holds members[row_offsets[r] : row_offsets[r + 1]]
    batches: np.ndarray  # (number of the shape, first row, end row) of each

    def __len__(self) -> int:
        return len(self.batches)


@dataclasses.dataclass(eq=False)
class Batches:
    """Plans epochs over the given rows of `pairs`, and builds each batch as arrays.

    `augment` draws the tokens of all pairs again for each epoch. A pair whose new tokens do not fit
    the layout keeps its plain ones.
    """

    pairs: TokenPairs
    rows: np.ndarray
    layout: Buckets | Packing
    seed: int
    augment: Augment | None = None

    def __post_init__(self) -> None:
        self.epoch = functools.lru_cache(maxsize=1)(self._plan)

    def _plan(self, number: int) -> Epoch:
        rng = np.random.default_rng((self.seed, number))
        order = rng.permutation(self.rows)
        pairs = self.pairs
        if self.augment is not None:
            drawn = self.augment(pairs, rng)
            fits = self.layout.fits(*(side.lengths for side in drawn))
            pairs = TokenPairs(*(choose(fits, *both) for both in zip(drawn, pairs, strict=True)))
        by_row, counts, rows = self.layout.arrange(*pairs.lengths(order))
        offsets = np.append(0, np.cumsum(counts)).astype(np.int32)
        batches, first = [], 0
        for shape, (height, _, _) in enumerate(self.layout.shapes):
            end = first + int(rows[shape])
            batches += [(shape, i, min(i + height, end)) for i in range(first, end, height)]
            first = end
        batches = [batches[i] for i in rng.permutation(len(batches))]
        return Epoch(pairs, order[by_row], offsets, np.array(batches, np.int32))

    def batch(self, epoch: int, number: int, part: int = 0, parts: int = 1) -> Batch:
        """Return batch `number` of an epoch, or one of `parts` equal parts of its rows.

        The last rows are all padding, without weight in the loss, if the pairs of a shape do not
        fill the batch or its rows do not divide among the parts.
        """
        plan = self.epoch(epoch)
        shape, first, last = plan.batches[number]
        height, S, T = self.layout.shapes[shape]
        height = -(-height // parts)
        offsets = plan.row_offsets[first : last + 1]
        members = plan.members[offsets[0] : offsets[-1]]
        row = np.repeat(np.arange(last - first), np.diff(offsets)) - part * height
        mine = (row >= 0) & (row < height)
        members, row = members[mine], row[mine]
        segment = 1 + np.arange(len(row)) - np.searchsorted(row, row)
        batch = {}
        for side, axes, width in (("source", "BS", S), ("target", "BT", T)):
            taken = getattr(plan.pairs, f"{side}s").take(members)
            tokens, lengths = taken.flat, taken.lengths
            # The texts of a row are concatenated, from its first position on.
            filled = np.arange(width) < np.bincount(row, lengths, height)[:, None]
            texts = {f"{side}_{axes}": tokens}
            if side == "target":
                texts = {"labels_BT": tokens, "target_BT": shift_right(tokens, lengths)}
            if isinstance(self.layout, Packing):
                texts[f"{side}_segments_{axes}"] = np.repeat(segment, lengths)
            for name, values in texts.items():
                batch[name] = np.full(filled.shape, PAD, np.int32)
                batch[name][filled] = values
        return batch

    def token_utilization(self) -> float:
        """Return the fraction of the first epoch's positions, on both sides, that hold a token."""
        plan = self.epoch(0)
        shapes = np.array(self.layout.shapes, np.int64)[plan.batches[:, 0]]
        tokens = sum(int(lengths.sum()) for lengths in plan.pairs.lengths(plan.members))
        return tokens / int((shapes[:, 0] * shapes[:, 1:].sum(axis=1)).sum())


def shift_right(tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the concatenated texts, each with BOS before it and without its EOS."""
    before = np.roll(tokens, 1)
    before[np.cumsum(lengths) - lengths] = BOS
    return before


def iterate(
    batches: Batches, stop: int, position: Position | None = None, part: int = 0, parts: int = 1
) -> Iterator[tuple[Batch, Position]]:
    """Yield the batches from `position`, or the first, to the `stop`-th, prefetched by a thread.

    With each batch comes the position after it, which checkpoints store as JSON and which is the
    same in every process.
    """
    first = {"epoch": 0, "batch": 0, "taken": 0}
    made = batches_from(batches, stop, position or first, part, parts)
    thread = ThreadPoolExecutor(1)
    try:
        coming = deque(thread.submit(next, made, None) for _ in range(PREFETCHED))
        while item := coming.popleft().result():
            coming.append(thread.submit(next, made, None))
            yield item
    finally:
        thread.shutdown(cancel_futures=True)


def batches_from(
    batches: Batches, stop: int, position: Position, part: int, parts: int
) -> Iterator[tuple[Batch, Position]]:
    """Yield the batches through the epochs in turn, each with the position after it."""
    epoch, number = position["epoch"], position["batch"]
    for taken in range(position["taken"] + 1, stop + 1):
        if number == len(batches.epoch(epoch)):
            epoch, number = epoch + 1, 0
        batch = batches.batch(epoch, number, part, parts)
        number += 1
        yield batch, {"epoch": epoch, "batch": number, "taken": taken}


def make_batches(
    config: Config, pairs: TokenPairs, rows: np.ndarray, vocabularies: Vocabularies
) -> Batches:
    """Return the batches of the training pairs `rows`, laid out as the config says."""
    data, tokens = config.data, config.train.batch_tokens
    augment = make_augment(data, vocabularies)
    S, T = pairs.lengths(rows)
    if augment:
        # The layout fits one random version of each pair, as a sample of all epochs.
        drawn = augment(pairs, np.random.default_rng(config.seed)).lengths(rows)
        S, T = (
            np.maximum(a, b.clip(max=data.max_length)) for a, b in zip((S, T), drawn, strict=True)
        )
    layout: Buckets | Packing
    if data.batching == "packed":
        layout = Packing(S, T, tokens, data.max_length, data.length_multiple)
    else:
        layout = Buckets(S, T, tokens, data.num_buckets, data.length_multiple)
    return Batches(pairs, rows, layout, config.seed, augment)


def make_augment(data: DataConfig, vocabularies: Vocabularies) -> Augment | None:
    """Return a function that applies all of `data.augment` in turn, or None if it is empty."""
    steps = [
        find("config.data.augment", "augmentation", text)(vocabularies)
        for text in split_list(data.augment)
    ]

    def augment(pairs: TokenPairs, rng: np.random.Generator) -> TokenPairs:
        for step in steps:
            pairs = step(pairs, rng)
        return pairs

    return augment if steps else None
