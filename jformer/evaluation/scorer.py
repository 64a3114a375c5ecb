"""The scorer of test sets, metrics of validation outputs, and sacreBLEU's test sets.

`config.data.scorer` names the scorer. It also converts between the user's texts and the texts that
the model reads and writes. `config.train.metrics` names the metrics: functions of a `Validation`.
Higher is better.
"""

import dataclasses
import html
from collections.abc import Mapping, Sequence
from typing import Any

import sacrebleu
from sacrebleu.dataset.fake_sgml import FakeSGMLDataset
from sacrebleu.metrics import BLEU, CHRF

from jformer.components import find
from jformer.config import Config
from jformer.data.corpora import Corpus, Split, open_corpus
from jformer.data.vocabulary import Vocabularies
from jformer.errors import UserError
from jformer.evaluation.scores import LABELS, Texts, compare, score, tokenizer_for


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
        self, outputs: Texts, well_formed: list[bool | None], test: Split, config: Config
    ) -> dict[str, Any]:
        """Return scores by name."""
        return score(outputs, test.references, config.data.target_language)

    def compare(
        self, ours: Texts, theirs: Texts, test: Split, names: tuple[str, str], config: Config
    ) -> dict[str, Any]:
        """Return the paired comparison of two systems by score."""
        return compare(ours, theirs, test.references, names, config.data.target_language)


@dataclasses.dataclass(frozen=True)
class Validation:
    """The first pairs of the validation split, their outputs, and the parameters behind them."""

    sources: Sequence[str]
    outputs: Sequence[str]
    references: Sequence[str]
    params: Any
    config: Config
    gold: Sequence[Any] = ()  # see Split


def score_by(text: str, validation: Validation) -> float:
    """Return the score of the metric that a component string names."""
    return float(find("config.train.metrics", "metric", text)(validation))


def bleu(validation: Validation) -> float:
    """Return sacreBLEU's BLEU."""
    metric = BLEU(force=True, tokenize=tokenizer_for(validation.config.data.target_language))
    return metric.corpus_score(validation.outputs, [validation.references]).score


def chrf(validation: Validation) -> float:
    """Return sacreBLEU's chrF."""
    return CHRF().corpus_score(validation.outputs, [validation.references]).score


def open_test_set(name: str, source_language: str, target_language: str) -> list[list[str]]:
    """Return the sources, and the references of each translator, of a test set of sacreBLEU.

    sacreBLEU downloads a set once and keeps it in $SACREBLEU, or ~/.sacrebleu. Its `wmt14` lacks
    266 of the 3,003 English-German sentences of newstest2014; `wmt14/full` has all of them.
    """
    pair = f"{source_language}-{target_language}"
    try:
        files = [sacrebleu.get_source_file(name, pair), *sacrebleu.get_reference_files(name, pair)]
    # A name, the network and the archive raise errors of any type, or sacreBLEU exits.
    except (Exception, SystemExit) as error:
        raise UserError(
            f"{name}, {pair}: {error}. `sacrebleu --list` prints all test sets. Without a network, "
            f"copy the folder {sacrebleu.SACREBLEU_DIR}/{name} from a machine that has it"
        ) from error
    streams = []
    for path in files:
        with open(path, encoding="utf-8", newline="\n") as file:
            streams.append([line.removesuffix("\n") for line in file])
    # sacreBLEU leaves escapes such as &amp; in text from SGML.
    is_escaped = isinstance(sacrebleu.DATASETS[name], FakeSGMLDataset)
    return [[*map(html.unescape, lines)] if is_escaped else lines for lines in streams]
