"""Run a sweep: every point is a process with a run directory of its own.

    python -m experiments.run experiments/NAME.py [--workdir=runs/NAME] [--jobs=1] [--seeds=1]
                              [--only=PATTERN] [--dry_run] [--submit=slurm:KEY=VALUE,...]
                              [--config.KEY=VALUE ...]

    --workdir  folder of the run directories, which are named after what a point changes
    --jobs     number of points that run at the same time and share the machine's cores and GPUs
    --seeds    runs per point, with the config's seed and the numbers that follow it
    --only     run the points whose name matches, as '*num_heads*', with all their seeds
    --dry_run  print the commands and run nothing
    --submit   run as a job array of a Slurm cluster (extra slurm), with submitit's parameters, as
               --submit=slurm:timeout_min=600,gpus_per_node=1,slurm_partition=gpu
    --config.* set a key for all points

The same command again continues a sweep: complete points are skipped, stopped ones resume, failed
ones are tried again, and those with newer validation or test files are scored again. A point that
another process is running is left to it. Progress goes to standard error, messages of a point's
process to log.txt in its run directory, the table of results to standard output. Exit status: 0 all
is complete, 1 a point failed, 2 the user's mistake, 130 and 143 stopped by Ctrl-C and SIGTERM.
"""

import sys
import time
from pathlib import Path

from experiments.cluster import Cluster
from experiments.pool import Pool, places
from experiments.sweep import Point, load_sweep, make_points
from jformer.command_line import parse, positive, program_status
from jformer.console import Progress, say
from jformer.errors import RunError, Stopped, UserError
from jformer.training.stopping import StopHandler
from jformer.views.report import markdown, read_rows

FLAGS = {"workdir": "", "jobs": "1", "seeds": "1", "only": "", "dry_run": False, "submit": ""}
PAUSE = 0.5  # seconds between two polls of the processes


def run_sweep(arguments: list[str]) -> int:
    path, *flags = arguments
    sweep = load_sweep(path)
    if own := next((flag for flag in flags if flag.startswith(("--config=", "-config="))), None):
        raise UserError(f"{own}: the config of a sweep is CONFIG in {path}")
    if loose := next((flag for flag in flags if not flag.startswith("-")), None):
        raise UserError(f"{loose!r} is no flag; values follow a flag's =")
    flag, _ = parse([f"--config={sweep.CONFIG}", *flags], FLAGS)
    jobs, seeds = (positive(name, flag[name].value, int) for name in ("jobs", "seeds"))
    folder = Path(flag.workdir or f"runs/{Path(path).stem}")
    of_config = [flag for flag in flags if flag.startswith(("--config.", "-config."))]
    points = make_points(sweep, folder, of_config, flag.only, seeds)
    if flag.dry_run:
        for point in points:
            print(point.as_typed)
        return 0
    workers = Cluster(flag.submit, jobs, folder) if flag.submit else Pool(places(jobs))
    failed = run_points(points, workers)
    print(markdown(read_rows([point.workdir for point in points])))
    if failed:
        raise RunError(f"{len(failed)} of {len(points)} points failed: {', '.join(failed)}")
    return 0


def run_points(points: list[Point], workers: Pool | Cluster) -> list[str]:
    """Run the points that are not complete; return the names of those that failed."""
    waiting = [point for point in points if not point.is_complete]
    say(f"sweep       {len(points)} points, {len(points) - len(waiting)} complete")
    at_work: list[Point] = []
    elsewhere: list[Point] = []
    failed = []
    progress = SweepProgress([*waiting])
    with StopHandler(minutes=0) as stop:
        while waiting or at_work:
            for point in [point for point in waiting if point.is_complete]:
                waiting.remove(point)
                progress.report(point, "complete, by another process")
            for point in workers.start(waiting):
                at_work.append(point)
                progress.report(point, "goes on" if point.has_begun else "begins")
            if not at_work:  # places are free, so other processes run the waiting points
                for point in [point for point in waiting if point not in elsewhere]:
                    elsewhere.append(point)
                    progress.report(point, "another process is at work on it; waiting for that")
            for point in list(at_work):
                fault = workers.poll(point)
                if fault is None:
                    continue
                at_work.remove(point)
                progress.report(point, f"failed: {fault}" if fault else "complete")
                failed += [point.name] if fault else []
            progress.update()
            if stop.signal:
                raise Stopped(stop.signal, workers.stop())
            time.sleep(PAUSE)
    progress.close()
    return failed


class SweepProgress:
    """Shows the steps of all points together, and a line when a point begins or ends."""

    def __init__(self, points: list[Point]):
        self._points = points
        self._done = self._steps()
        total = sum(point.config.train.steps for point in points)
        self._progress = Progress("step", total, done=self._done, lines=False)

    def _steps(self) -> int:
        return sum(point.step for point in self._points)

    def update(self) -> None:
        before, self._done = self._done, self._steps()
        if self._done > before:
            self._progress.advance(self._done - before)

    def report(self, point: Point, text: str) -> None:
        complete = sum(point.is_complete for point in self._points)
        done = f"{complete}/{len(self._points)}"
        say("  ".join(filter(None, (done, self._progress.eta(), f"{point.name}: {text}"))))

    def close(self) -> None:
        self._progress.close()


if __name__ == "__main__":
    sys.exit(program_status("experiments.run", __doc__, run_sweep))
