"""Beam search: of all continuations by one token, the best W survive. W = 1 is greedy search.

Any of the W best continuations that end in EOS are finished. Of the 2W best, the W best without
EOS stay live. A sentence is done at its limit, or when no live hypothesis can enter the best
`n_best` finished ones. If no hypothesis has finished, the live ones are the result.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from jformer.config import EOS, DecodeConfig
from jformer.decoding.constraints import Task, next_logits
from jformer.decoding.search import Search, Sentence, length_penalty


@struct.dataclass
class Beam:
    """Beam search with `config.decode.beam_size` hypotheses.

    `diversity` is a penalty per sibling rank (Li et al. 2016, arXiv 1611.08562). `early_stopping`
    ends a search once W hypotheses have finished, as fairseq and CTranslate2 do.
    """

    diversity: float = 0.0
    early_stopping: bool = False

    def width(self, config: DecodeConfig) -> int:
        """Return W."""
        return config.beam_size

    def extend(self, task: Task, sentence: Sentence, search: Search) -> Search:
        """Extend the hypotheses by one token. C continuations of each are considered."""
        constraint, W, t = task.rules.constraint, len(search.live_sums_W), search.t
        search, logits_WV, log_total_W = next_logits(task, sentence, search)
        # Two stages give the exact result: the best of all are among the best of each hypothesis.
        logits_WC, tokens_WC = constraint.candidates(sentence, search, logits_WV, 2 * W)
        C = logits_WC.shape[-1]
        # The first token continues one empty hypothesis, not W equal hypotheses.
        copies_W = (t == 0) & (jnp.arange(W) > 0)
        sums_W = jnp.where(copies_W, -jnp.inf, search.live_sums_W)
        sums_WC = sums_W[:, None] + logits_WC - log_total_W[:, None]
        ranked_M = (sums_WC - self.diversity * jnp.arange(C)[None]).reshape(-1)
        sums_M, tokens_M = sums_WC.reshape(-1), tokens_WC.reshape(-1)
        best, progress = constraint.select(sentence, search, ranked_M, tokens_M, 2 * W)
        parents, tokens, sums = best // C, tokens_M[best], sums_M[best]
        histories_T = search.live_tokens_WT[parents].at[:, t].set(tokens)

        # At most one continuation of each hypothesis ends, so W of the 2W stay live.
        ends = tokens == EOS
        live_W = jnp.argsort(ends, stable=True)[:W]
        sums_W, order_W = jax.lax.top_k(jnp.where(ends, -jnp.inf, sums)[live_W], W)
        live_W = live_W[order_W]
        search = dataclasses.replace(
            search,
            t=t + 1,
            beam_indices_WT=search.beam_indices_WT[parents[live_W]],
            live_tokens_WT=histories_T[live_W],
            live_sums_W=sums_W,
            progress=jax.tree.map(lambda x: x[best[live_W]], progress),
        )
        ending_sums_W = jnp.where(ends, sums, -jnp.inf)[:W]
        search = add_finished(search, histories_T[:W], ending_sums_W, task.config)
        return self.stop_when_done(task.config, sentence, search)

    def stop_when_done(self, config: DecodeConfig, sentence: Sentence, search: Search) -> Search:
        """Mark a search as done: at the limit, or if no live hypothesis can still win."""
        sums_W = search.live_sums_W
        # Sums only decrease, and the penalty divides them by at most its value at the limit.
        best_possible = sums_W[0] / length_penalty(sentence.limit, config)
        worst = search.finished_scores_W[config.n_best - 1]
        # A greedy search is done at its first EOS.
        done = worst >= best_possible if len(sums_W) > 1 else worst != -jnp.inf
        done |= self.early_stopping & (search.finished_scores_W[-1] != -jnp.inf)
        busy = ~done & (search.t < sentence.limit)
        given_up = ~busy & (search.finished_scores_W[0] > -jnp.inf)
        live_sums_W = jnp.where(given_up, -jnp.inf, sums_W)
        return dataclasses.replace(search, busy=busy, live_sums_W=live_sums_W)


def add_finished(search: Search, tokens_WT: Array, sums_W: Array, config: DecodeConfig) -> Search:
    """Merge the hypotheses that end now into the finished ones, and keep the best W."""
    scores_W = sums_W / length_penalty(search.t, config)
    scores_2W = jnp.concatenate([search.finished_scores_W, scores_W])
    scores_W, kept_W = jax.lax.top_k(scores_2W, len(sums_W))
    return dataclasses.replace(
        search,
        finished_tokens_WT=jnp.concatenate([search.finished_tokens_WT, tokens_WT])[kept_W],
        finished_sums_W=jnp.concatenate([search.finished_sums_W, sums_W])[kept_W],
        finished_scores_W=scores_W,
    )
