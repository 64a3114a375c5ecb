"""The consensus of several trees of a sentence: the constituents that many of them have.

Where the trees are samples of a parser, the share that has a constituent estimates its probability.
The tree whose constituents have the highest sum of probabilities is found by dynamic programming
(Goodman 1996). Each constituent costs `THRESHOLD`: the best expected F1 is that of the constituents
whose probability exceeds half of it (Lipton et al. 2014), and for parsers it is some 80 %.

Punctuation is no part of a constituent here, nearly as in F1 (bracketing.py): trees that
differ in where a comma hangs agree. In the consensus it hangs as high as it can.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jformer.decoding.translate import Candidates

THRESHOLD = 0.4
# A single hyphen or apostrophe is mostly a part of a constituent, as in "the dogs ' tails".
PUNCTUATION = re.compile("[.,:;!?\"`\u2014\u2018\u201c\u201d\u00ab\u00bb\u2026]+|--+|''")

Span = tuple[int, int]  # index of the first word, and of the word after the last


class Constituent(NamedTuple):
    span: Span  # punctuation not counted
    label: str
    nth: int  # of those with the same label and words, 0 for the innermost


def consensus(candidates: Candidates) -> str | int:
    """Return the consensus of the complete candidates, a component of config.decode.choose.

    Without a complete candidate the first one is chosen.
    """
    trees = [one.text for one in candidates.hypotheses if one.complete and one.parts]
    return consensus_of(trees, candidates.source.split()) if trees else 0


def consensus_of(trees: Sequence[str], words: Sequence[str]) -> str:
    """Return the tree with the highest expected agreement with linearised trees of some words.

    It has no more constituents than the largest tree. The words are those of the sentence, or more.
    Each gets its most frequent tag.
    """
    tags = [Counter(each).most_common(1)[0][0] for each in zip(*map(tags_of, trees), strict=True)]
    counted = [not PUNCTUATION.fullmatch(word) for word in words[: len(tags)]]
    if not any(counted):
        counted = [True] * len(tags)
    votes: Counter[Constituent] = Counter()
    around: Counter[tuple[Constituent, Constituent]] = Counter()  # of the same words, in how many
    most = 0
    for tree in trees:
        of_span: dict[Span, list[Constituent]] = defaultdict(list)
        for one in constituents(tree, counted):
            votes[one] += 1
            around.update((one, inner) for inner in of_span[one.span])
            of_span[one.span].append(one)
        most = max(most, sum(map(len, of_span.values())))

    all_words = (0, sum(counted))
    root = max((one for one in votes if one.span == all_words), key=votes.__getitem__)
    shares = {one: number / len(trees) for one, number in votes.most_common()}
    gains = {one: share - THRESHOLD for one, share in shares.items() if share > THRESHOLD}
    spans = best_spans(gains, all_words[1])
    others = [one for one in gains if one.span in spans and one != root]
    chosen = [root, *others[: most - 1]]

    def outer_first(one: Constituent) -> tuple[int, int, int]:
        within = sum(around[one, other] - around[other, one] for other in chosen)
        return one.span[0], -one.span[1], -within

    return " ".join(tokens_of(sorted(chosen, key=outer_first), tags, counted))


def tags_of(tree: str) -> list[str]:
    return [token for token in tree.split() if token[0] not in "()"]


def constituents(tree: str, counted: Sequence[bool]) -> Iterator[Constituent]:
    """Yield the constituents of a linearised tree with words that are counted, inner ones first."""
    places = np.cumsum([0, *counted]).tolist()
    opened: list[tuple[str, int]] = []  # labels and first words of those that are open
    seen: Counter[tuple[Span, str]] = Counter()
    words = 0
    for token in tree.split():
        if token.startswith("("):
            opened.append((token[1:], places[words]))
        elif token.startswith(")"):
            label, begin = opened.pop()
            span = begin, places[words]
            if begin < places[words]:
                yield Constituent(span, label, seen[span, label])
            seen[span, label] += 1
        else:
            words += 1


def best_spans(gains: dict[Constituent, float], N: int) -> set[Span]:
    """Return all spans of the binary tree whose constituents have the highest sum of gains."""
    best, splits = np.zeros((N + 1, N + 1)), np.zeros((N + 1, N + 1), int)
    for one, gain in gains.items():
        best[one.span] += gain
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
    outer_first: Sequence[Constituent], tags: Sequence[str], counted: Sequence[bool]
) -> Iterator[str]:
    """Yield the tokens of the tree of some constituents; the first one is the root."""
    root, *others = outer_first
    left, opened, place = others[::-1], [], 0
    yield f"({root.label}"
    for tag, is_counted in zip(tags, counted, strict=True):
        while is_counted and left and left[-1].span[0] == place:
            opened.append(left.pop())
            yield f"({opened[-1].label}"
        yield tag
        place += is_counted
        while opened and opened[-1].span[1] == place:
            yield f"){opened.pop().label}"
    yield f"){root.label}"
