"""Run a sweep: every point is a process with a run directory of its own.

FILE is Python, with CONFIG and sweep(), a generator of what each point changes. Config keys on the
command line are set for all points.

--rounds=3 searches by successive halving: round 1 trains all points with a quarter of their steps,
round 2 the better half (by validation BLEU, or F1 for trees; means over seeds) with half of their
steps, and round 3 the better half of these with all steps. The first runs are in round-1 and
round-2.

The same command again resumes a sweep: it skips complete points, resumes stopped ones and retries
failed ones. Each point logs to log.txt in its run directory. Prints the table of results; the exit
status is 1 if a point failed.
"""

from pathlib import Path
from typing import Any

from jformer import cli
from jformer.console import say
from jformer.errors import RunError


def add_flags(parser: cli.Parser) -> None:
    add, whole = parser.add_argument, cli.positive(int)
    add("file", metavar="FILE", help="the sweep")
    parser.add_path("--workdir", "DIR", "folder of the runs (default: runs/NAME)")
    text = "points that run at the same time and share cores and GPUs (default: 1)"
    add("--jobs", default=1, type=whole, metavar="N", help=text)
    add("--seeds", default=1, type=whole, metavar="N", help="runs per point (default: 1)")
    text = "run the points whose names match, such as '*num_heads*'"
    add("--only", default="", metavar="PATTERN", help=text)
    text = "rounds of successive halving (default: 1)"
    add("--rounds", default=1, type=whole, metavar="N", help=text)
    add("--dry_run", action="store_true", help="print the commands")
    text = "submit an array of jobs with submitit's parameters, such as slurm:gpus_per_node=1"
    add("--submit", default="", metavar="slurm:KEY=VALUE,...", help=text)
    cli.add_keys(parser)


def main(args: Any) -> int:
    from jformer.extras.sweeps.cluster import Cluster
    from jformer.extras.sweeps.halving import make_rounds, promote
    from jformer.extras.sweeps.points import load_sweep, make_points
    from jformer.extras.sweeps.pool import Pool, places
    from jformer.extras.sweeps.runner import run_points
    from jformer.extras.views.report import markdown, read_rows

    sweep = load_sweep(args.file)
    folder = Path(args.workdir or f"runs/{Path(args.file).stem}")
    keys = [f"--config.{key}={value}" for key, value in args.overrides.items()]
    points = make_points(sweep, folder, keys, args.only, args.seeds)
    at_work, *later = make_rounds(points, args.rounds)
    if args.dry_run:
        for point in at_work:
            print(point.as_typed)
        if later:
            say(f"this is round 1 of {args.rounds}; its scores decide what round 2 trains")
        return 0
    workers = Cluster(args.submit, args.jobs, folder) if args.submit else Pool(places(args.jobs))
    failed = run_points(at_work, workers)
    print(markdown(read_rows([point.workdir for point in at_work])))
    for number, of_round in enumerate(later, start=2):
        at_work = promote(at_work, of_round)
        if not at_work:
            break
        say(f"round {number} of {args.rounds}: {', '.join(point.name for point in at_work)}")
        failed += run_points(at_work, workers)
        print("\n" + markdown(read_rows([point.workdir for point in at_work])))
    if failed:
        raise RunError(f"{len(failed)} of {len(points)} points failed: {', '.join(failed)}")
    return 0
