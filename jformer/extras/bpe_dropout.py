"""BPE dropout (Provilkov, Emelianenko, Voita 2020, arXiv 1910.13267), applied to token ids.

This is Algorithm 1 of the paper, run on each word of the pre-tokenizer: split the word into base
symbols, the ids that no merge produces. Then drop each possible merge with probability p, apply
the best of the remaining ones, and repeat until none remains.

Each occurrence of a pair is dropped independently, and the leftmost of equal merges comes first,
as in the authors' code (github.com/VProv/BPE-Dropout). `subword-nmt` applies all occurrences kept
at once; `tokenizers` has no seed and drops fewer merges, because reaching a merge that has become
impossible restores dropped ones.
"""

import itertools
import random
from collections.abc import Callable

import numpy as np

from jformer.data.ragged import Ragged, TokenPairs
from jformer.data.vocabulary import Vocabularies
from jformer.errors import UserError

# A priority is an int64 with the merge's rank in the upper bits and its place in the word in the
# lower ones, so the minimum over a word is its best merge, and of equal merges the leftmost.
PLACE_BITS = 32
NO_MERGE = 1 << 62  # greater than any priority
HOLE = -1  # fills a word's slots after its ids, up to its number of base symbols
SLICE = 1 << 15  # ids at a time: bounds memory, and their base symbols stay in the CPU cache


def bpe_dropout(
    vocabularies: Vocabularies, *, p: float
) -> Callable[[TokenPairs, np.random.Generator], TokenPairs]:
    """Skip each merge of both sides with probability `p`."""
    merges = [vocabulary.merges for vocabulary in vocabularies]
    if any(each is None for each in merges) or not 0 <= p < 1:
        raise UserError(
            f"config.data.augment=bpe_dropout(p={p}): requires 0 <= p < 1 and BPE vocabularies, "
            f"config.data.tokenizer=byte_bpe or bpe"
        )
    droppers = [BpeDropout(each, p) for each in merges if each is not None]

    def augment(pairs: TokenPairs, rng: np.random.Generator) -> TokenPairs:
        return TokenPairs(*(drop(side, rng) for drop, side in zip(droppers, pairs, strict=True)))

    return augment


class PairTable:
    """Maps pairs of ids to priorities at place 0, or to `NO_MERGE`, by two look-ups in arrays.

    Each left id has a row indexed by right id. All rows overlap in one array, each shifted so that
    its entries fall into free slots; a slot stores the left id that it belongs to.
    """

    def __init__(self, pairs: list[tuple[int, int]], num_ids: int):
        rows: dict[int, list[tuple[int, int]]] = {}
        for rank, (left, right) in enumerate(pairs):
            rows.setdefault(left, []).append((right, rank))
        self._shifts = np.zeros(num_ids, np.int64)
        slots: dict[int, tuple[int, int]] = {}
        # Three of four slots stay free, so most rows fit soon; the range grows until all do.
        rng = random.Random(0)
        shifts = (rng.randrange(room) for room in itertools.count(4 * len(pairs), 4))
        for left, row in sorted(rows.items(), key=lambda item: -len(item[1])):
            shift = next(i for i in shifts if not any(i + right in slots for right, _ in row))
            self._shifts[left] = shift
            slots |= {shift + right: (left, rank) for right, rank in row}
        last = max(slots, default=0) + 1  # a free slot, for all look-ups beyond the array
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
        """Prepare `merges` (n, 3), the ids of left, right and result, in order of rank."""
        self._probability, self._results = probability, merges[:, 2].astype(np.int64)
        self._last = int(merges.max(initial=0)) + 1  # stands for all greater ids, in no merge
        parts = {result: pair for *pair, result in merges.tolist()}

        def base(symbol: int) -> list[int]:
            return [one for part in parts.get(symbol, []) for one in base(part)] or [symbol]

        self._base = Ragged.from_rows([base(symbol) for symbol in range(self._last + 1)])
        self._merges = PairTable(merges[:, :2].tolist(), self._last + 1)

    def __call__(self, texts: Ragged, rng: np.random.Generator) -> Ragged:
        """Return new segmentations of the texts, of which the starts of words are known."""
        ends = texts.offsets[1:]
        cuts = np.flatnonzero(np.diff(ends // SLICE)) + 1
        flats, lengths = [], []
        for first, last in itertools.pairwise([0, *cuts.tolist(), len(texts)]):
            flat, numbers = self._segment(texts, texts.offsets[first : last + 1], rng)
            flats.append(flat)
            lengths.append(numbers)
        return Ragged.from_lengths(np.concatenate(flats), np.concatenate(lengths))

    def _segment(
        self, texts: Ragged, offsets: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return all ids and the lengths of the new segmentations of the texts at `offsets`."""
        if texts.word_starts is None:
            raise UserError(
                "config.data.augment: bpe_dropout must come first: the words of changed texts are "
                "not known"
            )
        flat = texts.flat[offsets[0] : offsets[-1]]
        word_starts = texts.word_starts[offsets[0] : offsets[-1]]
        ids = flat.astype(np.int64)
        base = self._base.take(np.minimum(ids, self._last))
        symbols, begins = base.flat, base.offsets[:-1]
        # Ids in no merge have all been looked up as one; they are their own symbol.
        is_base = base.lengths == 1
        symbols[begins[is_base]] = ids[is_base]

        drawn = self._merge(symbols, begins[word_starts], rng)
        is_id = drawn != HOLE
        ids_up_to = np.append(0, np.cumsum(is_id))  # a number of symbols
        text_ends = base.offsets[offsets - offsets[0]]
        return drawn[is_id].astype(flat.dtype), np.diff(ids_up_to[text_ends])

    def _merge(
        self, symbols: np.ndarray, starts: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Run Algorithm 1 on the words at `starts`; return each word's ids at its start, then HOLE.

        A step makes a word one id shorter or finishes it. So words of one length are processed
        together as columns of an array, from the longest down; shorter words join at their length.
        """
        lengths = np.diff(starts, append=len(symbols))
        result = np.full(len(symbols), HOLE)
        result[starts] = symbols[starts]  # words of one symbol have no merges
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
            ids = np.where(rows[:-1] < place, ids[:-1], ids[1:])  # the ids after the merge move up
            ids[place, np.arange(len(words))] = self._results[rank]
        result[words] = ids[0]
        return result
