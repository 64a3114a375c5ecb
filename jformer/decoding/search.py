"""The state of a search over a step function, and the compiled loop that advances many of them.

For one sentence, the search calls

    step(memory, cache, tokens_W, t, beam_indices_WT) -> (cache, logits_WV)

which reads the tokens at position t of W hypotheses, writes position (w, t) of its cache, and
predicts the tokens at t + 1. The cache is never reordered: for each position up to t,
`beam_indices_WT` has the slot w of the cache with each hypothesis' history.

A hypothesis is the tokens after BOS, up to EOS, then PAD. beam.py and sampling.py extend it by a
token that constraints.py allows. Names without an axis B describe one sentence.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from jformer.config import PAD, DecodeConfig


@struct.dataclass
class Sentence:
    """The input of a search."""

    memory: Any  # the encoded source, for `step`
    prefix_T: Any  # the first tokens of every hypothesis, then PAD
    limit: Any  # () maximum number of tokens, EOS counted; 0: an empty slot
    seed: Any  # () seed of the samples, in addition to the seed of the config
    spans_T2: Any  # ranks of tokens that may replace each of the prefix: constraints.py
    given: Any = None  # the arrays of a constraint for this sentence
    progress: Any = None  # the state of a constraint before the first token


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
    """Return the divisor of a sum of log-probabilities; EOS counts in the length.

    Equation 14 of Wu et al. (2016) has beta = 5, and beta = 0 is length^alpha.
    """
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
    extend: Callable, sentences_B: Sentence, searches_B: Search, min_waiting: Array
) -> Search:
    """Extend all searches token by token until at least `min_waiting` of them wait.

    A search waits if it is done, or if it has no room for more tokens. The last position stays
    free, because a waiting search keeps overwriting that position of its cache.
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
