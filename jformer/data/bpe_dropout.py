"""BPE dropout (Provilkov, Emelianenko, Voita 2020, arXiv 1910.13267) on text that is ids already.

Algorithm 1 of the paper: cut a word into base symbols, the ids that no merge makes; drop each
merge that is now possible with probability p, apply the best that is kept, and again, until none
is kept. Each occurrence of a pair is a merge of its own, and the leftmost is the better one, as in
the authors' code (github.com/VProv/BPE-Dropout). `subword-nmt` applies all kept ones at once;
`tokenizers` has no seed and drops less, as merges that have become impossible bring others back.

The ids that come in must be those of the BPE without dropout. Words are cut where no merge can ever
join: where no entry holds two neighbours next to each other. Where a pre-tokenizer has cut more
("'s" from "un") and the BPE of the whole would be other ids, each id is a word of its own.
"""

import itertools
import random

import numpy as np

# Left id, rank, place: fields of one int64, so that one minimum finds the best merge, the leftmost.
PLACE_BITS, LEFT_SHIFT = 23, 43
NO_PAIR = 1 << LEFT_SHIFT  # and all above
HOLE = -1  # behind the ids of a word, up to the number of its symbols
SLICE = 1 << 15  # ids at a time: bounds the memory, and what they expand to stays in the cache


class PairTable:
    """The rank of a pair of ids, << PLACE_BITS, by two look-ups; NO_PAIR or more if it has none.

    A left id has a row of its right ids. All rows lie in one array, each shifted to where it meets
    free slots only; a slot also knows the left id that it belongs to.
    """

    def __init__(self, pairs: list[tuple[int, int]], num_ids: int):
        rows: dict[int, list[tuple[int, int]]] = {}
        for rank, (left, right) in enumerate(pairs):
            rows.setdefault(left, []).append((right, rank))
        # Three of four stay free, so that most rows soon fit; with ever more room, all do at last.
        rng, slots = random.Random(0), dict[int, int]()
        shifts = (rng.randrange(room) for room in itertools.count(4 * len(pairs), 4))
        self._shifts = np.zeros(num_ids, np.int64)
        for left, row in sorted(rows.items(), key=lambda item: -len(item[1])):
            shift = next(i for i in shifts if not any(i + right in slots for right, _ in row))
            self._shifts[left] = shift
            slots |= {shift + right: left << LEFT_SHIFT | rank << PLACE_BITS for right, rank in row}
        # The last one stays free too; free ones belong to an id above all.
        self._slots = np.full(max(slots, default=0) + 2, (1 << 63) - NO_PAIR)
        self._slots[list(slots)] = list(slots.values())

    def __call__(self, lefts: np.ndarray, rights: np.ndarray) -> np.ndarray:
        # The field of the left id becomes 0 where the slot belongs to this one.
        places = self._shifts.take(lefts, mode="clip") + rights
        return self._slots.take(places, mode="clip") ^ (lefts << LEFT_SHIFT)


class BpeDropout:
    def __init__(self, merges: np.ndarray, probability: float):
        """`merges` (n, 3): ids of left, right and result, in order of rank."""
        self._probability, self._results = probability, merges[:, 2].astype(np.int64)
        num_ids = int(merges.max(initial=0)) + 2  # the last one stands for all above
        parts = {result: pair for *pair, result in merges.tolist()}

        def text(symbol: int) -> list[int]:
            return [base for part in parts.get(symbol, []) for base in text(part)] or [symbol]

        texts = [text(symbol) for symbol in range(num_ids)]
        self._sizes = np.array([len(symbols) for symbols in texts])
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._symbols = np.array([symbol for symbols in texts for symbol in symbols])
        self._merges = PairTable(merges[:, :2].tolist(), num_ids)
        # Two symbols stand together in an entry only where a merge once brought them together.
        seams = {(texts[left][-1], texts[right][0]) for left, right, _ in merges.tolist()}
        self._seams = PairTable(sorted(seams), num_ids)

    def __call__(
        self, flat: np.ndarray, lengths: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Other segmentations of the same texts: their ids in one array, and how many each has."""
        stops = np.cumsum(lengths)
        cuts = np.flatnonzero(np.diff(stops // SLICE)) + 1
        slices = zip(np.split(flat, stops[cuts - 1]), np.split(lengths, cuts), strict=True)
        ids, numbers = zip(*(self._segment(*texts, rng) for texts in slices), strict=True)
        return np.concatenate(ids), np.concatenate(numbers).astype(lengths.dtype)

    def _segment(self, flat, lengths, rng):
        ids, stops = flat.astype(np.int64), np.cumsum(lengths)
        sizes = self._sizes.take(ids, mode="clip")
        bounds = np.append(0, np.cumsum(sizes))
        starts = bounds[:-1]
        shifts = self._starts.take(ids, mode="clip") - starts
        symbols = self._symbols.take(np.arange(bounds[-1]) + np.repeat(shifts, sizes))
        symbols[starts] = np.where(sizes == 1, ids, symbols[starts])
        together = np.zeros(len(ids), bool)  # in one word with the id before
        together[1:] = self._seams(symbols[starts[1:] - 1], symbols[starts[1:]]) < NO_PAIR
        together[stops[stops < len(ids)]] = False
        # Look for cuts of the pre-tokenizer. A word of one id has none and passes for cut as it is.
        firsts, word = np.flatnonzero(~together), np.cumsum(~together) - 1
        words, several = starts[firsts], np.bincount(word) > 1
        lengths = np.diff(words, append=len(symbols))
        undropped = self._merge(symbols, words[several], lengths[several], None)
        other = undropped[(words - firsts)[word] + np.arange(len(ids))] != ids
        words = starts[~together | (np.bincount(word, other) > 0)[word]]
        drawn = self._merge(symbols, words, np.diff(words, append=len(symbols)), rng)
        kept = np.flatnonzero(drawn != HOLE)
        numbers = np.diff(np.searchsorted(kept, bounds[stops]), prepend=0)
        return drawn.take(kept).astype(flat.dtype), numbers

    def _merge(self, symbols, starts, lengths, rng):
        """Of each word the ids that come out, from its start on, and HOLE else; all kept if no rng.

        A step makes a word one id shorter, or is its last. So words of one length go together, in
        a column each, from the longest down, and shorter ones join them when it is their turn.
        """
        result = np.full(len(symbols), HOLE)
        result[starts] = symbols[starts]  # of one symbol: there is no step
        words, ids = starts[:0], np.zeros((lengths.max(initial=1), 0), np.int64)
        for length in range(len(ids), 1, -1):
            rows, new = np.arange(length)[:, None], starts.compress(lengths == length)
            words, ids = np.append(words, new), np.append(ids, symbols.take(new + rows), axis=1)
            pairs = self._merges(ids[:-1], ids[1:]) + rows[:-1]
            if rng is not None:
                np.putmask(pairs, rng.random(pairs.shape, np.float32) < self._probability, NO_PAIR)
            best = pairs.min(axis=0)
            going, stops = np.flatnonzero(best < NO_PAIR), np.flatnonzero(best >= NO_PAIR)
            result[words.take(stops) + rows] = ids.take(stops, axis=1)
            words, ids = words.take(going), ids.take(going, axis=1)
            rank, place = np.divmod(best.take(going), 1 << PLACE_BITS)
            ids = np.where(rows[:-1] < place, ids[:-1], ids[1:])
            ids[place, np.arange(len(words))] = self._results.take(rank)
        result[words] = ids[0]
        return result
