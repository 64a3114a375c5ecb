"""The scorer of parsers: labelled bracketing scores by the conventions of EVALB (COLLINS.prm).

A bracket is the label of a constituent with the words that it spans. Spans exclude punctuation, as
tagged in the gold tree. A constituent of only punctuation and the root TOP are not brackets. ADVP
and PRT are equal.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jformer.components import parse
from jformer.config import Config
from jformer.data.corpora import Corpus, Split
from jformer.data.vocabulary import Vocabularies
from jformer.errors import UserError
from jformer.evaluation.scorer import Translations, Validation
from jformer.evaluation.scores import Texts, verdict
from jformer.extras.parsing.trees import TOP, Tree, linearise, open_trees, tree_of, trees_in
from jformer.extras.parsing.words import with_classes

PUNCTUATION = frozenset({",", ":", "``", "''", "."})
EQUAL = {"PRT": "ADVP"}
SAMPLES, SEED = 1000, 12345  # of the bootstrap
LABELS = {
    "f1": "labelled F1",
    "f1_interval": "  95 % interval",
    "precision": "  precision",
    "recall": "  recall",
    "exact_match": "exact match, %",
    "well_formed": "well-formed without repair, %",
}


class Trees(Translations):
    """Labelled bracketing scores of linearised trees, which users see in Penn bracketing."""

    labels = LABELS

    def open_pairs(self, name: str, config: Config) -> Corpus:
        return open_trees(name, tags_of(config))

    def source(self, sentence: str, vocabularies: Vocabularies) -> str:
        return with_classes(escaped(sentence), vocabularies.source)

    def target(self, target: str, sentence: str, config: Config) -> str:
        """Linearise a tree in Penn bracketing; a linearised tree is returned unchanged."""
        if not target.rstrip().endswith(")"):
            return target
        trees = [*trees_in([target], "target")]
        if [tree.words() for tree in trees] != [escaped(sentence).split()]:
            raise UserError(f"target {target!r:.99}: must be a tree of the words {sentence!r:.99}")
        return linearise(trees[0], tags_of(config))

    def output(self, text: str, sentence: str) -> tuple[str, bool | None]:
        words = escaped(sentence).split()
        if not words:
            return text, None
        tree, well_formed = tree_of(text, words)
        return str(tree), well_formed

    def scores(
        self, outputs: Texts, well_formed: list[bool | None], test: Split, config: Config
    ) -> dict[str, Any]:
        counts_N3 = count_all(trees_in(outputs, "outputs"), test.gold)
        matched, gold, found = counts_N3.sum(axis=0)
        return {
            "f1": f1_of(counts_N3),
            "f1_interval": interval(sampled_f1(counts_N3)),
            "precision": share(matched, found),
            "recall": share(matched, gold),
            "exact_match": 100 * float(np.mean((counts_N3 == counts_N3[:, :1]).all(axis=1))),
            "well_formed": 100 * sum(each is True for each in well_formed) / len(outputs),
        }

    def compare(
        self, ours: Texts, theirs: Texts, test: Split, names: tuple[str, str], config: Config
    ) -> dict[str, Any]:
        """Compare the F1 of two parsers by the paired bootstrap.

        The p-value is sacreBLEU's: the share of samples whose difference is at least as far from
        the mean difference as the difference over all sentences is from 0.
        """
        tables = [count_all(trees_in(each, "outputs"), test.gold) for each in (ours, theirs)]
        scores, samples = [*map(f1_of, tables)], [*map(sampled_f1, tables)]
        systems = [
            {"name": name, "score": score, "mean": float(f1s.mean()), "interval": interval(f1s)}
            for name, score, f1s in zip(names, scores, samples, strict=True)
        ]
        difference, differences = scores[0] - scores[1], samples[0] - samples[1]
        as_far = np.abs(differences - differences.mean()) >= abs(difference)
        return {"f1": verdict(systems, float((np.sum(as_far) + 1) / (SAMPLES + 1)))}


def f1(validation: Validation) -> float:
    """Return the labelled F1 of the validation outputs, a metric."""
    return f1_of(count_all(trees_in(validation.outputs, "outputs"), validation.gold))


def tags_of(config: Config) -> str:
    return parse(config.data.name).options.get("tags", "XX")


def escaped(sentence: str) -> str:
    """Return a sentence as treebanks have it, with -LRB- and -RRB- for round brackets."""
    return sentence.replace("(", "-LRB-").replace(")", "-RRB-")


def count_all(found: Iterable[Tree], gold: Iterable[Tree]) -> np.ndarray:
    """Return the numbers of matched, gold and found brackets of each sentence (N, 3)."""
    return np.array([count(*pair) for pair in zip(found, gold, strict=True)])


def count(found: Tree, gold: Tree) -> tuple[int, int, int]:
    """Return the numbers of matched, gold and found brackets of two trees of the same words."""
    kept = [leaf.label not in PUNCTUATION for leaf in gold.leaves()]
    in_gold, in_found = brackets(gold, kept), brackets(found, kept)
    return (in_gold & in_found).total(), in_gold.total(), in_found.total()


def brackets(tree: Tree, kept: Sequence[bool]) -> Counter[tuple[str, int, int]]:
    """Return how often a tree has each label from a word to a word, counting only `kept` words."""
    result: Counter[tuple[str, int, int]] = Counter()
    begins: list[int] = []  # of the open brackets
    position, words = 0, iter(kept)
    for token in linearise(tree, "XX").split():
        if token[0] == "(":
            begins.append(position)
        elif token[0] == ")":
            label, begin = token[1:], begins.pop()
            if begin < position and label != TOP:
                result[EQUAL.get(label, label), begin, position] += 1
        else:
            position += next(words)
    return result


def f1_of(counts_N3: np.ndarray) -> float:
    """Return 2PR / (P + R) in per cent, the share of matches among all brackets."""
    matched, gold, found = counts_N3.sum(axis=0)
    return share(2 * matched, gold + found)


def share(part: int, whole: int) -> float:
    return 100 * float(part) / float(whole) if whole else 0.0


def sampled_f1(counts_N3: np.ndarray) -> np.ndarray:
    """Return F1 of samples of the sentences; tables of equal length have the same samples."""
    N = len(counts_N3)
    draws = np.random.default_rng(SEED).integers(N, size=(SAMPLES, N))
    return np.array([f1_of(counts_N3[rows]) for rows in draws])


def interval(samples: np.ndarray) -> list[float]:
    return np.percentile(samples, [2.5, 97.5]).tolist()
