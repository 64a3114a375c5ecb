"""Sampling: each of `n_best` hypotheses draws its next token from the model's distribution.

A draw depends on the sentence, the seed and the hypothesis' number, and not on the batch.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from jformer.config import EOS, PAD, DecodeConfig
from jformer.decoding.constraints import Task, next_logits
from jformer.decoding.search import Search, Sentence, length_penalty
from jformer.errors import UserError


@struct.dataclass
class Sampling:
    """Sampling of `config.decode.n_best` outputs, and its filters.

    `temperature` divides the logits. `top_k` keeps the k likeliest tokens (0: all). Then `top_p`
    keeps the smallest set of tokens with at least this probability.
    """

    temperature: float = 1.0
    top_k: int = struct.field(pytree_node=False, default=0)
    top_p: float = struct.field(pytree_node=False, default=1.0)
    seed: int = 0

    def check(self) -> None:
        """Raise `UserError` for an option with which no token can be drawn."""
        if self.temperature <= 0 or self.top_p <= 0:
            raise UserError("config.decode.search: temperature and top_p must be > 0")

    def width(self, config: DecodeConfig) -> int:
        """Return W."""
        return config.n_best

    def extend(self, task: Task, sentence: Sentence, search: Search) -> Search:
        """Extend each sample that is not finished by one token."""
        W, t = len(search.live_sums_W), search.t
        search, logits_WV, log_total_W = next_logits(task, sentence, search)
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(self.seed), sentence.seed), t)
        keys_W = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(W))
        tokens_W = jax.vmap(jax.random.categorical)(keys_W, filter_logits(logits_WV, self))
        drawn_W = jnp.take_along_axis(logits_WV, tokens_W[:, None], axis=1)[:, 0] - log_total_W
        sums_W, live_W = search.live_sums_W + drawn_W, search.live_sums_W != -jnp.inf
        tokens_WT = search.live_tokens_WT.at[:, t].set(jnp.where(live_W, tokens_W, PAD))

        ends_W = live_W & (tokens_W == EOS)
        search = dataclasses.replace(
            search,
            t=t + 1,
            live_tokens_WT=tokens_WT,
            live_sums_W=jnp.where(ends_W, -jnp.inf, sums_W),
            finished_tokens_WT=jnp.where(ends_W[:, None], tokens_WT, search.finished_tokens_WT),
            finished_sums_W=jnp.where(ends_W, sums_W, search.finished_sums_W),
            finished_scores_W=jnp.where(
                ends_W, sums_W / length_penalty(t + 1, task.config), search.finished_scores_W
            ),
        )
        all_ended = jnp.all(search.live_sums_W == -jnp.inf)
        return dataclasses.replace(search, busy=~all_ended & (search.t < sentence.limit))


def filter_logits(logits_WV: Array, sampling: Sampling) -> Array:
    """Divide by the temperature, then set the logits that `top_k` and `top_p` exclude to -inf.

    `top_p` keeps the smallest set of tokens with at least this probability (Holtzman et al. 2020).
    """
    logits_WV = logits_WV / sampling.temperature
    if not sampling.top_k and sampling.top_p == 1.0:
        return logits_WV
    V = logits_WV.shape[-1]
    sorted_WV, order_WV = jax.lax.top_k(logits_WV, min(sampling.top_k or V, V))
    shares_WV = jax.nn.softmax(sorted_WV)
    before_WV = jnp.cumsum(shares_WV, axis=-1) - shares_WV
    # A token is kept if likelier tokens sum to less than top_p, so the likeliest always is.
    kept_WV = jnp.where(before_WV < sampling.top_p, sorted_WV, -jnp.inf)
    rows_W1 = jnp.arange(len(logits_WV))[:, None]
    return jnp.full_like(logits_WV, -jnp.inf).at[rows_W1, order_WV].set(kept_WV)
