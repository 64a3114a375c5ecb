"""The state of a search over a step function, and the compiled loop that advances many of them.

The search does not depend on the Transformer. For one sentence, it calls

    step(memory, cache, tokens_W, t, beam_indices_WT) -> (cache, logits_WV)

which reads the tokens at position t of W hypotheses, writes position (w, t) of its cache, and
predicts the tokens at t + 1. The search reorders hypotheses but never the cache: for each position
up to t, `beam_indices_WT` has the slot w of the cache with each hypothesis' history.

A hypothesis is the tokens after BOS up to and with EOS, then PAD. Its score is the sum of its
log-probabilities over ((beta + length) / (beta + 1))^alpha, EOS counted in the length. Equation 14
of Wu et al. (2016) has beta = 5, and beta = 0 is length^alpha.

beam.py and sampling.py extend hypotheses by one token. Names without an axis B describe one
sentence.
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
from jformer.model.numerics import top_tokens

# A search is compiled for `beam_size`, takes these keys as arguments, and uses no others.
ARGUMENTS = ("n_best", "length_penalty", "length_penalty_beta", "min_length")
jax.tree_util.register_pytree_node(
    DecodeConfig,
    lambda config: ([getattr(config, name) for name in ARGUMENTS], config.beam_size),
    lambda W, values: DecodeConfig(beam_size=W, **dict(zip(ARGUMENTS, values, strict=True))),
)


@struct.dataclass
class Sentence:
    """The input of a search."""

    memory: Any  # the encoded source, for `step`
    prefix_T: Any  # the first tokens of every hypothesis, then PAD
    limit: Any  # () maximum number of tokens, EOS counted; 0: an empty slot
    seed: Any  # () seed of the samples, in addition to the seed of the config
    spans_T2: Any = None  # ranks of the tokens that may replace each of the prefix, see prefixes.py
    given: Any = None  # the arrays of a constraint for this sentence
    progress: Any = None  # the state of a constraint before the first token


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
        self, sentence: Sentence, search: "Search", logits_WV: Array, count: int
    ) -> tuple[Array, Array]:
        """Return logits and tokens (W, C) of the continuations that a beam may choose from."""
        return top_tokens(logits_WV, count)

    def select(
        self, sentence: Sentence, search: "Search", scores_M: Array, tokens_M: Array, count: int
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


@struct.dataclass
class Search:
    """The state of a search after t tokens. An all-zero state counts as done."""

    busy: Any  # () False when the search is done
    t: Any  # () int32
    cache: Any  # of `step`
    beam_indices_WT: Any  # indices into the cache
    live_tokens_WT: Any  # hypotheses without EOS
    live_sums_W: Any  # their log-probabilities; -inf: no hypothesis
    finished_tokens_WT: Any  # hypotheses with EOS
    finished_sums_W: Any  # their log-probabilities
    finished_scores_W: Any  # the same with the length penalty; -inf: no hypothesis
    progress: Any  # the state of a constraint for each live hypothesis


@struct.dataclass
class Hypotheses:
    """The result of a search, the best first. An empty slot has the score -inf."""

    tokens_WT: Any
    sums_W: Any
    scores_W: Any


def length_penalty(length: Any, config: DecodeConfig) -> Any:
    beta = config.length_penalty_beta
    return ((beta + length) / (beta + 1.0)) ** config.length_penalty


def init_search(sentence: Sentence, cache: Any, W: int) -> Search:
    """Return the state before the first token."""
    no_tokens_WT = jnp.full((W, len(sentence.prefix_T)), PAD, jnp.int32)
    no_scores_W = jnp.full(W, -jnp.inf)
    return Search(
        busy=sentence.limit > 0,
        t=jnp.int32(0),
        cache=cache,
        beam_indices_WT=jnp.zeros_like(no_tokens_WT),
        live_tokens_WT=no_tokens_WT,
        live_sums_W=jnp.zeros(W),
        finished_tokens_WT=no_tokens_WT,
        finished_sums_W=no_scores_W,
        finished_scores_W=no_scores_W,
        progress=jax.tree.map(lambda x: jnp.broadcast_to(x, (W, *x.shape)), sentence.progress),
    )


def advance(
    extend: Callable[[Sentence, Search], Search],
    sentences_B: Sentence,
    searches_B: Search,
    min_waiting: Array,
) -> Search:
    """Extend all searches token by token until at least `min_waiting` of them wait.

    A search waits if it is done, or if it has no room for more tokens. The last position stays
    free, because a waiting search keeps overwriting that position of its cache. Sentences do not
    influence each other.
    """
    last = searches_B.live_tokens_WT.shape[-1] - 1

    def waiting(searches_B):
        return ~searches_B.busy | (searches_B.t >= last)

    def extend_all(searches_B):
        new_B, waits_B = jax.vmap(extend)(sentences_B, searches_B), waiting(searches_B)

        def select(old, new):
            return jnp.where(waits_B.reshape(-1, *[1] * (old.ndim - 1)), old, new)

        # The cache is left out: selecting would copy it.
        old_B = dataclasses.replace(searches_B, cache=None)
        selected_B = jax.tree.map(select, old_B, dataclasses.replace(new_B, cache=None))
        return dataclasses.replace(selected_B, cache=new_B.cache)

    return jax.lax.while_loop(lambda x: jnp.sum(waiting(x)) < min_waiting, extend_all, searches_B)


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
        allowed_WV = allowed_by_prefix(
            sentence.prefix_T,
            sentence.spans_T2,
            search.live_tokens_WT,
            t,
            rules.ranks_V,
            allowed_WV,
        )
    search = dataclasses.replace(search, cache=cache, beam_indices_WT=beam_indices_WT)
    return search, jnp.where(allowed_WV, logits_WV, -jnp.inf), log_total_W


def result_of(search: Search, config: DecodeConfig) -> Hypotheses:
    """Return the finished hypotheses, and live ones in the remaining slots."""
    lengths_W = jnp.maximum(jnp.sum(search.live_tokens_WT != PAD, axis=-1), 1)
    live_scores_W = search.live_sums_W / length_penalty(lengths_W, config)
    finished_W = search.finished_scores_W != -jnp.inf  # keeps NaN, to make it visible
    return Hypotheses(
        jnp.where(finished_W[:, None], search.finished_tokens_WT, search.live_tokens_WT),
        jnp.where(finished_W, search.finished_sums_W, search.live_sums_W),
        jnp.where(finished_W, search.finished_scores_W, live_scores_W),
    )
