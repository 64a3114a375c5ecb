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
from jformer.extras.parsing.trees import MAX_DEPTH
from jformer.extras.parsing.words import UNKNOWN


class WellFormed(Constraint):
    """Allow tokens with which an output can still become a tree with all words of its source.

    No constituent is empty, and each opened constituent can be closed within the length limit. If a
    tree has numbers for words, they count from 1. A number that the vocabulary lacks is its unknown
    token.
    """

    steps_V: Any  # 1 for a token that opens a constituent, -1 for one that closes it, else 0
    closing_V: Any  # the token that closes the constituent that a token opens
    words_V: Any  # whether a token represents a word
    numbers_V: Any  # the number of the word that a token represents; 0 if unnumbered

    def encode(self, source: str, ids: Sequence[int]) -> tuple[Any, None]:
        """Return the number of words; a cut sentence has at most one word per token."""
        return np.int32(min(len(source.split()), len(ids))), None

    def allowed(self, tokens_WT: Array, t: Array, sentence: Sentence) -> Array:
        before_1T = jnp.arange(tokens_WT.shape[1])[None] < t
        steps_WT = jnp.where(before_1T, self.steps_V[tokens_WT], 0)
        depths_WT = jnp.cumsum(steps_WT, axis=1)
        depth_W = depths_WT[:, -1]
        done_W = jnp.sum(self.words_V[tokens_WT] & before_1T, axis=1)
        left_W = sentence.given - done_W
        opened_here_WT = (steps_WT > 0) & (depths_WT == depth_W[:, None])
        innermost_W = tokens_WT.shape[1] - 1 - jnp.argmax(opened_here_WT[:, ::-1], axis=1)
        label_W = jnp.take_along_axis(tokens_WT, innermost_W[:, None], axis=1)[:, 0]

        # One more constituent takes two tokens; open constituents, words and EOS take one each.
        has_room_W = sentence.limit - t >= depth_W + left_W + 3
        has_room_W &= depth_W < MAX_DEPTH
        continues_W = (depth_W > 0) & (left_W > 0)
        opens_W = (continues_W & has_room_W) | (t == 0)
        just_opened_W = (steps_WT[:, t - 1] > 0) & (t > 0)
        closes_W = (depth_W > 0) & ~just_opened_W & ((depth_W > 1) | (left_W <= 0))
        ends_W = (depth_W == 0) & (t > 0)

        tokens_V = jnp.arange(len(self.steps_V))
        numbers_W = jnp.minimum(done_W + 1, jnp.max(self.numbers_V))
        words_WV = self.words_V[None] & (self.numbers_V[None] == numbers_W[:, None])
        allowed_WV = opens_W[:, None] & (self.steps_V > 0)[None]
        allowed_WV |= continues_W[:, None] & words_WV
        allowed_WV |= closes_W[:, None] & (tokens_V[None] == self.closing_V[label_W][:, None])
        return allowed_WV | (ends_W[:, None] & (tokens_V == EOS)[None])


@functools.lru_cache(maxsize=8)
def well_formed(vocabulary: Vocabulary) -> WellFormed:
    """Return the constraint for a vocabulary of linearised trees, a component."""
    ids = {entry: token for token, entry in enumerate(vocabulary.entries()) if entry}
    labels = [entry[1:] for entry in ids if entry[0] == "(" and f"){entry[1:]}" in ids]
    if not labels:
        raise UserError(
            "config.decode.constraint=trees: requires config.data.name=parsing and "
            "config.data.target_tokenizer=words"
        )
    steps_V, closing_V, numbers_V = np.zeros((3, vocabulary.size), np.int32)
    for label in labels:
        opening, closing = ids[f"({label}"], ids[f"){label}"]
        steps_V[opening], steps_V[closing] = 1, -1
        closing_V[opening] = closing
    largest = next(n for n in itertools.count() if str(n + 1) not in ids)
    if largest:
        words = [*map(str, range(1, largest + 1)), UNKNOWN]
        numbers_V[[ids[word] for word in words]] = range(1, largest + 2)
    else:
        words = [entry for entry in ids if entry[0] not in "()" and entry != UNKNOWN]
    words_V = np.isin(np.arange(vocabulary.size), [ids[word] for word in words])
    return WellFormed(steps_V, closing_V, words_V, numbers_V)
