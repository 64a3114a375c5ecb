"""Beam search over a step function; knows no Transformer. A beam of one is greedy search.

`step(cache, tokens_BW, t) -> (cache, logits_BWV)` reads the tokens at position t of W hypotheses a
sentence and predicts those at t + 1. The cache is any tree whose leaves begin with the axes B, W;
what hypotheses share (the encoder's output) the step closes over, so it is never copied for each.

A hypothesis is the tokens after BOS, its EOS included, PAD after that. Its score is the sum of its
log-probabilities over ((5 + length) / 6)^alpha, EOS counted in the length (Wu et al. 2016, Eq. 14).
The search is one compiled loop that ends when every sentence is done.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jformer.config import BOS, EOS, PAD


@struct.dataclass
class Hypotheses:
    """Best first; where a search finished fewer than W, the rest have the score -inf."""

    tokens_BWT: jax.Array
    scores_BW: jax.Array


def length_penalty(length, alpha):
    return ((5.0 + length) / 6.0) ** alpha


@struct.dataclass
class Beam:
    """The state of a beam search after t tokens."""

    t: Any  # () int32
    cache: Any  # of the open hypotheses: leaves (B, W, ...)
    open_tokens_BWT: Any  # hypotheses without EOS
    open_sums_BW: Any  # their log-probabilities; -inf: no hypothesis there
    ended_tokens_BWT: Any  # the best hypotheses with EOS so far, best first
    ended_scores_BW: Any  # their scores; -inf: no hypothesis there
    done_B: Any  # sentences whose answer is settled


def beam_search(step, cache, limits_B, max_length: int, beam_size: int, alpha: float) -> Hypotheses:
    """The best `beam_size` hypotheses found, of at most `limits_B` tokens (<= max_length) each.

    At each position the W best continuations count: those with EOS end there, and the W best
    without EOS stay open. A sentence is done when W hypotheses have ended, when no open one can
    still beat the best that ended, or at its limit; if none has ended by then, the open ones are
    the answer. With W = 1 this is greedy search.
    """
    B, W = limits_B.shape[0], beam_size
    no_tokens_BWT = jnp.full((B, W, max_length), PAD, jnp.int32)
    nothing_BW = jnp.full((B, W), -jnp.inf)
    start = Beam(
        t=jnp.int32(0),
        cache=cache,
        open_tokens_BWT=no_tokens_BWT,
        open_sums_BW=nothing_BW.at[:, 0].set(0.0),  # one empty hypothesis, not W equal ones
        ended_tokens_BWT=no_tokens_BWT,
        ended_scores_BW=nothing_BW,
        done_B=limits_B <= 0,
    )

    def unfinished(beam):
        return (beam.t < max_length) & ~jnp.all(beam.done_B)

    def grow(beam):
        grown = keep_ended(extend(step, beam), alpha)
        done_B = grown.done_B | is_settled(grown, limits_B, alpha)
        return dataclasses.replace(freeze_done(beam, grown), done_B=done_B)

    beam = jax.lax.while_loop(unfinished, grow, start)
    return answer(beam, alpha)


def extend(step, beam: Beam) -> tuple[Beam, Any, Any]:
    """One token more: the beam with its W best open continuations, and those that end now.

    Of the 2W best continuations at most W end, one for each hypothesis, so W stay open.
    """
    B, W = beam.open_sums_BW.shape
    cache, logits_BWV = step(beam.cache, last_tokens(beam.open_tokens_BWT, beam.t), beam.t)
    V = logits_BWV.shape[-1]
    sums_BWV = beam.open_sums_BW[..., None] + jax.nn.log_softmax(logits_BWV.astype(jnp.float32))
    # Exact in two stages: the best of all are among the best of each hypothesis.
    each = min(2 * W, V)
    sums_BWC, tokens_BWC = jax.lax.top_k(sums_BWV, each)
    sums_BC, order_BC = jax.lax.top_k(sums_BWC.reshape(B, W * each), 2 * W)
    parents_BC = order_BC // each
    tokens_BC = jnp.take_along_axis(tokens_BWC.reshape(B, W * each), order_BC, axis=1)
    histories_BCT = (
        take_hypotheses(beam.open_tokens_BWT, parents_BC).at[:, :, beam.t].set(tokens_BC)
    )

    ends_BC = tokens_BC == EOS
    open_sums_BW, chosen_BW = jax.lax.top_k(jnp.where(ends_BC, -jnp.inf, sums_BC), W)
    parents_BW = jnp.take_along_axis(parents_BC, chosen_BW, axis=1)
    opened = dataclasses.replace(
        beam,
        t=beam.t + 1,
        cache=jax.tree.map(lambda leaf: take_hypotheses(leaf, parents_BW), cache),
        open_tokens_BWT=take_hypotheses(histories_BCT, chosen_BW),
        open_sums_BW=open_sums_BW,
    )
    ending_sums_BW = jnp.where(ends_BC, sums_BC, -jnp.inf)[:, :W]
    return opened, histories_BCT[:, :W], ending_sums_BW


def keep_ended(extended, alpha) -> Beam:
    """The W best of the hypotheses that ended before and those that end now."""
    beam, ending_tokens_BWT, ending_sums_BW = extended
    scores_BX = jnp.concatenate(
        [beam.ended_scores_BW, ending_sums_BW / length_penalty(beam.t, alpha)], axis=1
    )
    tokens_BXT = jnp.concatenate([beam.ended_tokens_BWT, ending_tokens_BWT], axis=1)
    scores_BW, chosen_BW = jax.lax.top_k(scores_BX, beam.ended_scores_BW.shape[1])
    return dataclasses.replace(
        beam, ended_tokens_BWT=take_hypotheses(tokens_BXT, chosen_BW), ended_scores_BW=scores_BW
    )


def is_settled(beam: Beam, limits_B, alpha):
    """Whether a sentence's search can stop here."""
    # Sums only fall and the penalty divides them by at most its value at the limit.
    best_possible_B = jnp.max(beam.open_sums_BW, axis=1) / length_penalty(limits_B, alpha)
    all_ended_B = jnp.all(beam.ended_scores_BW > -jnp.inf, axis=1)
    return all_ended_B | (beam.ended_scores_BW[:, 0] >= best_possible_B) | (beam.t >= limits_B)


def freeze_done(before: Beam, after: Beam) -> Beam:
    """What a settled sentence found stays as it is; its cache is not read again."""

    def keep(old, new):
        done = before.done_B.reshape(-1, *[1] * (old.ndim - 1))
        return jnp.where(done, old, new)

    names = ("open_tokens_BWT", "open_sums_BW", "ended_tokens_BWT", "ended_scores_BW")
    return dataclasses.replace(
        after, **{n: keep(getattr(before, n), getattr(after, n)) for n in names}
    )


def answer(beam: Beam, alpha) -> Hypotheses:
    """What ended, or the open hypotheses where nothing did."""
    lengths_BW = jnp.sum(beam.open_tokens_BWT != PAD, axis=-1)
    open_scores_BW = beam.open_sums_BW / length_penalty(lengths_BW, alpha)
    any_ended_B = beam.ended_scores_BW[:, 0] > -jnp.inf
    return Hypotheses(
        jnp.where(any_ended_B[:, None, None], beam.ended_tokens_BWT, beam.open_tokens_BWT),
        jnp.where(any_ended_B[:, None], beam.ended_scores_BW, open_scores_BW),
    )


def last_tokens(tokens_BWT, t):
    """The token before position t: BOS at the start."""
    return jnp.where(t == 0, BOS, tokens_BWT[:, :, t - 1])


def take_hypotheses(x_BW, chosen_BX):
    """`[x_B[chosen_X] for each sentence]`, whatever axes follow."""
    return jax.vmap(lambda x_W, chosen_X: x_W[chosen_X])(x_BW, chosen_BX)
