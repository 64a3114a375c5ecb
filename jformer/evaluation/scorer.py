"""The scorer of test sets, which `config.data.scorer` names.

A scorer also converts between the user's texts and the texts that the model reads and writes. For
translations, both are the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jformer.config import Config
from jformer.data.corpora import Corpus, Split, open_corpus
from jformer.data.vocabulary import Vocabularies
from jformer.evaluation.scores import LABELS, compare, score


class Translations:
    """Scores of translations by sacreBLEU, and the base class of other scorers."""

    # The labels of the scores in a table, in its order. The first is the main score.
    labels: Mapping[str, str] = LABELS

    def open_pairs(self, name: str, config: Config) -> Corpus:
        """Open pairs that a command or `config.data.train` names."""
        return open_corpus(name, config.data.source_language, config.data.target_language)

    def source(self, sentence: str, vocabularies: Vocabularies) -> str:
        """Return the text that the model reads for a sentence, also in training."""
        return sentence

    def target(self, target: str, sentence: str, config: Config) -> str:
        """Return the model's target for a text to score."""
        return target

    def output(self, text: str, sentence: str) -> tuple[str, bool | None]:
        """Return the text for an output of the model, and whether it was well-formed, if known."""
        return text, None

    def scores(
        self,
        outputs: Sequence[str],
        well_formed: Sequence[bool | None],
        test: Split,
        config: Config,
    ) -> dict[str, Any]:
        """Return scores by name."""
        return score(outputs, test.references, config.data.target_language)

    def compare(
        self,
        ours: Sequence[str],
        theirs: Sequence[str],
        test: Split,
        names: tuple[str, str],
        config: Config,
    ) -> dict[str, Any]:
        """Return the paired comparison of two systems by score."""
        return compare(ours, theirs, test.references, names, config.data.target_language)
