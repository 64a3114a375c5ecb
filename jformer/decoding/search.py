"""Search over a step function, many sentences in one compiled loop; knows no Transformer.

`step(memory, cache, tokens_W, t, ancestors_WT) -> (cache, logits_WV)` is about one sentence: it
reads the tokens at position t of W hypotheses, writes place (w, t) of its cache, and predicts the
tokens at t + 1. What is written is never moved: `ancestors_WT` says at which place w the history
of each hypothesis stands at each position up to t.

A hypothesis is the tokens after BOS, its EOS included, PAD after that. Its score is the sum of its
log-probabilities over ((beta + length) / (beta + 1))^alpha, EOS counted in the length. Equation 14
of Wu et al. (2016) has beta = 5, and beta = 0 is length^alpha.

How hypotheses grow by a token is told by beam.py and sampling.py. Letters: B sentences, W
hypotheses, T tokens, V vocabulary; a name without B is about one sentence.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jformer.config import BOS, EOS, PAD, DecodeConfig


@struct.dataclass
class Sentence:
    """What is searched for."""

    memory: Any  # of the source, for `step`
    prefix_T: Any  # tokens that every hypothesis begins with, PAD after them
    limit: Any  # () tokens of a hypothesis at most, EOS counted; 0: no search at all
    seed: Any  # () of the samples, beside that of the config


@struct.dataclass
class Search:
    """Where a search stands after t tokens. A tree of zeros is one that is at rest."""

    busy: Any  # () whether it goes on
    t: Any  # () int32
    cache: Any  # of `step`
    beam_indices_WT: Any  # places in the cache
    live_tokens_WT: Any  # hypotheses without EOS
    live_sums_W: Any  # their log-probabilities; -inf: no hypothesis there, or it is given up
    finished_tokens_WT: Any  # hypotheses with EOS
    finished_sums_W: Any
    finished_scores_W: Any  # -inf: no hypothesis there


@struct.dataclass
class Hypotheses:
    """A place without a hypothesis has the score -inf."""

    tokens_WT: Any
    sums_W: Any
    scores_W: Any


def length_penalty(length, config: DecodeConfig):
    beta = config.length_penalty_beta
    return ((beta + length) / (beta + 1.0)) ** config.length_penalty


def init_search(sentence: Sentence, cache, W: int) -> Search:
    """Before the first token; all of the cache is free."""
    T = sentence.prefix_T.shape[0]
    no_tokens_WT, nothing_W = jnp.full((W, T), PAD, jnp.int32), jnp.full(W, -jnp.inf)
    return Search(
        busy=sentence.limit > 0,
        t=jnp.int32(0),
        cache=cache,
        beam_indices_WT=no_tokens_WT,
        live_tokens_WT=no_tokens_WT,
        live_sums_W=jnp.zeros(W),
        finished_tokens_WT=no_tokens_WT,
        finished_sums_W=nothing_W,
        finished_scores_W=nothing_W,
    )


def advance(grow, sentences_B: Sentence, searches_B: Search, enough) -> Search:
    """Grow each search by one token after the other until `enough` of them rest.

    A search rests when it is done, or when its tokens are full: the last place is kept free, as a
    search at rest writes to its cache again and again. Sentences do not influence each other.
    """
    full = searches_B.live_tokens_WT.shape[-1] - 1

    def resting(searches_B):
        return ~searches_B.busy | (searches_B.t >= full)

    def grow_all(searches_B):
        grown_B, rests_B = jax.vmap(grow)(sentences_B, searches_B), resting(searches_B)

        def keep(old, new):
            return jnp.where(rests_B.reshape(-1, *[1] * (old.ndim - 1)), old, new)

        # Without the cache, which would be copied.
        both = [dataclasses.replace(searches, cache=None) for searches in (searches_B, grown_B)]
        return dataclasses.replace(jax.tree.map(keep, *both), cache=grown_B.cache)

    return jax.lax.while_loop(lambda x: jnp.sum(resting(x)) < enough, grow_all, searches_B)


def next_logits(step, config: DecodeConfig, sentence: Sentence, search: Search):
    """The search with position t in its cache; logits (W, V), -inf for what may not come next, and
    the log (W,) of the sum of all their exponentials.

    What may not come keeps its share of that sum: a hypothesis has the same log-probability
    whatever was asked of it.
    """
    t, W = search.t, len(search.live_sums_W)
    tokens_W = jnp.where(t == 0, BOS, search.live_tokens_WT[:, t - 1])
    beam_indices_WT = search.beam_indices_WT.at[:, t].set(jnp.arange(W))
    cache, logits_WV = step(sentence.memory, search.cache, tokens_W, t, beam_indices_WT)
    forced = sentence.prefix_T[t]
    tokens_V = jnp.arange(logits_WV.shape[-1])
    allowed_V = (tokens_V != PAD) & (tokens_V != BOS)  # these are no words
    allowed_V &= (tokens_V != EOS) | (t >= config.min_length)
    allowed_V = jnp.where(forced == PAD, allowed_V, tokens_V == forced)
    search = dataclasses.replace(search, cache=cache, beam_indices_WT=beam_indices_WT)
    log_total_W = jax.nn.logsumexp(logits_WV, axis=-1)
    return search, jnp.where(allowed_V[None], logits_WV, -jnp.inf), log_total_W


def answer(search: Search, config: DecodeConfig) -> Hypotheses:
    """At each place what ended there, or else what was still open."""
    lengths_W = jnp.maximum(jnp.sum(search.live_tokens_WT != PAD, axis=-1), 1)
    live_scores_W = search.live_sums_W / length_penalty(lengths_W, config)
    ended_W = search.finished_scores_W != -jnp.inf  # one that is not a number must show
    return Hypotheses(
        jnp.where(ended_W[:, None], search.finished_tokens_WT, search.live_tokens_WT),
        jnp.where(ended_W, search.finished_sums_W, search.live_sums_W),
        jnp.where(ended_W, search.finished_scores_W, live_scores_W),
    )
