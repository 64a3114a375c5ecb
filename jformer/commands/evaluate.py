"""Score a run on its validation and test splits, or on other pairs.

    evaluate --workdir=DIR [--data=PAIRS] [--references=FILE,FILE] [--against=RUN[@C]]
             [--format=text|json] [MODEL]

PAIRS can also be sacrebleu:NAME here; --references are more of them, and --against is compared
with the run by the paired bootstrap. Prints a table, and when standard output is not a terminal
all scores as JSON in the last line; --format=text prints the table alone, --format=json JSON alone.
"""

from pathlib import Path

from jformer.command_line import REQUIRED, parse
from jformer.commands.model_flags import OF_MODEL, open_run, plugin_files
from jformer.commands.scores import check_format, print_scores
from jformer.errors import UserError


def main(arguments: list[str]) -> int:
    known = {"workdir": REQUIRED, "data": "", "references": "", "against": "", "format": ""}
    flag, config = parse(arguments, {**known, **OF_MODEL}, of_run=True)
    check_format(flag.format)
    if flag.references and not flag.data:
        raise UserError(f"--references={flag.references}: is for --data=PREFIX")

    from jformer.evaluation.table import table
    from jformer.results import named_test_set, own_test_sets, read_results, score_all
    from jformer.run import load
    from jformer.training.restore import run_and_checkpoint

    read_results(Path(flag.workdir))  # raises for damaged ones before any work
    if flag.data:
        tests = {flag.data: named_test_set(flag.data, flag.references, config)}
    else:
        tests = own_test_sets(config)
    run = open_run(flag, config)
    against = None
    if flag.against:
        against = load(*run_and_checkpoint(flag.against), plugins=plugin_files(flag))
    scores = score_all(run, tests, against)
    print_scores(flag.format, scores, run.workdir, table(scores), always_table=True)
    return 0
