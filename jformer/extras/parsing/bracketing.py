"""Labelled bracketing scores of constituency trees, by the conventions of EVALB (COLLINS.prm).

A bracket is the label of a constituent with the words that it spans. Spans exclude punctuation, as
tagged in the gold tree. A constituent of only punctuation and the root TOP are not brackets. ADVP
and PRT are equal.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from jformer.errors import UserError
from jformer.evaluation.scores import verdict
from jformer.extras.parsing.trees import TOP, Tree

PUNCTUATION = frozenset({",", ":", "``", "''", "."})
EQUAL = {"PRT": "ADVP"}
SHORT = 40  # words; the older literature scores sentences up to this length separately
SAMPLES, SEED = 1000, 12345  # of the bootstrap

Bracket = tuple[str, int, int]  # label, first word, word after the last


@dataclasses.dataclass(frozen=True)
class Counts:
    """The brackets and words of a sentence, counted for its scores."""

    matched: int  # brackets that are in both trees
    gold: int
    found: int
    crossing: int  # found brackets that partly overlap a gold bracket
    words: int  # punctuation included
    scored_words: int
    right_tags: int  # of the scored words


def bracketing(
    found: Sequence[Tree], gold: Sequence[Tree], with_tags: bool = True
) -> dict[str, Any]:
    """Return `f1`, `precision`, `recall`, `exact_match` and so on, most in per cent.

    The `f1_interval` is the 95 % bootstrap interval [low, high] over sentences. `tag_accuracy`
    requires tags in the found trees, and `f1_short` requires a short sentence.
    """
    if not found or len(found) != len(gold):
        raise UserError(f"{len(found)} trees to score, but {len(gold)} gold trees")
    counts = [count(one, other) for one, other in zip(found, gold, strict=True)]
    table = table_of(counts)
    short = np.array([each.words <= SHORT for each in counts])
    of_short = {"f1_short": f1(*table[short].sum(axis=0))} if short.any() else {}
    matched, in_gold, in_found = table.sum(axis=0)
    crossing = np.array([each.crossing for each in counts])
    scores = {
        "f1": f1(matched, in_gold, in_found),
        "f1_interval": interval(sampled_f1(table)),
        "precision": share(matched, in_found),
        "recall": share(matched, in_gold),
        **of_short,
        "exact_match": 100 * float(np.mean((table == table[:, :1]).all(axis=1))),
        "crossing_brackets": float(crossing.mean()),
        "no_crossing": 100 * float(np.mean(crossing == 0)),
    }
    if with_tags:
        right = sum(each.right_tags for each in counts)
        scores["tag_accuracy"] = share(right, sum(each.scored_words for each in counts))
    return scores


def compare_trees(
    ours: Sequence[Tree], theirs: Sequence[Tree], gold: Sequence[Tree], names: tuple[str, str]
) -> dict[str, dict[str, Any]]:
    """Compare the F1 of two parsers; the result is like `compare` for translations.

    The p-value of the paired bootstrap is sacreBLEU's: the share of samples whose difference is at
    least as far from the mean difference as the difference over all sentences is from 0.
    """
    tables = [
        table_of([count(one, other) for one, other in zip(trees, gold, strict=True)])
        for trees in (ours, theirs)
    ]
    scores = [f1(*table.sum(axis=0)) for table in tables]
    samples = [sampled_f1(table) for table in tables]
    difference, differences = scores[0] - scores[1], samples[0] - samples[1]
    as_far = np.abs(differences - differences.mean()) >= abs(difference)
    p_value = float((np.sum(as_far) + 1) / (SAMPLES + 1))
    systems = [
        {"score": score, "mean": float(f1s.mean()), "interval": interval(f1s)}
        for score, f1s in zip(scores, samples, strict=True)
    ]
    return {"f1": verdict(names, systems, p_value)}


def table_of(counts: Sequence[Counts]) -> np.ndarray:
    """Return the numbers of matched, gold and found brackets of each sentence (N, 3), for F1."""
    return np.array([(each.matched, each.gold, each.found) for each in counts])


def sampled_f1(table: np.ndarray) -> np.ndarray:
    """Return F1 of samples of the sentences; tables of equal length have the same samples."""
    draws = np.random.default_rng(SEED).integers(len(table), size=(SAMPLES, len(table)))
    return np.array([f1(*table[rows].sum(axis=0)) for rows in draws])


def interval(samples: np.ndarray) -> list[float]:
    return np.percentile(samples, [2.5, 97.5]).tolist()


def count(found: Tree, gold: Tree) -> Counts:
    """Compare the tree of a sentence with its gold tree; `UserError` if their words differ."""
    gold_leaves, found_leaves = gold.leaves(), found.leaves()
    if [leaf.word for leaf in gold_leaves] != [leaf.word for leaf in found_leaves]:
        raise UserError(f"the trees differ in their words: {' '.join(gold.words())!r}")
    kept = [leaf.label not in PUNCTUATION for leaf in gold_leaves]
    in_gold, in_found = brackets(gold, kept), brackets(found, kept)
    tags = [
        (one.label, other.label)
        for one, other, is_kept in zip(found_leaves, gold_leaves, kept, strict=True)
        if is_kept
    ]
    return Counts(
        matched=(in_gold & in_found).total(),
        gold=in_gold.total(),
        found=in_found.total(),
        crossing=sum(
            number
            for bracket, number in in_found.items()
            if any(crosses(bracket, other) for other in in_gold)
        ),
        words=len(kept),
        scored_words=len(tags),
        right_tags=sum(one == other for one, other in tags),
    )


def brackets(tree: Tree, kept: Sequence[bool]) -> Counter[Bracket]:
    """Return how often each bracket occurs in a tree; spans count only `kept` words."""
    places = np.cumsum([0, *kept]).tolist()
    result: Counter[Bracket] = Counter()

    def walk(part: Tree, begin: int) -> int:
        """Count the brackets of a part whose first word is `begin`; return the word after it."""
        if part.word:
            return begin + 1
        end = begin
        for child in part.children:
            end = walk(child, end)
        if places[begin] < places[end] and part.label != TOP:
            result[EQUAL.get(part.label, part.label), places[begin], places[end]] += 1
        return end

    walk(tree, 0)
    return result


def crosses(one: Bracket, other: Bracket) -> bool:
    (_, a, b), (_, c, d) = one, other
    return a < c < b < d or c < a < d < b


def share(part: int, whole: int) -> float:
    return 100 * float(part) / float(whole) if whole else 0.0


def f1(matched: int, gold: int, found: int) -> float:
    """Return 2PR / (P + R) in per cent, the share of matches among all brackets."""
    return share(2 * matched, gold + found)
