"""Metrics of validation outputs, which `config.train.metrics` names.

A metric is a function of a `Validation`. Higher is better: negate an error rate. `BUILT_IN` in
components.py lists the built-in metrics. Your own metric is FILE.py:NAME and needs no change here.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics import BLEU, CHRF

from jformer.components import find
from jformer.config import Config
from jformer.evaluation.scores import tokenizer_for


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
