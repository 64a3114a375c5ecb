"""Splitting of long texts into sentences and into pieces of limited length, and joining them."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

# Marks that also occur within words and numbers end a sentence only before white space. Marks of
# Devanagari, Ethiopic, Khmer, Burmese, Chinese and Japanese end it anywhere.
SPACED = ".!?\u2026\u061f\u06d4\u0589"
UNSPACED = "\u0964\u0965\u1362\u1367\u1368\u17d4\u17d5\u104b\u3002\uff01\uff1f\uff61"
# Quotes and brackets after a mark belong to its sentence. Some also open in other languages.
CLOSING = r"\"'\u2019\u201d\u00bb)\]}\u3009\u300b\u300d\u300f\u3011\u3015\uff09\uff3d\uff63"
AMBIGUOUS = "\u2018\u201c\u00ab"
END = re.compile(
    rf"[{SPACED}][{CLOSING}{AMBIGUOUS}]*(?=\s)|[{UNSPACED}][{SPACED}{UNSPACED}{CLOSING}]*"
)
WORD = re.compile(r"\s*\S+")
# Scripts written without spaces: Thai, Lao, Burmese, Khmer, kana, Chinese, and full-width forms.
WITHOUT_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u312f\u31a0-\u9fff\uf900-\ufaff"
    "\uff01-\uff9f\U00020000-\U0003ffff]"
)


def split(text: str) -> list[str]:
    """Return the sentences of a text, each with its preceding white space, so that none is lost.

    Only punctuation is considered, so "e.g. this" is split as well.
    """
    ends = [match.end() for match in END.finditer(text)]
    parts = [text[start:end] for start, end in itertools.pairwise([0, *ends, len(text)])]
    return [sentence for sentence in parts if sentence.strip()]


def join_texts(parts: Iterable[str]) -> str:
    """Join the translations of parts of a text, with a space unless their script has none."""
    joined = ""
    for part in filter(None, parts):
        seam = joined[-1:] + part[:1]
        joined += part if not joined or WITHOUT_SPACES.search(seam) else f" {part}"
    return joined


def pieces(
    text: str, longest: int, encode: Callable[[Sequence[str]], list[list[int]]]
) -> Iterator[tuple[list[int], int, str]]:
    """Yield pieces of at most `longest` ids, the index of each piece's first word, and its text.

    A piece is a sentence, or as many words of a longer sentence as fit. A word that does not fit
    is cut.
    """
    words = 0
    for sentence in split(text):
        within = words > 0 and not sentence[0].isspace()  # no space: continues the last word
        first, units = words - within, WORD.findall(sentence)
        words = first + len(units)
        sizes = [len(ids) for ids in encode(units)]
        for start, stop in runs(sizes, longest):
            piece = "".join(units[start:stop]).strip()
            (ids,) = encode([piece])
            for i in range(0, len(ids), longest):
                yield ids[i : i + longest], first + start, piece


def runs(sizes: Sequence[int], limit: int) -> Iterator[tuple[int, int]]:
    """Yield start and stop of runs whose sum is at most `limit`; a larger size is its own run."""
    start = total = 0
    for i, size in enumerate(sizes):
        if i > start and total + size > limit:
            yield start, i
            start, total = i, 0
        total += size
    yield start, len(sizes)
