"""The logits of the next tokens, and the rules that forbid some of these tokens.

The rules are a prefix, `min_length`, and a constraint. A constraint is a component, see
docs/constrained_decoding.md.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from jformer.config import BOS, EOS, PAD, DecodeConfig
from jformer.decoding.prefixes import allowed_by_prefix
from jformer.decoding.search import Search, Sentence
from jformer.model.numerics import top_tokens


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
    ranks_V: Any = None  # the tokens' ranks, to which the spans of prefixes refer
    language_token: Any = None  # the first token of every hypothesis


NO_RULES = Rules()


def next_logits(
    step: Callable, config: DecodeConfig, sentence: Sentence, search: Search, rules: Rules
) -> tuple[Search, Array, Array]:
    """Predict the tokens at t + 1.

    Returns the search with position t in its cache, the logits (W, V), -inf for forbidden tokens,
    and the log-sum-exp (W,) of all logits. Forbidden tokens count in that sum, so that a hypothesis
    has the same log-probability under every constraint.
    """
    t, W = search.t, len(search.live_sums_W)
    tokens_W = jnp.where(t == 0, BOS, search.live_tokens_WT[:, t - 1])
    beam_indices_WT = search.beam_indices_WT.at[:, t].set(jnp.arange(W))
    cache, logits_WV = step(sentence.memory, search.cache, tokens_W, t, beam_indices_WT)
    tokens_V = jnp.arange(logits_WV.shape[-1])
    allowed_V = (tokens_V != PAD) & (tokens_V != BOS)
    allowed_V &= (tokens_V != EOS) | (t >= config.min_length)
    log_total_W = jax.nn.logsumexp(logits_WV, axis=-1)
    if rules.language_token is not None:
        # It is given, so its log-probability is 0 in all sums, as in transformers.
        allowed_V &= (t > 0) | (tokens_V == rules.language_token)
        log_total_W = jnp.where(t == 0, logits_WV[:, rules.language_token], log_total_W)
    allowed_WV = jnp.broadcast_to(allowed_V, logits_WV.shape)
    allowed_WV &= rules.constraint.allowed(search.live_tokens_WT, t, sentence)
    if rules.ranks_V is not None:
        allowed_WV = allowed_by_prefix(sentence, search, rules.ranks_V, allowed_WV)
    search = dataclasses.replace(search, cache=cache, beam_indices_WT=beam_indices_WT)
    return search, jnp.where(allowed_WV, logits_WV, -jnp.inf), log_total_W
