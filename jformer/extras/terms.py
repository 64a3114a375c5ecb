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
import unicodedata
from collections.abc import Callable, Sequence
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
# Scripts written without spaces: Thai, Lao, Burmese, Khmer, kana, Chinese, and full-width forms.
WITHOUT_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u312f\u31a0-\u9fff\uf900-\ufaff"
    "\uff01-\uff9f\U00020000-\U0003ffff]"
)
# A character that must not precede or follow a term. Python's \w lacks the combining marks of Latin
# and Indic scripts. Arabic and Korean attach prefixes and particles to words.
LETTER = rf"(?!{WITHOUT_SPACES.pattern}|[\u0620-\u064a\uac00-\ud7a3])[\w\u0300-\u036f\u0900-\u0dff]"


@functools.lru_cache(maxsize=8)  # the same object again, so that a search is compiled once
def terms(vocabulary: Vocabulary, *, file: str = "", keep: str = "") -> "Terms":
    """Return the constraint for the terms of a file, and for source strings to copy.

    `file` has lines of source TAB target, and `keep` is a regular expression of source strings.
    """
    if not (file or keep):
        raise UserError("config.decode.constraint=terms: requires file='FILE' or keep='PATTERN'")
    targets = read_terms(file) if file else {}
    longest_first = sorted(targets, key=len, reverse=True)
    patterns = [rf"(?<!{LETTER}){re.escape(source)}(?!{LETTER})" for source in longest_first]
    try:
        pattern = re.compile("|".join([*patterns, keep] if keep else patterns))
    except re.error as error:
        raise UserError(f"config.decode.constraint=terms: keep={keep!r}: {error}") from error

    def find(source: str) -> dict[str, str]:
        """Return the strings that the output must contain, and each with the space before it."""
        found: dict[str, str] = {}
        for match in pattern.finditer(source):
            text = match.group().strip()
            target = targets.get(text, text)
            # Like the source, the output has no space after a bracket or a quotation mark.
            before = " " if text in targets else source[: match.start()][-1:]
            spaced = not before.strip() and not WITHOUT_SPACES.match(target)
            found.setdefault(target, f" {target}" if spaced else target)
        return found

    return Terms(begins_with_letter(vocabulary), vocabulary, find)


def read_terms(file: str) -> dict[str, str]:
    """Return the target of each source term, whose accents may be characters of their own."""
    targets: dict[str, str] = {}
    for number, line in enumerate(decode_lines(read_lines(Path(file)), file), start=1):
        source, _, target = map(str.strip, line.partition("\t"))
        if not source or not target:
            raise UserError(f"{file}:{number}: must be a source term, a tab and its target")
        targets |= {unicodedata.normalize(form, source): target for form in ("NFC", "NFD")}
    return targets


def begins_with_letter(vocabulary: Vocabulary) -> np.ndarray:
    """Return whether the text of each token begins with a letter (V,)."""
    (before,) = vocabulary.encode(["a"])
    start = len(vocabulary.decode(before))
    texts = [vocabulary.decode([*before, token])[start:] for token in range(vocabulary.size)]
    # A byte of a multi-byte character most often belongs to a letter.
    return np.array([bool(re.match(rf"{LETTER}|\ufffd", text)) for text in texts])


@struct.dataclass
class Progress:
    """The progress of W hypotheses in the terms of a sentence."""

    matched_WCKL: Any  # whether the last l + 1 tokens are the first l + 1 of a spelling
    met_WC: Any  # whether the term ended earlier and its last word did not continue


class Terms(Constraint):
    """Outputs contain the target of each term whose source is in their text.

    The longest of nested terms counts. A letter or digit must not follow a term: 17 is not in 175.
    """

    needs_beam: ClassVar[bool] = True

    letters_V: Any
    vocabulary: Vocabulary = struct.field(pytree_node=False)
    find: Callable[[str], dict[str, str]] = struct.field(pytree_node=False)

    def encode(self, source: str, ids: Sequence[int]) -> tuple[Any, Progress]:
        """Return the spellings (C, K, L) of the terms of a source, and no progress in them.

        The second array (C,) has whether a letter could continue the last word of a term.
        """
        terms_CKL = np.full((MAX_TERMS, 2, MAX_TOKENS), PAD, np.int32)
        in_word_C, no_C = np.zeros((2, MAX_TERMS), bool)
        begin, c = int(self.vocabulary.language_token is not None), 0
        found = self.find(source)
        for text, elsewhere in found.items():
            spellings = [ids[begin:] for ids in self.vocabulary.encode([text, elsewhere])]
            fits = c < MAX_TERMS and max(map(len, spellings)) <= MAX_TOKENS
            if fits and self.vocabulary.decode(spellings[0]) == text:
                for k, tokens in enumerate(spellings):
                    terms_CKL[c, k, : len(tokens)] = tokens
                in_word_C[c] = bool(re.match(LETTER, text[-1:]))
                c += 1
        if c < len(found):
            log.warning(
                f"{source[:60]!r}: {c} of {len(found)} terms are forced; a sentence may have "
                f"{MAX_TERMS} terms of {MAX_TOKENS} tokens, and normalization must not change them"
            )
        return (terms_CKL, in_word_C), Progress(np.zeros(terms_CKL.shape, bool), no_C)

    def candidates(
        self, sentence: Sentence, search: Search, logits_WV: Array, count: int
    ) -> tuple[Array, Array]:
        """Add tokens that advance a term, and one that begins a word, to the likeliest tokens.

        Otherwise all tokens might continue the word that ends a term. EOS waits for all terms.
        """
        terms_CKL, _ = sentence.given
        reached_WCK, has_WC = state_of(terms_CKL, search.progress)
        ending_W = jnp.where(jnp.all(has_WC, axis=-1), logits_WV[:, EOS], -jnp.inf)
        logits_WV = logits_WV.at[:, EOS].set(ending_W)
        begins_W = jnp.argmax(jnp.where(self.letters_V[None], -jnp.inf, logits_WV), axis=-1)
        next_WC = next_tokens(terms_CKL, reached_WCK, has_WC, search.t)
        _, likeliest_WC = top_tokens(logits_WV, count)
        tokens_WC = jnp.concatenate([likeliest_WC, next_WC, begins_W[:, None]], axis=1)
        logits_WC = jnp.take_along_axis(logits_WV, tokens_WC, axis=1)
        same_WCC = tokens_WC[:, :, None] == tokens_WC[:, None, :]
        repeated_WC = jnp.any(jnp.tril(same_WCC, k=-1), axis=-1)
        return jnp.where(repeated_WC, -jnp.inf, logits_WC), tokens_WC

    def select(
        self, sentence: Sentence, search: Search, scores_M: Array, tokens_M: Array, count: int
    ) -> tuple[Array, Progress]:
        """Return `count` of the candidates: in turn, the best for each number of tokens met."""
        C = len(tokens_M) // len(search.live_sums_W)
        before_M = jax.tree.map(lambda x: jnp.repeat(x, C, axis=0), search.progress)
        progress_M = follow(sentence.given, before_M, tokens_M, self.letters_V[tokens_M], search.t)
        return deal(scores_M, tokens_met(sentence.given[0], progress_M), count), progress_M


def state_of(terms_CKL: Array, progress: Progress) -> tuple[Array, Array]:
    """Return how many tokens of each spelling a hypothesis ends in, and whether it has each term.

    The shapes are (W, C, K) and (W, C). A hypothesis has an absent term, which has no tokens.
    """
    numbers_L = 1 + jnp.arange(terms_CKL.shape[-1])
    reached_WCK = jnp.max(jnp.where(progress.matched_WCKL, numbers_L, 0), axis=-1)
    lengths_CK = jnp.sum(terms_CKL != PAD, axis=-1)
    return reached_WCK, progress.met_WC | jnp.any(reached_WCK == lengths_CK[None], axis=-1)


def follow(
    given: tuple[Array, Array], before: Progress, tokens_W: Array, letters_W: Array, t: Array
) -> Progress:
    """Return the progress after one more token, at position t, which begins with a letter or not.

    If it continues the word that ends a term, that term is not met.
    """
    terms_CKL, in_word_C = given
    _, has_WC = state_of(terms_CKL, before)
    met_WC = before.met_WC | (has_WC & ~(letters_W[:, None] & in_word_C[None]))
    before_WCKL = jnp.roll(before.matched_WCKL, 1, axis=-1)
    shifted_WCKL = before_WCKL.at[..., 0].set(may_begin(t)[None, None])
    return Progress(shifted_WCKL & (terms_CKL[None] == tokens_W[:, None, None, None]), met_WC)


def may_begin(t: Array) -> Array:
    """Return whether a term may begin at position t with each of its spellings (K,)."""
    return jnp.array([False, True]) == (t > 0)


def next_tokens(terms_CKL: Array, reached_WCK: Array, has_WC: Array, t: Array) -> Array:
    """Return the tokens (W, C * K) that advance each hypothesis in each term, PAD for none."""
    positions_L = jnp.arange(terms_CKL.shape[-1])
    is_next_WCKL = reached_WCK[..., None] == positions_L[None, None, None]
    next_WCK = jnp.sum(jnp.where(is_next_WCKL, terms_CKL[None], PAD), axis=-1)
    possible_WCK = ~has_WC[..., None] & ((reached_WCK > 0) | may_begin(t)[None, None])
    return jnp.where(possible_WCK, next_WCK, PAD).reshape(len(next_WCK), -1)


def tokens_met(terms_CKL: Array, progress: Progress) -> Array:
    """Return how many tokens of terms each hypothesis has (W,).

    Of the terms that it has begun, only the longest beginning counts: others share its tokens.
    """
    reached_WCK, has_WC = state_of(terms_CKL, progress)
    lengths_C = jnp.max(jnp.sum(terms_CKL != PAD, axis=-1), axis=-1)
    begun_WCK = jnp.where(has_WC[..., None], 0, reached_WCK)
    whole_W = jnp.sum(jnp.where(has_WC, lengths_C[None], 0), axis=-1)
    return whole_W + jnp.max(begun_WCK, axis=(1, 2))


def deal(scores_M: Array, met_M: Array, count: int) -> Array:
    """Return the indices of `count` of M candidates, round-robin over the numbers of tokens met.

    The order is the best of each number, then the second best of each, and so on. The largest
    number is first each time, so that a beam narrower than the terms are long also meets them.
    """
    by_number_M = jnp.lexsort((-scores_M, -met_M))
    falling_M = -met_M[by_number_M]
    ranks_M = jnp.arange(len(scores_M)) - jnp.searchsorted(falling_M, falling_M)
    ranks_M = jnp.where(scores_M[by_number_M] == -jnp.inf, len(scores_M), ranks_M)
    return by_number_M[jnp.argsort(ranks_M, stable=True)][:count]
