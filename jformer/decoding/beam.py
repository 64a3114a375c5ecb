"""Beam search: of all continuations by one token the best W live on. W = 1 is greedy search.

At each position the 2W best continuations count. Of the W best, those with EOS are finished; the W
best without EOS stay live. A sentence is done when no live hypothesis can enter the best `n_best`
finished ones, with `early_stopping` when W are finished, or at its limit. If none has finished by
then, the live ones are the result.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from jformer.config import EOS, DecodeConfig
from jformer.decoding.search import (
    NO_RULES,
    Rules,
    Search,
    Sentence,
    length_penalty,
    next_logits,
)
from jformer.errors import UserError
from jformer.extras.lexicon import kept_pattern
from jformer.extras.terms import Progress, deal, follow, next_tokens, tokens_met

BLOCK = 8  # tokens of which `top_tokens` looks at the largest first


@struct.dataclass
class Beam:
    """Beam search with `config.decode.beam_size` hypotheses.

    `diversity` is a penalty per sibling rank (Li et al. 2016, arXiv 1611.08562). `early_stopping`
    ends the search of a sentence once beam_size hypotheses have ended, as fairseq and CTranslate2
    do. Otherwise it ends once no other hypothesis can be better. `keep` names strings of a source
    that its output must contain: a regular expression, or some of urls, tags and numbers.
    """

    diversity: float = 0.0
    early_stopping: bool = False
    keep: str = struct.field(pytree_node=False, default="")

    def check(self) -> None:
        """Raise `UserError` for an option that cannot work."""
        if not self.diversity >= 0:
            raise UserError(f"config.decode.search: diversity={self.diversity} must be >= 0")
        kept_pattern(self.keep)

    def width(self, config: DecodeConfig) -> int:
        """Return W, the number of hypotheses of a sentence."""
        return config.beam_size

    def extend(
        self,
        step: Callable,
        config: DecodeConfig,
        sentence: Sentence,
        search: Search,
        rules: Rules = NO_RULES,
    ) -> Search:
        """Extend the hypotheses by one token. Axis C is that of the 2W best continuations."""
        W, t = config.beam_size, search.t
        # The first token continues one empty hypothesis, not W equal ones.
        copies_W = (t == 0) & (jnp.arange(W) > 0)
        sums_W = jnp.where(copies_W, -jnp.inf, search.live_sums_W)
        search, logits_WV, log_total_W = next_logits(step, config, sentence, search, rules)
        if search.progress is not None:
            whole_W = jnp.all(search.progress.has_WC, axis=-1)
            logits_WV = logits_WV.at[:, EOS].set(jnp.where(whole_W, logits_WV[:, EOS], -jnp.inf))
        # Two stages give the exact result: the best of all are among the best of each hypothesis.
        each = min(2 * W, logits_WV.shape[-1])
        logits_WC, tokens_WC = top_tokens(logits_WV, each)
        if search.progress is not None:
            logits_WC, tokens_WC = with_terms(
                sentence, search, logits_WV, logits_WC, tokens_WC, rules.edges_V2
            )
            each = tokens_WC.shape[-1]
        sums_WC = sums_W[:, None] + logits_WC - log_total_W[:, None]
        # Li et al. (2016): a penalty per rank among the continuations of one hypothesis.
        ranked_WC = sums_WC - self.diversity * jnp.arange(each)[None]
        progress_M = None
        if search.progress is None:
            _, order_C = jax.lax.top_k(ranked_WC.reshape(-1), 2 * W)
        else:
            progress_M = progress_after(sentence, search, tokens_WC, rules.edges_V2, t)
            order_C = deal(ranked_WC.reshape(-1), tokens_met(sentence.terms_CKL, progress_M), 2 * W)
        parents_C = order_C // each
        sums_C, tokens_C = sums_WC.reshape(-1)[order_C], tokens_WC.reshape(-1)[order_C]
        histories_CT = search.live_tokens_WT[parents_C].at[:, t].set(tokens_C)

        # At most W of them end, one per hypothesis, so W stay live. They are sorted again by sums.
        ends_C = tokens_C == EOS
        chosen_W = jnp.argsort(ends_C, stable=True)[:W]
        sums_W, order_W = jax.lax.top_k(jnp.where(ends_C, -jnp.inf, sums_C)[chosen_W], W)
        chosen_W = chosen_W[order_W]
        search = dataclasses.replace(
            search,
            t=t + 1,
            beam_indices_WT=search.beam_indices_WT[parents_C[chosen_W]],
            live_tokens_WT=histories_CT[chosen_W],
            live_sums_W=sums_W,
            progress=jax.tree.map(lambda x: x[order_C[chosen_W]], progress_M),
        )
        ending_sums_W = jnp.where(ends_C, sums_C, -jnp.inf)[:W]
        search = add_finished(search, histories_CT[:W], ending_sums_W, config)
        return settle(config, sentence, search, self.early_stopping)


def settle(config: DecodeConfig, sentence: Sentence, search: Search, early_stopping: Any) -> Search:
    """Mark a search that is done: no live hypothesis can enter the finished ones, or the limit."""
    sums_W = search.live_sums_W
    # Sums only fall, and the length penalty divides them by at most its value at the limit.
    best_possible = sums_W[0] / length_penalty(sentence.limit, config)
    worst = search.finished_scores_W[config.n_best - 1]
    # A greedy search is done with its first EOS.
    settled = worst >= best_possible if len(sums_W) > 1 else worst != -jnp.inf
    settled |= early_stopping & (search.finished_scores_W[-1] != -jnp.inf)
    busy = ~settled & (search.t < sentence.limit)
    given_up = ~busy & (search.finished_scores_W[0] > -jnp.inf)
    return dataclasses.replace(search, busy=busy, live_sums_W=jnp.where(given_up, -jnp.inf, sums_W))


def with_terms(
    sentence: Sentence,
    search: Search,
    logits_WV: Array,
    logits_WC: Array,
    tokens_WC: Array,
    edges_V2: Array,
) -> tuple[Array, Array]:
    """Add to the likeliest tokens those that bring a term on, and one that begins a word.

    Without that all of them might go on with the word that ends a term. Each token stands once.
    """
    next_WC = next_tokens(sentence.terms_CKL, search.progress, search.t)
    begins_W = jnp.argmax(jnp.where(edges_V2[None, :, 0], -jnp.inf, logits_WV), axis=-1)
    more_WC = jnp.concatenate([next_WC, begins_W[:, None]], axis=1)
    more_logits_WC = jnp.take_along_axis(logits_WV, more_WC, axis=1)
    tokens_WC = jnp.concatenate([tokens_WC, more_WC], axis=1)
    logits_WC = jnp.concatenate([logits_WC, more_logits_WC], axis=1)
    C = tokens_WC.shape[-1]
    same_WCC = tokens_WC[:, :, None] == tokens_WC[:, None, :]
    again_WC = jnp.any(same_WCC & jnp.tri(C, k=-1, dtype=bool)[None], axis=-1)
    return jnp.where(again_WC, -jnp.inf, logits_WC), tokens_WC


def progress_after(
    sentence: Sentence, search: Search, tokens_WC: Array, edges_V2: Array, t: Array
) -> Progress:
    """Return the progress of all continuations (M,), with C for each hypothesis."""
    C, tokens_M = tokens_WC.shape[-1], tokens_WC.reshape(-1)
    before_M = jax.tree.map(lambda x: jnp.repeat(x, C, axis=0), search.progress)
    last_M = jnp.repeat(search.live_tokens_WT[:, t - 1], C)
    # Before the first token no term has ended, whatever stands at -1.
    goes_on_M = edges_V2[last_M, 1] & edges_V2[tokens_M, 0]
    return follow(sentence.terms_CKL, before_M, tokens_M, goes_on_M, t)


def top_tokens(logits_WV: Array, count: int) -> tuple[Array, Array]:
    """Return the `count` largest logits of each row and their tokens, the largest first.

    The tokens are dealt into blocks of `BLOCK`, and only the blocks with the largest maxima are
    sorted: on a CPU 2.6 to 4 times as fast as sorting all. Of equal logits it may take others.
    """
    W, V = logits_WV.shape
    blocks = -(-V // BLOCK)
    if blocks < 4 * count:
        return jax.lax.top_k(logits_WV, count)
    # Token v is in block v mod `blocks`, so that the maxima are those of whole rows.
    filled = jnp.pad(logits_WV, ((0, 0), (0, blocks * BLOCK - V)), constant_values=-jnp.inf)
    by_block = filled.reshape(W, BLOCK, blocks)
    _, chosen = jax.lax.top_k(jnp.max(by_block, axis=1), count)
    chosen = jnp.sort(chosen, axis=-1)  # the smallest of equal tokens first, as in `top_k`
    candidates = jnp.take_along_axis(by_block, chosen[:, None], axis=2)
    logits_WC, places_WC = jax.lax.top_k(candidates.reshape(W, BLOCK * count), count)
    blocks_WC = jnp.take_along_axis(chosen, places_WC % count, axis=1)
    return logits_WC, places_WC // count * blocks + blocks_WC


def add_finished(search: Search, tokens_WT: Array, sums_W: Array, config: DecodeConfig) -> Search:
    """Add the hypotheses that end now to the finished ones, and keep the best W of both."""
    scores_W = sums_W / length_penalty(search.t, config)
    scores_2W = jnp.concatenate([search.finished_scores_W, scores_W])
    scores_W, chosen_W = jax.lax.top_k(scores_2W, len(sums_W))
    return dataclasses.replace(
        search,
        finished_tokens_WT=jnp.concatenate([search.finished_tokens_WT, tokens_WT])[chosen_W],
        finished_sums_W=jnp.concatenate([search.finished_sums_W, sums_W])[chosen_W],
        finished_scores_W=scores_W,
    )
