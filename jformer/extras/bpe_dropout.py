"""BPE dropout (Provilkov, Emelianenko, Voita 2020, arXiv 1910.13267), applied to token ids.

This is Algorithm 1 of the paper, run on each word of the pre-tokenizer: split the word into base
symbols, the ids that no merge produces. Then drop each possible merge with probability p, apply
the best remaining merge, and repeat until no merge remains.

Each occurrence of a pair is dropped independently, and the leftmost of equal merges comes first,
as in the authors' code (github.com/VProv/BPE-Dropout). `subword-nmt` applies all kept occurrences
at once. `tokenizers` has no seed and drops fewer merges, because reaching a merge that has become
impossible restores dropped merges.
"""

import functools
import itertools
from collections.abc import Callable

import numpy as np

from jformer.data.tokens import CHUNK, Ragged, TokenPairs
from jformer.data.vocabulary import FIRST, Vocabularies, Vocabulary
from jformer.errors import UserError

NO_MERGE = np.iinfo(np.int64).max  # greater than any rank, and than any number of a pair
HOLE = -1  # fills a word's slots after its ids, up to the number of base symbols
SLICE = 1 << 15  # ids at a time: bounds memory, and their base symbols stay in the CPU cache


def bpe_dropout(
    vocabularies: Vocabularies, *, p: float
) -> Callable[[TokenPairs, np.random.Generator], TokenPairs]:
    """Skip each merge of both sides with probability `p`."""
    if any(vocabulary.merges is None for vocabulary in vocabularies):
        raise UserError(
            f"config.data.augment=bpe_dropout(p={p}): requires BPE vocabularies, "
            f"config.data.tokenizer=byte_bpe"
        )
    droppers = [BpeDropout(v.merges, v.size, p) for v in vocabularies if v.merges is not None]

    def augment(pairs: TokenPairs, rng: np.random.Generator) -> TokenPairs:
        sides = zip(droppers, pairs, vocabularies, strict=True)
        return TokenPairs(*(drop(side, word_starts(side, v), rng) for drop, side, v in sides))

    return augment


@functools.lru_cache(maxsize=2)  # both sides, which are the same objects in all epochs
def word_starts(texts: Ragged, vocabulary: Vocabulary) -> np.ndarray:
    """Return for each id whether it begins a word of the pre-tokenizer, or is EOS.

    The texts are decoded and encoded again. If this yields other ids, each id counts as a word.
    """
    starts = np.ones(len(texts.flat), bool)
    for first in range(0, len(texts), CHUNK):
        rows = texts.take(np.arange(first, min(first + CHUNK, len(texts)))).rows()
        decoded = [vocabulary.decode(row) for row in rows]
        has_language = vocabulary.language_token is not None
        encodings = vocabulary.tokenizer.encode_batch(decoded, add_special_tokens=has_language)
        for begin, row, encoding in zip(texts.offsets[first:], rows, encodings, strict=False):
            if [entry + FIRST for entry in encoding.ids] == row[:-1]:
                pairs = itertools.pairwise(encoding.word_ids)
                starts[begin + 1 : begin + len(row) - 1] = [a != b for a, b in pairs]
    return starts


class BpeDropout:
    def __init__(self, merges: np.ndarray, size: int, probability: float):
        """Prepare `merges` (n, 3), the ids of left, right and result, in order of rank."""
        self._probability, self._results = probability, merges[:, 2].astype(np.int64)
        parts = {result: pair for *pair, result in merges.tolist()}

        def base(symbol: int) -> list[int]:
            return [each for part in parts.get(symbol, []) for each in base(part)] or [symbol]

        self._base = Ragged.from_rows([base(symbol) for symbol in range(size)])
        pairs = pair_numbers(merges[:, 0], merges[:, 1])
        order = np.argsort(pairs)
        self._pairs = np.append(pairs[order], NO_MERGE)  # where a search ends
        self._ranks = np.append(order, NO_MERGE)

    def __call__(self, texts: Ragged, starts: np.ndarray, rng: np.random.Generator) -> Ragged:
        """Return new segmentations of the texts; `starts` marks the ids that begin a word."""
        cuts = np.flatnonzero(np.diff(texts.offsets[1:] // SLICE)) + 1
        flats, lengths = [], []
        for first, last in itertools.pairwise([0, *cuts.tolist(), len(texts)]):
            offsets = texts.offsets[first : last + 1]
            ids = slice(offsets[0], offsets[-1])
            base = self._base.take(texts.flat[ids])
            drawn = self._merge(base.flat.astype(np.int64), base.offsets[:-1][starts[ids]], rng)
            is_id = drawn != HOLE
            flats.append(drawn[is_id].astype(texts.flat.dtype))
            begins = base.offsets[offsets[:-1] - offsets[0]]
            lengths.append(np.add.reduceat(is_id, begins, dtype=np.int64))
        return Ragged(np.concatenate(flats), np.concatenate(lengths))

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

            ranks = self._look_up(ids[:-1], ids[1:])
            ranks[rng.random(ranks.shape, np.float32) < self._probability] = NO_MERGE
            position = ranks.argmin(axis=0)  # of equal ranks the leftmost
            best = ranks[position, np.arange(len(words))]

            done = best == NO_MERGE
            result[words[done] + rows] = ids[:, done]
            words, ids, best, position = words[~done], ids[:, ~done], best[~done], position[~done]
            # The ids after the merge move forward.
            ids = np.where(rows[:-1] < position, ids[:-1], ids[1:])
            ids[position, np.arange(len(words))] = self._results[best]
        result[words] = ids[0]
        return result

    def _look_up(self, lefts: np.ndarray, rights: np.ndarray) -> np.ndarray:
        """Return the ranks of the merges of pairs, or `NO_MERGE`."""
        pairs = pair_numbers(lefts, rights)
        slots = np.searchsorted(self._pairs, pairs)
        return np.where(self._pairs[slots] == pairs, self._ranks[slots], NO_MERGE)


def pair_numbers(lefts: np.ndarray, rights: np.ndarray) -> np.ndarray:
    return (lefts.astype(np.int64) << 32) + rights
