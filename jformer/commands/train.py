"""Train a model, then score it.

Rerun the same command to resume a run, or to print the scores of a complete one. Scores are printed
as a table on a terminal, and as JSON otherwise.
"""

import dataclasses
from pathlib import Path
from typing import Any

from jformer import cli
from jformer.commands.evaluate import print_scores
from jformer.config import component_files
from jformer.rundir import default_workdir


def add_flags(parser: cli.Parser) -> None:
    parser.add_path("--workdir", "DIR", "run directory (default: runs/CONFIG-DATASET-LANGUAGES)")
    text = "write JAX's profile of COUNT steps, starting at STEP"
    parser.add_argument("--profile", default="", metavar="STEP:COUNT", help=text)
    parser.add_argument("--format", choices=("text", "json"), help="only the table, or only JSON")
    cli.add_config_flags(parser)


def main(args: Any) -> int:
    config = cli.config_of(args)

    from jformer.results import known_scores, score_all
    from jformer.run import load
    from jformer.training.loop import train
    from jformer.training.sharding import is_first, join

    workdir = Path(args.workdir or default_workdir(config))
    join(config.parallel)
    splits = train(config, workdir, args.profile)
    if not is_first():
        return 0
    run = load(workdir, plugins=component_files(config))
    run = run.with_decode(**dataclasses.asdict(config.decode))
    scores = known_scores(run, splits)
    if scores.keys() != splits.keys():
        scores = score_all(run, splits)
    print_scores(args.format, scores, run)
    return 0
