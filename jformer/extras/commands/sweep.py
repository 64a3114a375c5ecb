"""Run a sweep: every point is a process with a run directory of its own.

    sweep FILE [--workdir=runs/NAME] [--jobs=1] [--seeds=1] [--only=PATTERN] [--rounds=1]
          [--dry_run] [--submit=slurm:KEY=VALUE,...]

FILE is Python, with CONFIG and sweep(), a generator of what each point changes. --jobs is how many
points run at a time and share cores and GPUs, --seeds how many runs a point has, --only takes those
whose names match, as '*num_heads*', and --config.KEY=VALUE is for all points. --dry_run prints the
commands. --submit makes an array of jobs, with submitit's parameters, as slurm:gpus_per_node=1.

--rounds=3 searches by successive halving: round 1 trains all points with a quarter of their steps,
round 2 the half with the better validation scores (BLEU, or F1 for trees; means over seeds) with
half of them, and round 3 the half of these with all. The first runs are in round-1 and round-2.

The same command again continues a sweep: complete points are skipped, stopped ones resume, failed
ones are tried again. What a process says is in log.txt of its run directory. Prints the table of
results; the exit status is 1 where a point failed.
"""

from pathlib import Path

from jformer.command_line import parse, positive
from jformer.console import say
from jformer.errors import RunError, UserError

FLAGS: dict[str, str | bool | None] = {
    "workdir": "",
    "jobs": "1",
    "seeds": "1",
    "only": "",
    "rounds": "1",
    "dry_run": False,
    "submit": "",
}


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        raise UserError("FILE is missing, as in sweep heads.py --jobs=2; it comes before the flags")

    from jformer.extras.sweeps.cluster import Cluster
    from jformer.extras.sweeps.halving import make_rounds, promote
    from jformer.extras.sweeps.points import load_sweep, make_points
    from jformer.extras.sweeps.pool import Pool, places
    from jformer.extras.sweeps.runner import run_points
    from jformer.extras.views.report import markdown, read_rows

    path, *flags = arguments
    sweep = load_sweep(path)
    if own := next((flag for flag in flags if flag.startswith(("--config=", "-config="))), None):
        raise UserError(f"{own}: the config of a sweep is CONFIG in {path}")
    if loose := next((flag for flag in flags if not flag.startswith("-")), None):
        raise UserError(f"{loose!r} is no flag; values follow a flag's =")
    flag, _ = parse([f"--config={sweep.CONFIG}", *flags], FLAGS)
    jobs, seeds, rounds = (
        positive(name, flag[name].value, int) for name in ("jobs", "seeds", "rounds")
    )
    folder = Path(flag.workdir or f"runs/{Path(path).stem}")
    of_config = [flag for flag in flags if flag.startswith(("--config.", "-config."))]
    points = make_points(sweep, folder, of_config, flag.only, seeds)
    at_work, *later = make_rounds(points, rounds)
    if flag.dry_run:
        for point in at_work:
            print(point.as_typed)
        if later:
            say(f"this is round 1 of {rounds}; its scores choose what goes on to round 2")
        return 0
    workers = Cluster(flag.submit, jobs, folder) if flag.submit else Pool(places(jobs))
    failed = run_points(at_work, workers)
    print(markdown(read_rows([point.workdir for point in at_work])))
    for number, of_round in enumerate(later, start=2):
        at_work = promote(at_work, of_round)
        if not at_work:
            break
        say(f"round {number} of {rounds}: {', '.join(point.name for point in at_work)}")
        failed += run_points(at_work, workers)
        print("\n" + markdown(read_rows([point.workdir for point in at_work])))
    if failed:
        raise RunError(f"{len(failed)} of {len(points)} points failed: {', '.join(failed)}")
    return 0
