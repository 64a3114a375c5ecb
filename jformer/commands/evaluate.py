"""Score a run on its validation and test splits, or on other pairs.

Prints a table, and all scores as JSON in the last line if standard output is not a terminal.
"""

import json
import sys
from pathlib import Path
from typing import Any

from jformer import cli
from jformer.errors import UserError
from jformer.rundir import RESULTS


def add_flags(parser: cli.Parser) -> None:
    parser.add_path("--data", "PAIRS", f"{cli.PAIRS}; sacrebleu:NAME is a test set of sacreBLEU")
    parser.add_path("--references", "FILE,FILE", "more reference translations for --data")
    parser.add_path("--against", "RUN[@C]", "a run to compare with, by the paired bootstrap")
    parser.add_argument("--format", choices=("text", "json"), help="the table alone, or JSON alone")
    cli.add_run_flags(parser)


def main(args: Any) -> int:
    config = cli.config_of(args)
    if args.references and not args.data:
        raise UserError(f"--references={args.references}: requires --data=PAIRS")

    from jformer.evaluation.table import table
    from jformer.results import named_test_set, own_test_sets, read_results, score_all
    from jformer.run import load
    from jformer.training.restore import run_and_checkpoint

    read_results(Path(args.workdir))  # raises for damaged ones before any work
    if args.data:
        tests = {args.data: named_test_set(args.data, args.references, config)}
    else:
        tests = own_test_sets(config)
    run = cli.open_run(args, config)
    against = None
    if args.against:
        plugins = cli.files_in(args.plugins)
        against = load(*run_and_checkpoint(args.against), plugins=plugins)
    scores = score_all(run, tests, against)
    print_scores(args.format, scores, run.workdir, table(scores), always_table=True)
    return 0


def print_scores(
    format: str | None,
    scores: dict[str, Any],
    workdir: Path,
    table: str,
    always_table: bool = False,
) -> None:
    """Print the table and the path of results.json, or the scores as one line of JSON.

    Without a format, a terminal gets the table and everything else gets JSON, with
    `always_table` after the table.
    """
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    if format == "text" or (not format and on_terminal):
        path = workdir / RESULTS
        print(table, *(["", f"scores in {path}"] if path.exists() else []), sep="\n")
        return
    if always_table and not format:
        print(table)
    print(json.dumps(scores))
