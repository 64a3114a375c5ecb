"""The state of a search over a step function, and the compiled loop that advances many of them.

The search knows no Transformer. It calls, for one sentence,

    step(memory, cache, tokens_W, t, beam_indices_WT) -> (cache, logits_WV)

which reads the tokens at position t of W hypotheses, writes position (w, t) of its cache, and
predicts the tokens at t + 1. The search reorders hypotheses but never the cache: `beam_indices_WT`
is the place w in the cache of each hypothesis' history at each position up to t.

A hypothesis is the tokens after BOS up to and with EOS, then PAD. Its score is the sum of its
log-probabilities over ((beta + length) / (beta + 1))^alpha, EOS counted in the length. Equation 14
of Wu et al. (2016) has beta = 5, and beta = 0 is length^alpha.

beam.py and sampling.py extend hypotheses by one token. A name without B is about one sentence.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from jformer.config import BOS, EOS, PAD, DecodeConfig
from jformer.extras.terms import no_progress


@struct.dataclass
class Sentence:
    """The input of a search."""

    memory: Any  # the encoded source, for `step`
    prefix_T: Any  # tokens that every hypothesis begins with, then PAD
    limit: Any  # () maximum number of tokens, EOS counted; 0: there is no sentence
    seed: Any  # () seed of the samples, in addition to that of the config
    terms_CKL: Any = None  # that must stand in the output, see terms.py
    words: Any = None  # () number of words of the source, for a constraint
    spans_T2: Any = (
        None  # of the prefix: ranks of the tokens that may take its place, see prefixes.py
    )


@struct.dataclass
class Rules:
    """Rules on which tokens may come next, the same for all sentences of a search.

    A `constraint` has `allowed(tokens_WT, t, sentence)`, which returns the tokens (W, V) that may
    stand at position t of hypotheses whose tokens before t are given.
    """

    edges_V2: Any = None  # of each token: whether it begins and ends within a word; for terms
    constraint: Any = None
    ranks_V: Any = None  # of the tokens, in the order that the spans of prefixes refer to


NO_RULES = Rules()


def no_constraint(vocabulary: Any) -> None:
    """Allow all tokens."""


@struct.dataclass
class Search:
    """The state of a search after t tokens. An all-zero state counts as done."""

    busy: Any  # () False when the search is done
    t: Any  # () int32
    cache: Any  # of `step`
    beam_indices_WT: Any  # places in the cache
    live_tokens_WT: Any  # hypotheses without EOS
    live_sums_W: Any  # their log-probabilities; -inf: no hypothesis, or one that is given up
    finished_tokens_WT: Any  # hypotheses with EOS
    finished_sums_W: Any  # their log-probabilities
    finished_scores_W: Any  # the same with the length penalty; -inf: no hypothesis
    progress: Any = None  # of the live hypotheses in the terms, if there are any


@struct.dataclass
class Hypotheses:
    """The result of a search, the best first. Without a hypothesis the score is -inf."""

    tokens_WT: Any
    sums_W: Any
    scores_W: Any


def length_penalty(length: Any, config: DecodeConfig) -> Any:
    beta = config.length_penalty_beta
    return ((beta + length) / (beta + 1.0)) ** config.length_penalty


def init_search(sentence: Sentence, cache: Any, W: int) -> Search:
    """Return the state before the first token."""
    T = sentence.prefix_T.shape[0]
    no_tokens_WT = jnp.full((W, T), PAD, jnp.int32)
    no_scores_W = jnp.full(W, -jnp.inf)
    terms = sentence.terms_CKL
    return Search(
        busy=sentence.limit > 0,
        t=jnp.int32(0),
        cache=cache,
        beam_indices_WT=no_tokens_WT,
        live_tokens_WT=no_tokens_WT,
        live_sums_W=jnp.zeros(W),
        finished_tokens_WT=no_tokens_WT,
        finished_sums_W=no_scores_W,
        finished_scores_W=no_scores_W,
        progress=None if terms is None else no_progress(terms, W),
    )


def advance(
    extend: Callable[[Sentence, Search], Search],
    sentences_B: Sentence,
    searches_B: Search,
    enough: Array,
) -> Search:
    """Extend all searches token by token until `enough` of them wait.

    A search waits when it is done, or when it has no room for more tokens. The last position stays
    free, because a waiting search writes to its cache again and again. Sentences do not influence
    each other.
    """
    full = searches_B.live_tokens_WT.shape[-1] - 1

    def waiting(searches_B):
        return ~searches_B.busy | (searches_B.t >= full)

    def extend_all(searches_B):
        new_B, waits_B = jax.vmap(extend)(sentences_B, searches_B), waiting(searches_B)

        def select(old, new):
            return jnp.where(waits_B.reshape(-1, *[1] * (old.ndim - 1)), old, new)

        # The cache is left out: selecting would copy it.
        old_B = dataclasses.replace(searches_B, cache=None)
        selected_B = jax.tree.map(select, old_B, dataclasses.replace(new_B, cache=None))
        return dataclasses.replace(selected_B, cache=new_B.cache)

    return jax.lax.while_loop(lambda x: jnp.sum(waiting(x)) < enough, extend_all, searches_B)


def next_logits(
    step: Callable, config: DecodeConfig, sentence: Sentence, search: Search, rules: Rules
) -> tuple[Search, Array, Array]:
    """Predict the tokens at t + 1.

    Returns the search with position t in its cache, logits (W, V), which are -inf for tokens that
    are not allowed, and the logarithm (W,) of the sum of the exponentials of all logits. Forbidden
    tokens count in that sum: a hypothesis has the same log-probability under every constraint.
    """
    t, W = search.t, len(search.live_sums_W)
    tokens_W = jnp.where(t == 0, BOS, search.live_tokens_WT[:, t - 1])
    beam_indices_WT = search.beam_indices_WT.at[:, t].set(jnp.arange(W))
    cache, logits_WV = step(sentence.memory, search.cache, tokens_W, t, beam_indices_WT)
    forced = sentence.prefix_T[t]
    tokens_V = jnp.arange(logits_WV.shape[-1])
    allowed_V = (tokens_V != PAD) & (tokens_V != BOS)
    allowed_V &= (tokens_V != EOS) | (t >= config.min_length)
    allowed_WV = jnp.broadcast_to(allowed_V, logits_WV.shape)
    if rules.constraint is not None:
        allowed_WV &= rules.constraint.allowed(search.live_tokens_WT, t, sentence)
    of_prefix_V, is_given_W = tokens_V == forced, jnp.full(W, forced != PAD)
    if rules.ranks_V is not None:
        first, stop = sentence.spans_T2[t]
        of_prefix_V |= (first <= rules.ranks_V) & (rules.ranks_V < stop)
        # A hypothesis with another token has the whole prefix already.
        before_1T = (jnp.arange(len(sentence.prefix_T)) < t)[None]
        same_WT = search.live_tokens_WT == sentence.prefix_T[None]
        is_given_W &= jnp.all(same_WT | ~before_1T, axis=1)
    allowed_WV = jnp.where(is_given_W[:, None], of_prefix_V[None], allowed_WV)
    search = dataclasses.replace(search, cache=cache, beam_indices_WT=beam_indices_WT)
    log_total_W = jax.nn.logsumexp(logits_WV, axis=-1)
    return search, jnp.where(allowed_WV, logits_WV, -jnp.inf), log_total_W


def result_of(search: Search, config: DecodeConfig) -> Hypotheses:
    """Return the finished hypotheses; where there are fewer than W, live ones take the rest.

    Of these, the ones with more terms come first.
    """
    if search.progress is not None:
        order_W = jnp.argsort(-jnp.sum(search.progress.has_WC, axis=-1), stable=True)
        search = dataclasses.replace(
            search,
            live_tokens_WT=search.live_tokens_WT[order_W],
            live_sums_W=search.live_sums_W[order_W],
        )
    lengths_W = jnp.maximum(jnp.sum(search.live_tokens_WT != PAD, axis=-1), 1)
    live_scores_W = search.live_sums_W / length_penalty(lengths_W, config)
    finished_W = search.finished_scores_W != -jnp.inf  # NaN is kept, so that it shows
    return Hypotheses(
        jnp.where(finished_W[:, None], search.finished_tokens_WT, search.live_tokens_WT),
        jnp.where(finished_W, search.finished_sums_W, search.live_sums_W),
        jnp.where(finished_W, search.finished_scores_W, live_scores_W),
    )
