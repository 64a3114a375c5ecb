"""A significance test for two systems that translated the same sentences.

sacreBLEU's paired bootstrap (Koehn, 2004) scores both on the same 1,000 samples of the sentences,
drawn with replacement; the seed is $SACREBLEU_SEED, or 12345. The p-value is the probability of a
difference at least as large if both systems were equally good.
"""

import logging
import math
from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from jformer.evaluation.scores import (
    MOST_PAIRS,
    SAMPLES,
    check_streams,
    interval,
    ter_for,
    tokenizer_for,
)

log = logging.getLogger(__name__)

SIGNIFICANT = 0.05


def compare(
    ours: Sequence[str],
    theirs: Sequence[str],
    references: Sequence[Sequence[str]],
    names: tuple[str, str] = ("ours", "theirs"),
    target_language: str = "en",
    tokenizer: str = "",
) -> dict[str, dict[str, Any]]:
    """Return a dict for each of `bleu`, `chrf` and `ter`; see `score` for the last two arguments.

    Its keys are `systems`, `p_value`, `better`, `significant` and `signature`. `systems` holds the
    `name`, `score`, `mean` and `interval` (95 %) of ours, then of theirs. `better` is the name of
    one of them, or empty where the scores are equal. More than `MOST_PAIRS` pairs are scored
    without a test: `p_value`, `significant`, `mean` and `interval` are None.
    """
    check_streams(ours, [theirs, *references])
    tokenizer = tokenizer or tokenizer_for(target_language)
    metrics = {"bleu": BLEU(force=True, tokenize=tokenizer), "chrf": CHRF()}
    if ter := ter_for(target_language):
        metrics["ter"] = ter
    if len(ours) > MOST_PAIRS:
        log.warning(
            f"{len(ours):,} pairs are scored without the significance test, "
            f"which holds at most {MOST_PAIRS:,} in memory"
        )
        return {
            metric: untested(metric, scorer, (ours, theirs), references, names)
            for metric, scorer in metrics.items()
        }
    systems = list(zip(names, (ours, theirs), strict=True))
    test = PairedTest(systems, metrics, references, test_type="bs", n_samples=SAMPLES)
    signatures, columns = test()
    # The first column holds the names; the others, in the order of `metrics`, have keys like chrF2.
    _, *results = columns.values()
    return {
        metric: {**verdict_of(metric, names, pair), "signature": str(signature)}
        for metric, pair, signature in zip(metrics, results, signatures.values(), strict=True)
    }


def untested(
    metric: str,
    scorer: Any,
    outputs: tuple[Sequence[str], Sequence[str]],
    references: Sequence[Sequence[str]],
    names: tuple[str, str],
) -> dict[str, Any]:
    """Return the scores of two systems by a metric, and which is higher, without a test."""
    systems = [
        {
            "name": name,
            "score": scorer.corpus_score(output, references).score,
            "mean": None,
            "interval": None,
        }
        for name, output in zip(names, outputs, strict=True)
    ]
    found = verdict(systems, None, lower_is_better=metric == "ter")
    return {**found, "signature": str(scorer.get_signature())}


def verdict_of(metric: str, names: tuple[str, str], results: Sequence[Any]) -> dict[str, Any]:
    """Return the verdict of sacreBLEU's two results by a metric."""
    # TER is a rate of edits: lower is better, and it can exceed 100.
    is_rate = metric == "ter"
    most = math.inf if is_rate else 100.0
    systems = [
        {
            "name": name,
            "score": float(result.score),
            "mean": float(result.mean),
            "interval": interval(float(result.mean), float(result.ci), most),
        }
        for name, result in zip(names, results, strict=True)
    ]
    # For equal scores sacreBLEU counts the samples that differ by more than 0. If a system is
    # compared with itself there are none, and p would be 1/1001.
    p_value = 1.0 if results[0].score == results[1].score else float(results[1].p_value)
    return verdict(systems, p_value, lower_is_better=is_rate)


def verdict(
    systems: Sequence[dict[str, Any]], p_value: float | None, lower_is_better: bool = False
) -> dict[str, Any]:
    """Return which of two systems is better, if any, and whether significantly, if tested."""
    ours, theirs = (system["score"] for system in systems)
    first_is_better = ours < theirs if lower_is_better else ours > theirs
    return {
        "systems": [*systems],
        "p_value": p_value,
        "better": "" if ours == theirs else systems[0 if first_is_better else 1]["name"],
        "significant": None if p_value is None else p_value < SIGNIFICANT,
    }
