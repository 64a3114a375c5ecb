"""Prefixes of outputs: their tokens, and the tokens that may replace them.

A prefix may end within a word or with a space, and the output may be tokenized differently from the
prefix alone: " Mai" begins with the space of "3. ". So any token that begins with the whole rest of
the prefix may replace a token, and the search continues freely after it. Such tokens are contiguous
if sorted by their entries.
"""

import bisect
import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from jformer.config import PAD
from jformer.data.vocabulary import Vocabulary
from jformer.decoding.search import Search, Sentence

BYTE = re.compile("<0x[0-9A-F]{2}>")  # an entry for a byte, not for this text
SPACE = "\u2581"  # in SentencePiece's entries


class Prefix(NamedTuple):
    ids: list[int]
    spans: list[tuple[int, int]]  # the half-open range of ranks that may replace each id


class Ranking(NamedTuple):
    """The order of a vocabulary's entries."""

    entries: list[str | None]  # by id
    ordered: list[str]
    ids: list[int]  # of `ordered`
    ranks_V: np.ndarray  # the position of each id in `ordered`, or -1

    def span(self, start: str) -> tuple[int, int]:
        """Return the first rank and the last + 1 of the entries that begin with `start`."""
        stop = bisect.bisect_left(self.ordered, start + "\U0010ffff")
        return bisect.bisect_left(self.ordered, start), stop


@functools.lru_cache(maxsize=8)
def ranking(vocabulary: Vocabulary) -> Ranking:
    entries = vocabulary.entries()
    pairs = sorted((x, n) for n, x in enumerate(entries) if x and not BYTE.fullmatch(x))
    ids = [n for _, n in pairs]
    ranks_V = np.full(len(entries), -1, np.int32)
    ranks_V[ids] = range(len(ids))
    return Ranking(entries, [entry for entry, _ in pairs], ids, ranks_V)


def encode_prefixes(texts: Sequence[str], vocabulary: Vocabulary) -> list[Prefix]:
    encoded = vocabulary.encode(texts)
    return [with_spans(text, ids, vocabulary) for text, ids in zip(texts, encoded, strict=True)]


def with_spans(text: str, ids: list[int], vocabulary: Vocabulary) -> Prefix:
    if not (text and ids):
        return Prefix([], [])
    order, within = ranking(vocabulary), vocabulary.within_words
    pieces = [order.entries[token] or "" for token in ids]
    if within is None:  # all unknown words share one entry
        pieces = vocabulary.normalized(text).split()
    rest, spans = "", []
    if text[-1].isspace() and not vocabulary.decode(ids)[-1:].isspace():  # the space was dropped
        first, stop = order.span(SPACE)
        if first < stop:
            pieces, ids = [*pieces, SPACE], [*ids, PAD]
        else:
            rest = " "
    for piece in reversed(pieces):
        if within and rest.startswith(within):
            rest = piece + rest[len(within) :]
        elif rest and within != "":
            rest = f"{piece} {rest}"  # of another word
        else:
            rest = piece + rest
        spans.append(order.span(rest))
    first, stop = spans[0]
    last = order.ids[first] if first < stop else ids[-1]
    return Prefix([*ids[:-1], last], spans[::-1])


def allowed_by_prefix(
    sentence: Sentence, search: Search, ranks_V: Array, otherwise_WV: Array
) -> Array:
    """Return the tokens allowed at position t: `otherwise_WV` for hypotheses after the prefix."""
    prefix_T, t = sentence.prefix_T, search.t
    first, stop = sentence.spans_T2[t]
    of_prefix_V = jnp.arange(len(ranks_V)) == prefix_T[t]
    of_prefix_V |= (first <= ranks_V) & (ranks_V < stop)
    before_T = jnp.arange(len(prefix_T)) < t
    # A hypothesis with a different token already has the whole prefix.
    follows_W = jnp.all((search.live_tokens_WT == prefix_T[None]) | ~before_T[None], axis=1)
    follows_W &= prefix_T[t] != PAD
    return jnp.where(follows_W[:, None], of_prefix_V[None], otherwise_WV)


def begins_with(text: str, prefix: str, vocabulary: Vocabulary) -> bool:
    """Return whether a text begins with a prefix, as the vocabulary normalizes both."""
    return vocabulary.normalized(text).startswith(vocabulary.normalized(prefix))
