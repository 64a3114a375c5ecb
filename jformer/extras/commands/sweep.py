"""Run a sweep: every point is a process with its own run directory.

FILE is a Python file with CONFIG and sweep(), a generator of the changes of each point. Config keys
on the command line are set for all points.

Rerun the same command to resume a sweep: it skips complete points, resumes stopped points and
retries failed points. Each point logs to log.txt in its run directory. Prints the table of results;
the exit status is 1 if a point failed.
"""

from pathlib import Path
from typing import Any

from jformer import cli
from jformer.console import say
from jformer.errors import RunError


def add_flags(parser: cli.Parser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", help="the sweep")
    parser.add_path("--workdir", "DIR", "folder of the runs (default: runs/NAME)")
    text = "points that run at the same time and share cores and GPUs (default: 1)"
    add("--jobs", default=1, type=int, metavar="N", help=text)
    add("--seeds", default=1, type=int, metavar="N", help="runs per point (default: 1)")
    text = "run the points whose names match, such as '*num_heads*'"
    add("--only", default="", metavar="PATTERN", help=text)
    add("--dry_run", action="store_true", help="print the commands")
    text = "submit an array of jobs with submitit's parameters, such as slurm:gpus_per_node=1"
    add("--submit", default="", metavar="slurm:KEY=VALUE,...", help=text)
    cli.add_keys(parser)


def main(args: Any) -> int:
    from jformer.extras.report import markdown, read_rows
    from jformer.extras.sweep import make_executor, make_points, run_here, run_on_cluster

    folder = Path(args.workdir or f"runs/{Path(args.file).stem}")
    keys = [f"--config.{key}={value}" for key, value in args.overrides.items()]
    points = make_points(args.file, folder, keys, args.only, args.seeds)
    if args.dry_run:
        for point in points:
            print(point.as_typed)
        return 0
    executor = make_executor(args.submit, args.jobs, folder) if args.submit else None
    waiting = [point for point in points if not point.is_complete]
    say(f"{len(points)} points, {len(points) - len(waiting)} complete")
    failed = run_on_cluster(waiting, executor) if executor else run_here(waiting, args.jobs)
    if rows := read_rows([point.workdir for point in points]):
        print(markdown(rows))
    if failed:
        raise RunError(f"{len(failed)} of {len(points)} points failed: {', '.join(failed)}")
    return 0
