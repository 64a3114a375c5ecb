"""Splitting of long texts into sentences and into pieces of limited length."""

import re
from collections.abc import Callable, Iterator, Sequence

# After a mark, or a mark and a closing quote or bracket; full-width marks need no space.
CLOSING = "\"'\u201d\u2019\u00bb)\\]"
END = re.compile(
    rf"(?<=[.!?\u2026])(?=\s)|(?<=[.!?\u2026][{CLOSING}])(?=\s)|(?<=[\u3002\uff01\uff1f])"
)
WORD = re.compile(r"\s*\S+")


def split(text: str) -> list[str]:
    """Return the sentences of a text, each with the white space before it, so that none is lost.

    Punctuation alone ends a sentence: "e.g. this" is split, too.
    """
    return [sentence for sentence in END.split(text) if sentence.strip()]


def pieces(
    text: str, longest: int, encode: Callable[[Sequence[str]], list[list[int]]]
) -> Iterator[tuple[list[int], int]]:
    """Yield pieces of at most `longest` ids, with the index of the text's word where each begins.

    A piece is a sentence, or as many words of a longer sentence as fit. A word that does not fit
    by itself is cut.
    """
    words = 0
    for sentence in split(text):
        within = words > 0 and not sentence[0].isspace()  # no space: continues the last word
        first, units = words - within, WORD.findall(sentence)
        words = first + len(units)
        sizes = [len(ids) for ids in encode(units)]
        for start, stop in runs(sizes, longest):
            (ids,) = encode(["".join(units[start:stop]).strip()])
            for i in range(0, len(ids), longest):
                yield ids[i : i + longest], first + start


def runs(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Yield start and stop of runs whose sum is at most `most`; a larger size is a run alone."""
    start = total = 0
    for i, size in enumerate(sizes):
        if i > start and total + size > most:
            yield start, i
            start, total = i, 0
        total += size
    yield start, len(sizes)
