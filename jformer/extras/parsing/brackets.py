"""A constraint on a search: outputs are linearised trees, see trees.py.

The previous tokens determine which tokens may come next. They are balanced except for open
brackets, so the innermost open bracket is the last opening bracket at the current depth.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jformer.config import EOS
from jformer.data.vocabulary import Vocabulary
from jformer.decoding.constraints import Constraint
from jformer.decoding.search import Sentence
from jformer.errors import UserError
from jformer.extras.parsing.trees import DEEPEST_OUTPUT
from jformer.extras.parsing.words import UNKNOWN


class WellFormed(Constraint):
    """Allow tokens with which an output can still become a tree with all words of its source.

    No constituent is empty, and each opened constituent can be closed within the length limit. If a
    tree has numbers for words, they count from 1. A number that the vocabulary lacks is its unknown
    token.
    """

    opens_V: Any  # whether a token opens a constituent
    closes_V: Any  # whether a token closes a constituent
    words_V: Any  # whether a token represents a word
    closing_V: Any  # the token that closes the constituent that a token opens
    numbers_V: Any  # the number of the word that a token represents; 0 if unnumbered

    def encode(self, source: str, ids: Sequence[int]) -> tuple[Any, None]:
        """Return the number of words; a cut sentence has at most one word per token."""
        return np.int32(min(len(source.split()), len(ids))), None

    def allowed(self, tokens_WT: Array, t: Array, sentence: Sentence) -> Array:
        before_1T = jnp.arange(tokens_WT.shape[1])[None] < t
        opens_WT = self.opens_V[tokens_WT] & before_1T
        closes_WT = self.closes_V[tokens_WT] & before_1T
        depths_WT = jnp.cumsum(opens_WT.astype(jnp.int32) - closes_WT, axis=1)
        depth_W = depths_WT[:, -1]
        done_W = jnp.sum(self.words_V[tokens_WT] & before_1T, axis=1)
        left_W = sentence.given - done_W
        just_opened_W = opens_WT[:, t - 1] & (t > 0)
        at_depth_WT = opens_WT & (depths_WT == depth_W[:, None])
        innermost_W = tokens_WT.shape[1] - 1 - jnp.argmax(at_depth_WT[:, ::-1], axis=1)
        label_W = jnp.take_along_axis(tokens_WT, innermost_W[:, None], axis=1)[:, 0]

        # One more constituent takes two tokens; open constituents, words and EOS take one each.
        has_room_W = sentence.limit - t >= depth_W + left_W + 3
        has_room_W &= depth_W < DEEPEST_OUTPUT
        opens_W = jnp.where(t == 0, True, (depth_W > 0) & (left_W > 0) & has_room_W)
        continues_W = (depth_W > 0) & (left_W > 0)
        closes_W = (depth_W > 0) & ~just_opened_W & ((depth_W > 1) | (left_W <= 0))
        ends_W = (depth_W == 0) & (t > 0)

        tokens_V = jnp.arange(len(self.opens_V))
        allowed_WV = opens_W[:, None] & self.opens_V[None]
        numbers_W = jnp.minimum(done_W + 1, jnp.max(self.numbers_V))
        is_next_WV = self.numbers_V[None] == numbers_W[:, None]
        words_WV = self.words_V[None] & (is_next_WV | (self.numbers_V == 0)[None])
        allowed_WV |= continues_W[:, None] & words_WV
        allowed_WV |= closes_W[:, None] & (tokens_V[None] == self.closing_V[label_W][:, None])
        return allowed_WV | (ends_W[:, None] & (tokens_V == EOS)[None])


@functools.lru_cache(maxsize=8)
def well_formed(vocabulary: Vocabulary) -> WellFormed:
    """Return the constraint for a vocabulary of linearised trees, a component."""
    entries = vocabulary.entries()
    ids = {entry: token for token, entry in enumerate(entries) if entry}
    opens = {token: entry[1:] for entry, token in ids.items() if entry.startswith("(")}
    closes = {entry[1:]: token for entry, token in ids.items() if entry.startswith(")")}
    if not opens.keys() or not closes:
        raise UserError(
            "config.decode.constraint=trees: the vocabulary has no brackets; it requires "
            "config.data.name=parsing and config.data.target_tokenizer=words"
        )
    V = len(entries)
    opens_V, closes_V, words_V = np.zeros((3, V), bool)
    closing_V = np.zeros(V, np.int32)
    for token, label in opens.items():
        if label in closes:
            opens_V[token], closing_V[token] = True, closes[label]
    closes_V[[*closes.values()]] = True
    words = {entry: token for entry, token in ids.items() if entry[0] not in "()"}
    numbers_V = np.zeros(V, np.int32)
    largest = next(n for n in itertools.count() if str(n + 1) not in words)
    if largest:
        words = {str(n): words[str(n)] for n in range(1, largest + 1)}
        numbers_V[[*words.values()]] = range(1, largest + 1)
        words[UNKNOWN] = ids[UNKNOWN]
        numbers_V[ids[UNKNOWN]] = largest + 1
    else:
        words.pop(UNKNOWN, None)
    words_V[[*words.values()]] = True
    return WellFormed(opens_V, closes_V, words_V, closing_V, numbers_V)
