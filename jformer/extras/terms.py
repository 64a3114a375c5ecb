"""Terms that must stand in an output: beam search with lexical constraints.

Hokamp and Liu (2017) force constraints into a beam search, and Post and Vilar (2018) share the
places of one beam out by the number of constraint tokens that hypotheses have. Where in a term a
hypothesis is comes from the Shift-And matching of Baeza-Yates and Gonnet (1992).

Axis C is that of a sentence's terms, K that of a term's two spellings, at the beginning of the
output and elsewhere, and L that of a spelling's tokens, then PAD. A term of PAD alone is none.
"""

from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import Array

from jformer.config import PAD


@struct.dataclass
class Progress:
    """The progress of W hypotheses in a sentence's terms: what is matched, ended and met."""

    matched_WCKL: Any  # whether the last l + 1 tokens are the first l + 1 of a spelling
    ended_WC: Any  # whether the last token ends the term
    met_WC: Any  # whether it ended before, and the token after it did not go on with its word

    @property
    def has_WC(self) -> Array:
        """Return whether the term stands in a hypothesis that ends here."""
        return self.met_WC | self.ended_WC


def no_progress(terms_CKL: Array, W: int) -> Progress:
    none_C = jnp.all(terms_CKL == PAD, axis=(1, 2))
    met_WC = jnp.broadcast_to(none_C, (W, len(none_C)))
    return Progress(jnp.zeros((W, *terms_CKL.shape), bool), jnp.zeros_like(met_WC), met_WC)


def follow(
    terms_CKL: Array, before: Progress, tokens_W: Array, goes_on_W: Array, t: Array
) -> Progress:
    """Return the progress after one more token, the one at position t.

    Where it goes on with the word of the token before, a term that ended there does not stand in
    the hypothesis: 17 is not in 175.
    """
    begun_CK1 = may_begin(terms_CKL, t)[:, :, None]
    begun_WCK1 = jnp.broadcast_to(begun_CK1, (len(tokens_W), *begun_CK1.shape))
    before_WCKL = jnp.concatenate([begun_WCK1, before.matched_WCKL[..., :-1]], axis=-1)
    matched_WCKL = before_WCKL & (terms_CKL[None] == tokens_W[:, None, None, None])
    follows_CKL = jnp.pad(terms_CKL[..., 1:], ((0, 0), (0, 0), (0, 1)), constant_values=PAD)
    ends_CKL = (terms_CKL != PAD) & (follows_CKL == PAD)
    ended_WC = jnp.any(matched_WCKL & ends_CKL[None], axis=(2, 3))
    return Progress(matched_WCKL, ended_WC, before.met_WC | (before.ended_WC & ~goes_on_W[:, None]))


def may_begin(terms_CKL: Array, t: Array) -> Array:
    """Return whether each spelling (C, K) may begin at position t."""
    return jnp.broadcast_to((jnp.arange(2) == 1) | (t == 0), terms_CKL.shape[:2])


def next_tokens(terms_CKL: Array, progress: Progress, t: Array) -> Array:
    """Return the tokens (W, C * K) that bring each hypothesis on in each term; PAD: none does."""
    W, L = len(progress.met_WC), terms_CKL.shape[-1]
    reached_WCK = tokens_matched(progress)
    ahead_WCKL = jnp.broadcast_to(terms_CKL, progress.matched_WCKL.shape)
    next_WCK = jnp.take_along_axis(ahead_WCKL, jnp.minimum(reached_WCK, L - 1)[..., None], axis=-1)[
        ..., 0
    ]
    possible_WCK = ~progress.has_WC[..., None] & ((reached_WCK > 0) | may_begin(terms_CKL, t)[None])
    return jnp.where(possible_WCK, next_WCK, PAD).reshape(W, -1)


def tokens_matched(progress: Progress) -> Array:
    """Return how many tokens of each spelling a hypothesis ends with (W, C, K)."""
    counts_111L = 1 + jnp.arange(progress.matched_WCKL.shape[-1])[None, None, None]
    return jnp.max(jnp.where(progress.matched_WCKL, counts_111L, 0), axis=-1)


def tokens_met(terms_CKL: Array, progress: Progress) -> Array:
    """Return how many tokens of terms each hypothesis has (W,): all of those that are met."""
    lengths_C = jnp.max(jnp.sum(terms_CKL != PAD, axis=-1), axis=-1)
    begun_WC = jnp.max(tokens_matched(progress), axis=-1)
    return jnp.sum(jnp.where(progress.has_WC, lengths_C[None], begun_WC), axis=-1)


def deal(scores_M: Array, met_M: Array, count: int) -> Array:
    """Return `count` places of M candidates, as cards are dealt to the numbers of met tokens.

    First comes the best of each number, then the second best of each, and so on; each time the
    largest number first, so that a beam narrower than the terms are long meets them, too.
    """
    M = len(scores_M)
    best_first_M = jnp.argsort(-scores_M, stable=True)
    by_number_M = best_first_M[jnp.argsort(-met_M[best_first_M], stable=True)]
    falling_M = -met_M[by_number_M]
    ranks_M = jnp.arange(M) - jnp.searchsorted(falling_M, falling_M)
    impossible_M = scores_M[by_number_M] == -jnp.inf
    order_M = jnp.argsort(jnp.where(impossible_M, M, ranks_M), stable=True)
    return by_number_M[order_M][:count]
