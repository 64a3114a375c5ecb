"""A significance test for two systems that translated the same sentences.

sacreBLEU's paired bootstrap (Koehn, 2004) scores both on the same samples of the sentences, drawn
with replacement: 1,000 samples for up to 20,000 pairs, fewer for more pairs. The seed is
$SACREBLEU_SEED, or 12345. The p-value is the probability of a difference at least as large if both
systems were equally good.
"""

import math
from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from jformer.evaluation.scores import bootstrap_samples, interval, ter_for, tokenizer_for

SIGNIFICANT = 0.05


def compare(
    ours: Sequence[str],
    theirs: Sequence[str],
    references: Sequence[Sequence[str]],
    names: tuple[str, str] = ("ours", "theirs"),
    target_language: str = "en",
) -> dict[str, dict[str, Any]]:
    """Return a `verdict` and a `signature` for each of `bleu`, `chrf` and `ter`.

    Each system has the `mean` and the `interval` (95 %) of its scores on the samples.
    """
    metrics: dict[str, Any] = {
        "bleu": BLEU(force=True, tokenize=tokenizer_for(target_language)),
        "chrf": CHRF(),
        **ter_for(target_language),
    }
    systems = list(zip(names, (ours, theirs), strict=True))
    samples = bootstrap_samples(len(ours))
    signatures, columns = PairedTest(systems, metrics, references, "bs", samples)()
    # The first column has the names; the others, in the order of `metrics`, have keys like chrF2.
    _, *results = columns.values()
    return {
        name: {**tested(name, names, pair), "signature": str(signature)}
        for name, pair, signature in zip(metrics, results, signatures.values(), strict=True)
    }


def tested(metric: str, names: tuple[str, str], results: Sequence[Any]) -> dict[str, Any]:
    """Return the verdict on sacreBLEU's results for two systems."""
    # TER is a rate of edits: lower is better, and it can exceed 100.
    is_rate = metric == "ter"
    highest = math.inf if is_rate else 100.0
    systems = []
    for result in results:
        score, mean, half = (float(x) for x in (result.score, result.mean, result.ci))
        systems.append({"score": score, "mean": mean, "interval": interval(mean, half, highest)})
    # For equal scores sacreBLEU counts the samples that differ by more than 0. A system compared
    # with itself has no such samples, and p would be 1/1001.
    p_value = 1.0 if results[0].score == results[1].score else float(results[1].p_value)
    return verdict(names, systems, p_value, lower_is_better=is_rate)


def verdict(
    names: tuple[str, str],
    systems: Sequence[dict[str, Any]],
    p_value: float,
    lower_is_better: bool = False,
) -> dict[str, Any]:
    """Return `systems` with their names, the `p_value`, and the `better` system, if any."""
    ours, theirs = (system["score"] for system in systems)
    first_is_better = ours < theirs if lower_is_better else ours > theirs
    return {
        "systems": [{"name": n, **system} for n, system in zip(names, systems, strict=True)],
        "p_value": p_value,
        "better": "" if ours == theirs else names[0 if first_is_better else 1],
        "significant": p_value < SIGNIFICANT,
    }
