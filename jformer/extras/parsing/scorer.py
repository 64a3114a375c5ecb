"""The scorer of parsers: it converts trees and compares their brackets."""

from collections.abc import Sequence
from typing import Any

from jformer.components import arguments, name_of
from jformer.config import Config
from jformer.data.corpora import Corpus, Split
from jformer.data.vocabulary import Vocabularies
from jformer.evaluation.metrics import Validation
from jformer.evaluation.scorer import Translations
from jformer.extras.parsing.bracketing import bracketing, compare_trees
from jformer.extras.parsing.treebank import matching
from jformer.extras.parsing.trees import Tree, as_target, escaped, open_trees, tree_of, trees_in
from jformer.extras.parsing.words import with_classes

LABELS = {
    "f1": "labelled F1",
    "f1_interval": "  95 % interval",
    "precision": "  precision",
    "recall": "  recall",
    "f1_short": "  F1 up to 40 words",
    "exact_match": "exact match, %",
    "crossing_brackets": "crossing brackets per sentence",
    "no_crossing": "sentences without, %",
    "tag_accuracy": "tag accuracy",
    "well_formed": "well-formed without repair, %",
}


class Trees(Translations):
    """Labelled bracketing scores of linearised trees, which users see in Penn bracketing."""

    labels = LABELS

    def open_pairs(self, name: str, config: Config) -> Corpus:
        return open_trees(matching(name), tags_of(config))

    def source(self, sentence: str, vocabularies: Vocabularies) -> str:
        return with_classes(escaped(sentence), vocabularies.source)

    def target(self, target: str, sentence: str, config: Config) -> str:
        return as_target(target, escaped(sentence), tags_of(config))

    def output(self, text: str, sentence: str) -> tuple[str, bool | None]:
        words = escaped(sentence).split()
        if not words:
            return text, None
        tree, well_formed = tree_of(text, words)
        return str(tree), well_formed

    def scores(
        self,
        outputs: Sequence[str],
        well_formed: Sequence[bool | None],
        test: Split,
        config: Config,
    ) -> dict[str, Any]:
        with_tags = tags_of(config) == "keep"
        return {
            **bracketing(read(outputs), test.gold, with_tags=with_tags),
            "well_formed": 100 * sum(each is True for each in well_formed) / len(outputs),
        }

    def compare(
        self,
        ours: Sequence[str],
        theirs: Sequence[str],
        test: Split,
        names: tuple[str, str],
        config: Config,
    ) -> dict[str, Any]:
        return compare_trees(read(ours), read(theirs), test.gold, names)


def f1(validation: Validation) -> float:
    """Return the labelled F1 of the validation outputs."""
    pairs = zip(validation.outputs, map(str.split, validation.sources), strict=True)
    return bracketing([tree_of(*pair)[0] for pair in pairs], validation.gold)["f1"]


def tags_of(config: Config) -> str:
    if name_of(config.data.name) != "parsing":
        raise config.data.wrong("scorer", "requires config.data.name=parsing")
    return arguments("dataset", config.data.name)["tags"]


def read(outputs: Sequence[str]) -> list[Tree]:
    return [*trees_in((text.encode() for text in outputs), "outputs")]
