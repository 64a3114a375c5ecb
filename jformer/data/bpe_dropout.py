"""BPE dropout (Provilkov, Emelianenko, Voita 2020, arXiv 1910.13267) on text that is ids already.

Algorithm 1 of the paper, for each word as the pre-tokenizer cut it: take the word apart into base
symbols, which are the ids that no merge makes. Then drop each merge that is now possible with
probability p, and apply the best of those that are left. Do this again until none is left.

Each occurrence of a pair is a merge of its own, and of equals the leftmost is the best, as in the
authors' code (github.com/VProv/BPE-Dropout). `subword-nmt` applies all kept ones at once;
`tokenizers` has no seed and drops less, as merges that have become impossible bring others back.
"""

import itertools
import random

import numpy as np

from jformer.data.ragged import Ragged

# The priority of a merge is its rank in the upper bits of an int64 and its place in the word in the
# lower ones: the least of a word's priorities is that of the best merge, and the leftmost.
PLACE_BITS = 32
NO_MERGE = 1 << 62  # above all priorities
HOLE = -1  # behind the ids of a word, up to the number of its symbols
SLICE = 1 << 15  # ids at a time: bounds the memory, and what they expand to stays in the cache


class PairTable:
    """The priority of a pair of ids at place 0, or `NO_MERGE`, by two look-ups in arrays.

    A left id has a row of its right ids. All rows lie in one array, each shifted to where it meets
    free slots only; a slot knows the left id that it belongs to.
    """

    def __init__(self, pairs: list[tuple[int, int]], num_ids: int):
        rows: dict[int, list[tuple[int, int]]] = {}
        for rank, (left, right) in enumerate(pairs):
            rows.setdefault(left, []).append((right, rank))
        self._shifts = np.zeros(num_ids, np.int64)
        slots: dict[int, tuple[int, int]] = {}
        # Three of four stay free, so that most rows soon fit; with ever more room, all do at last.
        rng = random.Random(0)
        shifts = (rng.randrange(room) for room in itertools.count(4 * len(pairs), 4))
        for left, row in sorted(rows.items(), key=lambda item: -len(item[1])):
            shift = next(i for i in shifts if not any(i + right in slots for right, _ in row))
            self._shifts[left] = shift
            slots |= {shift + right: (left, rank) for right, rank in row}
        last = max(slots, default=0) + 1  # free: all look-ups beyond the array end there
        self._owners = np.full(last + 1, -1, np.int64)
        self._priorities = np.full(last + 1, NO_MERGE)
        for slot, (left, rank) in slots.items():
            self._owners[slot] = left
            self._priorities[slot] = rank << PLACE_BITS

    def __call__(self, lefts: np.ndarray, rights: np.ndarray) -> np.ndarray:
        slots = self._shifts.take(lefts, mode="clip") + rights
        found = self._owners.take(slots, mode="clip") == lefts
        return np.where(found, self._priorities.take(slots, mode="clip"), NO_MERGE)


class BpeDropout:
    def __init__(self, merges: np.ndarray, probability: float):
        """`merges` (n, 3): ids of left, right and result, in order of rank."""
        self._probability, self._results = probability, merges[:, 2].astype(np.int64)
        self._last = int(merges.max(initial=0)) + 1  # stands for all ids above, in no merge either
        parts = {result: pair for *pair, result in merges.tolist()}

        def base(symbol: int) -> list[int]:
            return [one for part in parts.get(symbol, []) for one in base(part)] or [symbol]

        self._base = Ragged.from_rows([base(symbol) for symbol in range(self._last + 1)])
        self._merges = PairTable(merges[:, :2].tolist(), self._last + 1)

    def __call__(
        self,
        flat: np.ndarray,
        lengths: np.ndarray,
        word_starts: np.ndarray,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Other segmentations of the same texts: their ids in one array, and how many each has.

        `word_starts` says of each id whether it is the first of a word.
        """
        ends = np.cumsum(lengths)
        cuts = np.flatnonzero(np.diff(ends // SLICE)) + 1
        slices = zip(
            np.split(flat, ends[cuts - 1]),
            np.split(lengths, cuts),
            np.split(word_starts, ends[cuts - 1]),
            strict=True,
        )
        ids, numbers = zip(*(self._segment(*texts, rng) for texts in slices), strict=True)
        return np.concatenate(ids), np.concatenate(numbers).astype(lengths.dtype)

    def _segment(self, flat, lengths, word_starts, rng):
        ids = flat.astype(np.int64)
        symbols, sizes = self._base.tokens(np.minimum(ids, self._last))
        bounds = np.append(0, np.cumsum(sizes))  # of each id's symbols
        is_base = sizes == 1
        symbols[bounds[:-1][is_base]] = ids[is_base]

        starts = bounds[:-1][word_starts]
        drawn = self._merge(symbols, starts, np.diff(starts, append=len(symbols)), rng)

        kept = np.flatnonzero(drawn != HOLE)
        kept_before = np.searchsorted(kept, bounds[np.cumsum(lengths)])  # the end of each text
        return drawn[kept].astype(flat.dtype), np.diff(kept_before, prepend=0)

    def _merge(self, symbols, starts, lengths, rng):
        """Algorithm 1 on words from `starts` on; of each the ids at its start, and HOLE behind.

        A step makes a word one id shorter, or was its last. So words of one length take it together
        as the columns of an array, from the longest down, and shorter ones join them in time.
        """
        result = np.full(len(symbols), HOLE)
        result[starts] = symbols[starts]  # words of one symbol take no step
        longest = lengths.max(initial=1)
        words, ids = starts[:0], np.zeros((longest, 0), np.int64)
        for length in range(longest, 1, -1):
            rows = np.arange(length)[:, None]
            joining = starts[lengths == length]
            words = np.append(words, joining)
            ids = np.append(ids, symbols[joining + rows], axis=1)

            priorities = self._merges(ids[:-1], ids[1:]) + rows[:-1]
            dropped = rng.random(priorities.shape, np.float32) < self._probability
            priorities[dropped] = NO_MERGE
            best = priorities.min(axis=0)

            done = best >= NO_MERGE
            result[words[done] + rows] = ids[:, done]
            words, ids, best = words[~done], ids[:, ~done], best[~done]
            rank, place = best >> PLACE_BITS, best & ((1 << PLACE_BITS) - 1)
            ids = np.where(rows[:-1] < place, ids[:-1], ids[1:])  # what follows moves up
            ids[place, np.arange(len(words))] = self._results[rank]
        result[words] = ids[0]
        return result
