"""Terms that an output must contain: a beam with lexical constraints, for `decode.constraint`.

Hokamp and Liu (2017) force constraints into a beam search, and Post and Vilar (2018) divide one
beam by the number of constraint tokens that its hypotheses contain. The position of a hypothesis in
a term comes from the Shift-And matching of Baeza-Yates and Gonnet (1992).

Axis C is the terms of a sentence, K the two spellings of a term, at the beginning of the output and
elsewhere, and L the tokens of a spelling, then PAD. A term of only PAD is absent.
"""

import functools
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from jformer.config import EOS, PAD
from jformer.data.corpora import decode_lines, read_lines
from jformer.data.vocabulary import Vocabulary
from jformer.decoding.constraints import Constraint
from jformer.decoding.search import Search, Sentence
from jformer.errors import UserError
from jformer.model.numerics import top_tokens

log = logging.getLogger(__name__)

MAX_TERMS = 8  # of a sentence
MAX_TOKENS = 16  # of a term


def terms(vocabulary: Vocabulary, *, file: str = "", keep: str = "") -> "Terms":
    """Return the constraint for the terms of a file, and for source strings to copy.

    `file` has lines of source TAB target, and `keep` is a regular expression of source strings.
    """
    if not (file or keep):
        raise UserError("config.decode.constraint=terms: requires file='FILE' or keep='PATTERN'")
    pairs = read_terms(file) if file else ()
    patterns = [rf"(?<!\w){re.escape(source)}(?!\w)" for source, _ in pairs]
    try:
        pattern = re.compile("|".join([*patterns, keep] if keep else patterns))
    except re.error as error:
        raise UserError(f"config.decode.constraint: keep={keep!r}: {error}") from error
    return Terms(edges(vocabulary), vocabulary, pairs, pattern)


@functools.lru_cache(maxsize=8)
def read_terms(file: str) -> tuple[tuple[str, str], ...]:
    """Read lines of source TAB target, the longest source first; once per process."""
    pairs = []
    for number, line in enumerate(decode_lines(read_lines(Path(file)), file, "error"), start=1):
        source, _, target = line.partition("\t")
        if not source.strip() or not target.strip():
            raise UserError(f"{file}:{number}: must be a source term, a tab and its target")
        pairs.append((source.strip(), target.strip()))
    return tuple(sorted(pairs, key=lambda pair: -len(pair[0])))


@functools.lru_cache(maxsize=8)
def edges(vocabulary: Vocabulary) -> np.ndarray:
    """Return whether the text of each token begins and ends with a word character (V, 2)."""
    (before,) = vocabulary.encode(["a"])
    start = len(vocabulary.decode(before))
    found = [vocabulary.decode([*before, token])[start:] for token in range(vocabulary.size)]
    # A byte of a multi-byte character most often belongs to a letter.
    within = re.compile(r"\w|\ufffd")
    return np.array(
        [[bool(within.match(text[:1])), bool(within.match(text[-1:]))] for text in found]
    )


@struct.dataclass
class Progress:
    """The progress of W hypotheses in the terms of a sentence."""

    matched_WCKL: Any  # whether the last l + 1 tokens are the first l + 1 of a spelling
    ended_WC: Any  # whether the last token ends the term
    met_WC: Any  # whether the term ended earlier and its last word did not continue

    @property
    def has_WC(self) -> Array:
        """Return whether a hypothesis that ends here contains the term."""
        return self.met_WC | self.ended_WC

    @property
    def reached_WCK(self) -> Array:
        """Return how many tokens of each spelling a hypothesis ends with."""
        lengths_L = 1 + jnp.arange(self.matched_WCKL.shape[-1])
        return jnp.max(jnp.where(self.matched_WCKL, lengths_L[None, None, None], 0), axis=-1)


class Terms(Constraint):
    """Outputs contain the target of each term whose source is in their text.

    The longest of nested terms counts. A letter or digit must not follow a term: 17 is not in 175.
    Both languages must have spaces between words.
    """

    needs_beam: ClassVar[bool] = True

    edges_V2: Any
    vocabulary: Vocabulary = struct.field(pytree_node=False)
    pairs: tuple[tuple[str, str], ...] = struct.field(pytree_node=False)
    pattern: re.Pattern = struct.field(pytree_node=False)

    @functools.cached_property
    def targets(self) -> dict[str, str]:
        return dict(self.pairs)

    def encode(self, source: str, ids: Sequence[int]) -> tuple[np.ndarray, Progress]:
        """Return the spellings (C, K, L) of the terms of a source, and no progress in them."""
        begin = int(self.vocabulary.language_token is not None)
        wanted = [
            [ids[begin:] for ids in self.vocabulary.encode([term, f" {term}" if spaced else term])]
            for term, spaced in self.find(source).items()
        ]
        usable = [spelled for spelled in wanted if max(map(len, spelled)) <= MAX_TOKENS][:MAX_TERMS]
        if len(usable) < len(wanted):
            log.warning(
                f"{source[:60]!r}: {len(usable)} of {len(wanted)} terms are forced; a "
                f"sentence may have {MAX_TERMS} terms of {MAX_TOKENS} tokens"
            )
        terms_CKL = np.full((MAX_TERMS, 2, MAX_TOKENS), PAD, np.int32)
        for c, spellings in enumerate(usable):
            for k, tokens in enumerate(spellings):
                terms_CKL[c, k, : len(tokens)] = tokens
        absent_C = np.arange(MAX_TERMS) >= len(usable)
        nothing_CKL = np.zeros(terms_CKL.shape, bool)
        return terms_CKL, Progress(nothing_CKL, np.zeros_like(absent_C), absent_C)

    def find(self, source: str) -> dict[str, bool]:
        """Return the strings that the output must contain, and whether a space precedes each."""
        found: dict[str, bool] = {}
        for match in self.pattern.finditer(source):
            if text := match.group().strip():
                # Like the source, the output has no space after a bracket or a quotation mark.
                before = source[: match.start()][-1:]
                spaced = text in self.targets or not before or before.isspace()
                found.setdefault(self.targets.get(text, text), spaced)
        return found

    def candidates(
        self, sentence: Sentence, search: Search, logits_WV: Array, count: int
    ) -> tuple[Array, Array]:
        """Add tokens that advance a term, and one that begins a word, to the likeliest tokens.

        Otherwise all tokens might continue the word that ends a term. EOS waits for all terms.
        """
        complete_W = jnp.all(search.progress.has_WC, axis=-1)
        ending_W = jnp.where(complete_W, logits_WV[:, EOS], -jnp.inf)
        logits_WV = logits_WV.at[:, EOS].set(ending_W)
        logits_WC, tokens_WC = top_tokens(logits_WV, count)
        next_WC = next_tokens(sentence.given, search.progress, search.t)
        begins_WV = jnp.where(self.edges_V2[None, :, 0], -jnp.inf, logits_WV)
        more_WC = jnp.concatenate([next_WC, jnp.argmax(begins_WV, axis=-1)[:, None]], axis=1)
        more_logits_WC = jnp.take_along_axis(logits_WV, more_WC, axis=1)
        tokens_WC = jnp.concatenate([tokens_WC, more_WC], axis=1)
        logits_WC = jnp.concatenate([logits_WC, more_logits_WC], axis=1)
        C = tokens_WC.shape[-1]
        same_WCC = tokens_WC[:, :, None] == tokens_WC[:, None, :]
        repeated_WC = jnp.any(same_WCC & jnp.tri(C, k=-1, dtype=bool)[None], axis=-1)
        return jnp.where(repeated_WC, -jnp.inf, logits_WC), tokens_WC

    def select(
        self, sentence: Sentence, search: Search, scores_M: Array, tokens_M: Array, count: int
    ) -> tuple[Array, Progress]:
        """Return `count` of the candidates: in turn, the best for each number of tokens met."""
        C = len(tokens_M) // len(search.live_sums_W)
        before_M = jax.tree.map(lambda x: jnp.repeat(x, C, axis=0), search.progress)
        last_M = jnp.repeat(search.live_tokens_WT[:, search.t - 1], C)
        # Before the first token no term has ended, whatever the token at -1 is.
        continues_M = self.edges_V2[last_M, 1] & self.edges_V2[tokens_M, 0]
        progress_M = follow(sentence.given, before_M, tokens_M, continues_M, search.t)
        return deal(scores_M, tokens_met(sentence.given, progress_M), count), progress_M


def follow(
    terms_CKL: Array, before: Progress, tokens_W: Array, continues_W: Array, t: Array
) -> Progress:
    """Return the progress after one more token, at position t.

    If it continues the word of the previous token, a term that ended there is not met.
    """
    begins_K1 = may_begin(t)[:, None]
    begins_WCK1 = jnp.broadcast_to(begins_K1, (*before.matched_WCKL.shape[:3], 1))
    before_WCKL = jnp.concatenate([begins_WCK1, before.matched_WCKL[..., :-1]], axis=-1)
    matched_WCKL = before_WCKL & (terms_CKL[None] == tokens_W[:, None, None, None])
    follows_CKL = jnp.pad(terms_CKL[..., 1:], ((0, 0), (0, 0), (0, 1)), constant_values=PAD)
    ends_CKL = (terms_CKL != PAD) & (follows_CKL == PAD)
    ended_WC = jnp.any(matched_WCKL & ends_CKL[None], axis=(2, 3))
    met_WC = before.met_WC | (before.ended_WC & ~continues_W[:, None])
    return Progress(matched_WCKL, ended_WC, met_WC)


def may_begin(t: Array) -> Array:
    """Return whether a term may begin at position t with each of its spellings (K,)."""
    return jnp.array([False, True]) == (t > 0)


def next_tokens(terms_CKL: Array, progress: Progress, t: Array) -> Array:
    """Return the tokens (W, C * K) that advance each hypothesis in each term, PAD for none."""
    W, L = len(progress.met_WC), terms_CKL.shape[-1]
    reached_WCK = progress.reached_WCK
    index_WCK1 = jnp.minimum(reached_WCK, L - 1)[..., None]
    terms_WCKL = jnp.broadcast_to(terms_CKL, progress.matched_WCKL.shape)
    next_WCK = jnp.take_along_axis(terms_WCKL, index_WCK1, axis=-1)[..., 0]
    possible_WCK = ~progress.has_WC[..., None] & ((reached_WCK > 0) | may_begin(t)[None, None])
    return jnp.where(possible_WCK, next_WCK, PAD).reshape(W, -1)


def tokens_met(terms_CKL: Array, progress: Progress) -> Array:
    """Return how many tokens of terms each hypothesis has (W,); a term that is met counts whole."""
    lengths_C = jnp.max(jnp.sum(terms_CKL != PAD, axis=-1), axis=-1)
    reached_WC = jnp.max(progress.reached_WCK, axis=-1)
    return jnp.sum(jnp.where(progress.has_WC, lengths_C[None], reached_WC), axis=-1)


def deal(scores_M: Array, met_M: Array, count: int) -> Array:
    """Return the indices of `count` of M candidates, round-robin over the numbers of tokens met.

    The order is the best of each number, then the second best of each, and so on. The largest
    number is first each time, so that a beam narrower than the terms are long also meets them.
    """
    M = len(scores_M)
    best_first_M = jnp.argsort(-scores_M, stable=True)
    by_number_M = best_first_M[jnp.argsort(-met_M[best_first_M], stable=True)]
    falling_M = -met_M[by_number_M]
    ranks_M = jnp.arange(M) - jnp.searchsorted(falling_M, falling_M)
    impossible_M = scores_M[by_number_M] == -jnp.inf
    order_M = jnp.argsort(jnp.where(impossible_M, M, ranks_M), stable=True)
    return by_number_M[order_M][:count]
