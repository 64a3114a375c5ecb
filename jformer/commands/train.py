"""Train a model, then score it.

    train --config=CONFIG[:DATASET] [--workdir=DIR] [--profile=STEP:COUNT] [--format=text|json]

The same command again resumes the run, or prints the scores of a complete one. A terminal gets a
table of the scores, anything else gets JSON; --format chooses. --profile writes JAX's trace of some
steps.
"""

import dataclasses
from pathlib import Path

from jformer.command_line import parse
from jformer.commands.scores import check_format, print_scores
from jformer.config import component_files
from jformer.console import aligned, say
from jformer.rundir import default_workdir


def main(arguments: list[str]) -> int:
    flag, config = parse(arguments, {"workdir": "", "profile": "", "format": ""})
    check_format(flag.format)

    from jformer.evaluation.table import score_rows
    from jformer.results import as_test_set, known_scores, read_results, score_all
    from jformer.run import load
    from jformer.training.processes import is_first, join
    from jformer.training.provenance import changed_versions
    from jformer.training.setup import check_same_config, describe_complete
    from jformer.training.train import train

    workdir = Path(flag.workdir or default_workdir(config))
    check_same_config(config, workdir)
    read_results(workdir)  # raises for damaged ones before any work
    join(config.parallel)
    splits = train(config, workdir, flag.profile)
    if not is_first():
        return 0
    run = load(workdir, plugins=component_files(config))
    run = run.with_decode(**dataclasses.asdict(config.decode))
    tests = {name: as_test_set(split) for name, split in splits.items()}
    known = known_scores(run, tests)
    if tests.keys() <= known.keys():
        say(describe_complete(config, run.step, workdir))
        for name, stored in known.items():
            if changed := changed_versions(stored.get("versions", {}), config):
                say(f"{name}: was scored with other software: {changed}")
        scores = known
    else:
        scores = score_all(run, tests)
    print_scores(flag.format, scores, workdir, aligned(score_rows(scores)))
    return 0
