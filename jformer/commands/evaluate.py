"""Score a run on its validation and test splits, or on other pairs.

Prints a table on a terminal, and all scores as JSON otherwise.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

from jformer import cli
from jformer.console import aligned
from jformer.errors import UserError
from jformer.rundir import RESULTS


def add_flags(parser: cli.Parser) -> None:
    parser.add_path("--data", "PAIRS", f"{cli.PAIRS}; sacrebleu:NAME is a test set of sacreBLEU")
    text = "more reference translations for --data"
    parser.add_path("--references", "FILE,FILE", text, type=cli.paths, default=[])
    parser.add_path("--against", "RUN[@C]", "run to compare with, using the paired bootstrap")
    parser.add_argument("--format", choices=("text", "json"), help="only the table, or only JSON")
    cli.add_run_flags(parser)


def main(args: Any) -> int:
    config = cli.config_of(args)
    if args.references and not args.data:
        raise UserError("--references: requires --data=PAIRS")

    from jformer.results import named_test_set, own_test_sets, score_all
    from jformer.run import load, run_and_checkpoint

    if args.data:
        tests = {args.data: named_test_set(args.data, args.references, config)}
    else:
        tests = own_test_sets(config)
    run = cli.open_run(args, config)
    against = None
    if args.against:
        against = load(*run_and_checkpoint(args.against), plugins=args.plugins)
    print_scores(args.format, score_all(run, tests, against), run)
    return 0


def print_scores(format: str | None, scores: dict[str, Any], run: Any) -> None:
    """Print the table and the path of results.json, or the scores as one line of JSON.

    By default, a terminal gets the table and any other output gets JSON.
    """
    if format == "text" or (format is None and sys.stdout.isatty()):
        print(f"{table(scores, run.scorer.labels)}\n\nscores in {run.workdir / RESULTS}")
    else:
        print(json.dumps(scores))


def table(results: dict[str, dict[str, Any]], labels: Mapping[str, str]) -> str:
    """Format `{test set: scores}`: a row per score, then signatures, then a line per comparison."""
    rows = [["", *results]]
    for name, label in {**labels, "perplexity": "perplexity"}.items():
        values = [scores.get(name) for scores in results.values()]
        if any(value is not None for value in values):
            rows.append([label, *map(cell, values)])
    signatures: dict[str, str] = {}
    comparisons = []
    for test, scores in results.items():
        signatures |= {name: scores[name] for name in scores if name.startswith("signature")}
        for metric, verdict in scores.get("against", {}).items():
            comparison = [f"{test}, {labels.get(metric, metric)}"]
            for system in verdict["systems"]:
                comparison.append(f"{system['name']} {cell(system['score'])}")
            comparison.append(f"p {verdict['p_value']:.3f}")
            comparison.append(f"better: {verdict['better'] or 'neither'}")
            comparisons.append("  ".join(comparison))
    lines = [f"{name}: {signature}" for name, signature in signatures.items()]
    blocks = [aligned(rows), "\n".join(lines), "\n".join(comparisons)]
    return "\n\n".join(filter(None, blocks))


def cell(value: Any) -> str:
    """Format a number or an interval with two decimals, None as a dash."""
    if value is None:
        return "-"
    numbers = value if isinstance(value, list) else [value]
    return "-".join(f"{number:.2f}" for number in numbers)
