"""Where a text can be taken apart."""

import re
from collections.abc import Callable, Iterator, Sequence

# Behind a mark, or a mark and what closes a quotation; the full-width marks need no space.
CLOSING = "\"'\u201d\u2019\u00bb)\\]"
END = re.compile(
    rf"(?<=[.!?\u2026])(?=\s)|(?<=[.!?\u2026][{CLOSING}])(?=\s)|(?<=[\u3002\uff01\uff1f])"
)
WORD = re.compile(r"\s*\S+")


def split(text: str) -> list[str]:
    """The sentences of a text, each with the white space before it, so that none is lost.

    They end at their marks alone: "e.g. this" comes apart, too.
    """
    return [sentence for sentence in END.split(text) if sentence.strip()]


def pieces(
    text: str, longest: int, encode: Callable[[Sequence[str]], list[list[int]]]
) -> Iterator[tuple[list[int], int]]:
    """At most `longest` ids, and the number of the text's word in which they begin.

    They are of a sentence, or where it has more, of as many of its words as fit. A word that does
    not fit by itself is cut within.
    """
    words = 0
    for sentence in split(text):
        within = words > 0 and not sentence[0].isspace()  # no white space, so no new word
        first, units = words - within, WORD.findall(sentence)
        words = first + len(units)
        sizes = [len(ids) for ids in encode(units)]
        for start, stop in runs(sizes, longest):
            (ids,) = encode(["".join(units[start:stop]).strip()])
            for i in range(0, len(ids), longest):
                yield ids[i : i + longest], first + start


def runs(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Start and stop of neighbours that have `most` together, or of one that has more."""
    start = total = 0
    for i, size in enumerate(sizes):
        if i > start and total + size > most:
            yield start, i
            start, total = i, 0
        total += size
    yield start, len(sizes)
