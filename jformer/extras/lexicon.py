"""Find the terms that the output for a source must contain, and read and spell them."""

import functools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from jformer.data.corpora import Report, decode_line, read_lines
from jformer.data.vocabulary import Vocabulary
from jformer.decoding.pool import Spellings
from jformer.errors import UserError, check_strings, check_type

# Strings that `keep` knows by name, in the order of a match: a number in a URL is a part of it.
KINDS = {
    "urls": r"(?:https?://|www\.)\S*[\w/]",
    "tags": r"</?[A-Za-z][^<>]*>",
    "numbers": r"(?<!\w)\d+(?:[.,:/-]\d+)*(?!\w)",
}
Term = tuple[str, str]  # the words in the source, and what must stand in the output


def kept_pattern(keep: str) -> re.Pattern | None:
    """Return the pattern of the strings that `keep` names or matches; None if it is empty."""
    names = keep.split(",")
    if all(name in KINDS for name in names):
        return re.compile("|".join(KINDS[name] for name in KINDS if name in names))
    if re.fullmatch("[a-z,]+", keep):
        raise UserError(
            f"config.decode.search: keep={keep!r} must name some of {', '.join(KINDS)}, or be a "
            f"regular expression"
        )
    try:
        return re.compile(keep) if keep else None
    except re.error as error:
        raise UserError(
            f"config.decode.search: keep={keep!r} is not a regular expression: {error}"
        ) from error


def read_terms(path: Path) -> list[Term]:
    """Read lines of source TAB target; `UserError` names the first that is another."""
    terms = []
    for number, line in enumerate(read_lines(path), start=1):
        place = f"{path}:{number}"
        fields = (decode_line(line, place, number == 1, "error", Report()) or "").split("\t")
        if len(fields) != 2 or not all(field.strip() for field in fields):
            raise UserError(f"{place}: a term is needed: its source, a tab and its target")
        terms.append((fields[0].strip(), fields[1].strip()))
    return terms


def spellings_in(
    text: str, terms: Sequence[Term], kept: re.Pattern | None, vocabulary: Vocabulary
) -> tuple[Spellings, ...]:
    """Return the spellings of each term that the output for `text` must contain, each once.

    These are the targets of the `terms` whose source is among its words, case included, and its
    own strings that match `kept`.
    """
    wanted = {
        target: True for source, target in terms if source in text and has_words(text, source)
    }
    for match in kept.finditer(text) if kept else ():
        if string := match.group().strip():
            # Behind a bracket or a quotation mark there is no space in the output, either.
            before = text[: match.start()][-1:]
            wanted.setdefault(string, not before or before.isspace())
    return tuple(spellings(target, spaced, vocabulary) for target, spaced in wanted.items())


def has_words(text: str, words: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text) is not None


def spellings(term: str, spaced: bool, vocabulary: Vocabulary) -> Spellings:
    """Return the ids of a term at the beginning of an output, and elsewhere, behind a space."""
    first, later = vocabulary.encode([term, f" {term}" if spaced else term])
    return first, later


@functools.lru_cache(maxsize=8)
def edges(vocabulary: Vocabulary) -> np.ndarray:
    """Return whether each token begins and ends within a word (V, 2), behind another token."""
    before = vocabulary.encode(["a"])[0]
    start = len(vocabulary.decode(before))
    texts = [vocabulary.decode([*before, token])[start:] for token in range(vocabulary.size)]
    return np.array([[within_word(text[:1]), within_word(text[-1:])] for text in texts])


def within_word(character: str) -> bool:
    # A byte of a longer character is most often one of a letter.
    return re.fullmatch(r"\w|\ufffd", character) is not None


def missing(terms: Iterable[Spellings], text: str, vocabulary: Vocabulary) -> int:
    """Count the terms that do not stand in an output, or only as the beginning of a word."""

    def stands(term: str) -> bool:
        end = r"(?!\w)" if within_word(term[-1:]) else ""
        return re.search(re.escape(term) + end, text) is not None

    return sum(not stands(vocabulary.decode(first).strip()) for first, _ in terms)


def check_terms(terms: Sequence[Term]) -> None:
    """Raise `TypeError` or `UserError` for what are no pairs of texts."""
    check_type("terms", terms, list | tuple, "a list of pairs of strings")
    for term in terms:
        check_type("a term", term, list | tuple, "a pair of strings")
        check_strings("a term", term)
        if len(term) != 2 or not all(text.strip() for text in term):
            raise UserError(f"term {term!r}: is no pair of a source and a target, both with text")
