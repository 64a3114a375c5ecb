"""A text table of scores: a row per score, a column per split, signatures and details below."""

from typing import Any

from jformer.console import aligned
from jformer.evaluation.scores import METRICS, SIGNATURES


def table(results: dict[str, dict[str, Any]]) -> str:
    """Format `{split: scores}` as blocks of text, without rows and blocks that no split has.

    `by_length` of a split is the result of the function of this name, `against` that of `compare`.
    """
    blocks = [score_rows(results)]
    for split, scores in results.items():
        blocks.append(length_rows(split, scores.get("by_length", [])))
        blocks.append(comparison_rows(split, scores.get("against", {})))
    # The first row of each block is its heading.
    texts = [aligned(block) for block in blocks if len(block) > 1]
    texts.insert(1, "\n".join(signatures(results)))
    return "\n\n".join(text for text in texts if text)


def score_rows(results: dict[str, dict[str, Any]]) -> list[list[str]]:
    heading = ["", *results]
    rows = [
        [metric.label, *(cell(scores.get(name)) for scores in results.values())]
        for name, metric in METRICS.items()
        if any(name in scores for scores in results.values())
    ]
    return [heading, *rows]


def signatures(results: dict[str, dict[str, Any]]) -> list[str]:
    """Return a line per score; several where splits differ, as in their number of references."""
    lines = []
    for name, key in SIGNATURES.items():
        found = (scores[key] for scores in results.values() if key in scores)
        lines += [f"{METRICS[name].label}: {signature}" for signature in dict.fromkeys(found)]
    return lines


def length_rows(split: str, groups: list[dict[str, Any]]) -> list[list[str]]:
    heading = [f"{split}, words of the source", "pairs", "BLEU", "chrF", "length ratio"]
    rows = [
        [group["words"], f"{group['pairs']:,}"]
        + [cell(group[name]) for name in ("bleu", "chrf", "length_ratio")]
        for group in groups
    ]
    return [heading, *rows]


def comparison_rows(split: str, against: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Return a row per metric: scores with intervals, p, and the significantly better system."""
    rows = []
    names: list[str] = []
    for metric, told in against.items():
        names = [system["name"] for system in told["systems"]]
        if told["p_value"] is None:
            scores, p_value = [cell(s["score"]) for s in told["systems"]], "-"
            better = "not tested"
        else:
            scores = [f"{cell(s['score'])} ({cell(s['interval'])})" for s in told["systems"]]
            p_value = f"{told['p_value']:.3f}"
            better = told["better"] if told["significant"] else "neither"
        rows.append([METRICS[metric].label, *scores, p_value, better])
    return [[f"{split}, paired bootstrap", *names, "p", "better, p < 0.05"], *rows]


def cell(value: Any) -> str:
    """Format a number or an interval with two decimals, None as a dash."""
    if value is None:
        return "-"
    numbers = value if isinstance(value, list) else [value]
    return "-".join(f"{number:.2f}" for number in numbers)
