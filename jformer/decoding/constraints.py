"""The logits of the next tokens, and the rules that forbid some of these tokens.

The rules are `min_length`, a prefix, and a constraint. A constraint is a component, see
docs/constrained_decoding.md.

A prefix may end within a word or with a space, and the output may be tokenized differently: " Mai"
begins with the space of "3. ". So each token of the prefix may be replaced by a token that begins
with the whole rest of the prefix, and the search is free after that ("token healing"). Such tokens
are contiguous if sorted by their entries.
"""

import bisect
import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from jformer.config import BOS, EOS, PAD, DecodeConfig
from jformer.data.vocabulary import Vocabulary
from jformer.decoding.search import Search, Sentence
from jformer.model.numerics import top_tokens

BYTE = re.compile("<0x[0-9A-F]{2}>")  # an entry for a byte, not for this text
SPACE = "\u2581"  # in SentencePiece's entries
LAST = "\U0010ffff"  # the last character of Unicode


class Constraint(struct.PyTreeNode):
    """A constraint on outputs, and the component `none`, which allows every output.

    A component is a function of the target vocabulary that returns an instance. Its fields are
    arrays. Only beam search calls `candidates` and `select`; a constraint that overrides them sets
    `needs_beam`.
    """

    needs_beam: ClassVar[bool] = False

    def encode(self, source: str, ids: Sequence[int]) -> tuple[Any, Any]:
        """Return the arrays `given` and `progress` of a source, with the same shapes for all."""
        return None, None

    def allowed(self, tokens_WT: Array, t: Array, sentence: Sentence) -> Any:
        """Return the tokens (W, V) allowed at position t of hypotheses with t tokens."""
        return True

    def candidates(
        self, sentence: Sentence, search: Search, logits_WV: Array, count: int
    ) -> tuple[Array, Array]:
        """Return logits and tokens (W, C) of the continuations that a beam may choose from."""
        return top_tokens(logits_WV, count)

    def select(
        self, sentence: Sentence, search: Search, scores_M: Array, tokens_M: Array, count: int
    ) -> tuple[Array, Any]:
        """Return the indices of `count` of the M candidates, and the progress after each of M."""
        return jax.lax.top_k(scores_M, count)[1], None


def no_constraint(vocabulary: Any) -> Constraint:
    """Allow all tokens."""
    return Constraint()


@struct.dataclass
class Rules:
    """Rules on which tokens may come next, the same for all sentences of a search."""

    constraint: Any = Constraint()
    ranks_V: Any = -1  # see Ranking; -1: in no span
    language_token: Any = None  # the first token of every hypothesis


NO_RULES = Rules()


class Task(NamedTuple):
    """The step function, the config and the rules, which all sentences of a search share."""

    step: Callable  # see search.py
    config: DecodeConfig
    rules: Rules = NO_RULES


class Ranking(NamedTuple):
    """The order of a vocabulary's entries."""

    entries: list[str | None]  # by id
    ordered: list[str]
    ranks_V: np.ndarray  # the position of each id in `ordered`, or -1


@functools.lru_cache(maxsize=8)
def ranking(vocabulary: Vocabulary) -> Ranking:
    entries = vocabulary.entries()
    pairs = sorted((x, n) for n, x in enumerate(entries) if x and not BYTE.fullmatch(x))
    ranks_V = np.full(len(entries), -1, np.int32)
    ranks_V[[n for _, n in pairs]] = range(len(pairs))
    return Ranking(entries, [entry for entry, _ in pairs], ranks_V)


def encode_prefix(text: str, vocabulary: Vocabulary) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the ids of a prefix, and the half-open span of ranks that may replace each id."""
    (ids,) = vocabulary.encode([text])
    if not text or not ids:
        return [], []
    entries, ordered, _ = ranking(vocabulary)
    drops_space = text[-1].isspace() and not vocabulary.decode(ids)[-1:].isspace()
    if drops_space and SPACE in entries:
        ids = [*ids, entries.index(SPACE)]
    rest, spans = "", []
    for token in reversed(ids):
        rest = f"{entries[token]}{rest}"
        first = bisect.bisect_left(ordered, rest)
        spans.append((first, bisect.bisect_left(ordered, rest + LAST)))
    return ids, spans[::-1]


def next_logits(task: Task, sentence: Sentence, search: Search) -> tuple[Search, Array, Array]:
    """Predict the tokens at t + 1.

    Returns the search with position t in its cache, the logits (W, V), -inf for forbidden tokens,
    and the log-sum-exp (W,) of all logits. Forbidden tokens count in that sum, so that a hypothesis
    has the same log-probability under every constraint.
    """
    rules, t, W = task.rules, search.t, len(search.live_sums_W)
    tokens_W = jnp.where(t == 0, BOS, search.live_tokens_WT[:, t - 1])
    beam_indices_WT = search.beam_indices_WT.at[:, t].set(jnp.arange(W))
    cache, logits_WV = task.step(sentence.memory, search.cache, tokens_W, t, beam_indices_WT)
    tokens_V = jnp.arange(logits_WV.shape[-1])
    allowed_V = (tokens_V != PAD) & (tokens_V != BOS)
    allowed_V &= (tokens_V != EOS) | (t >= task.config.min_length)
    log_total_W = jax.nn.logsumexp(logits_WV, axis=-1)
    if rules.language_token is not None:
        # It is given, so its log-probability is 0 in all sums, as in transformers.
        allowed_V &= (t > 0) | (tokens_V == rules.language_token)
        log_total_W = jnp.where(t == 0, logits_WV[:, rules.language_token], log_total_W)
    allowed_WV = jnp.broadcast_to(allowed_V, logits_WV.shape)
    allowed_WV &= rules.constraint.allowed(search.live_tokens_WT, t, sentence)
    forced, (first, stop) = sentence.prefix_T[t], sentence.spans_T2[t]
    of_prefix_V = tokens_V == forced
    of_prefix_V |= (first <= rules.ranks_V) & (rules.ranks_V < stop)
    # A hypothesis with another token already has the whole prefix.
    before_T = jnp.arange(len(sentence.prefix_T)) < t
    prefix_before_T = jnp.where(before_T, sentence.prefix_T, PAD)
    follows_W = jnp.all(search.live_tokens_WT == prefix_before_T[None], axis=1) & (forced != PAD)
    allowed_WV = jnp.where(follows_W[:, None], of_prefix_V[None], allowed_WV)
    search = dataclasses.replace(search, cache=cache, beam_indices_WT=beam_indices_WT)
    return search, jnp.where(allowed_WV, logits_WV, -jnp.inf), log_total_W
