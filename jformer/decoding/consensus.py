"""The consensus of several trees of a sentence: the constituents that many of them have.

Where the trees are samples of a parser, the share that has a constituent estimates its probability.
The tree whose constituents have the highest sum of probabilities is found by dynamic programming
(Goodman 1996). Each one costs `THRESHOLD`: expected F1 is highest with those that are more probable
than the half of it (Lipton et al. 2014), and parsers have an F1 of about 80 %.

Punctuation is no part of a constituent here, as in F1 (evaluation/bracketing.py): trees that differ
in where a comma hangs agree. In the consensus it hangs as high as it can.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

THRESHOLD = 0.4
# Dashes, quotation marks and the ellipsis are there as ASCII and as typographers set them.
PUNCTUATION = frozenset(".,:;!?'\"`-\u2013\u2014\u2018\u2019\u201c\u201d\u00ab\u00bb\u2026")


class Constituent(NamedTuple):
    begin: int  # index of its first word, punctuation not counted
    end: int  # of the word after its last
    label: str
    nth: int  # of those with the same label and words, 0 for the innermost


def consensus(trees: Sequence[str], words: Sequence[str]) -> str:
    """Return the tree with the highest expected agreement with linearised trees of some words.

    The words are those of the sentence, or more. Each gets its most frequent tag.
    """
    tags = [Counter(each).most_common(1)[0][0] for each in zip(*map(tags_of, trees), strict=True)]
    counted = [not PUNCTUATION.issuperset(word) for _, word in zip(tags, words, strict=False)]
    if not any(counted):
        counted = [True] * len(tags)
    counts: Counter[Constituent] = Counter()
    depths: Counter[Constituent] = Counter()
    for tree in trees:
        for one, depth in constituents(tree, counted):
            counts[one] += 1
            depths[one] += depth
    gains = {one: count / len(trees) - THRESHOLD for one, count in counts.items()}
    N = sum(counted)
    root = max((one for one in gains if one[:2] == (0, N)), key=lambda one: gains[one])
    kept = {one: gain for one, gain in gains.items() if gain > 0 or one == root}
    spans = best_spans(kept, N)
    # A constituent begins before those within it; of the same words, before the deeper ones.
    order = sorted(
        (one for one in kept if one[:2] in spans),
        key=lambda one: (one.begin, -one.end, depths[one] / counts[one]),
    )
    return " ".join(tokens_of(order, tags, counted))


def tags_of(tree: str) -> list[str]:
    return [token for token in tree.split() if token[0] not in "()"]


def constituents(tree: str, counted: Sequence[bool]) -> Iterator[tuple[Constituent, int]]:
    """Yield the constituents with words that are counted, and how many each lies within."""
    places = np.cumsum([0, *counted]).tolist()
    opened: list[tuple[str, int]] = []  # labels and first words of those that are open
    seen: Counter[tuple[int, int, str]] = Counter()
    words = 0
    for token in tree.split():
        if token.startswith("("):
            opened.append((token[1:], places[words]))
        elif token.startswith(")"):
            label, begin = opened.pop()
            bracket = begin, places[words], label
            if begin < places[words]:
                yield Constituent(*bracket, seen[bracket]), len(opened)
            seen[bracket] += 1
        else:
            words += 1


def best_spans(gains: dict[Constituent, float], N: int) -> set[tuple[int, int]]:
    """Return the spans, of none that cross, whose constituents have the highest sum of gains."""
    best, splits = np.zeros((N + 1, N + 1)), np.zeros((N + 1, N + 1), int)
    for one, gain in gains.items():
        best[one.begin, one.end] += gain
    for width in range(2, N + 1):
        for begin in range(N + 1 - width):
            end = begin + width
            within = best[begin, begin + 1 : end] + best[begin + 1 : end, end]
            splits[begin, end] = begin + 1 + np.argmax(within)
            best[begin, end] += within.max()
    spans, left = set(), [(0, N)]
    while left:
        begin, end = left.pop()
        spans.add((begin, end))
        if end - begin > 1:
            left += [(begin, splits[begin, end]), (splits[begin, end], end)]
    return spans


def tokens_of(
    order: Sequence[Constituent], tags: Sequence[str], counted: Sequence[bool]
) -> Iterator[str]:
    """Yield the tokens of the tree of some constituents, each of which stands before those in it.

    The first one takes all words.
    """
    root, *others = order
    left, opened, place = others[::-1], [], 0
    yield f"({root.label}"
    for tag, is_counted in zip(tags, counted, strict=True):
        while is_counted and left and left[-1].begin == place:
            opened.append(left.pop())
            yield f"({opened[-1].label}"
        yield tag
        place += is_counted
        while opened and opened[-1].end == place:
            yield f"){opened.pop().label}"
    yield f"){root.label}"
