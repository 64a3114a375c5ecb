"""Run a sweep: every point is a process with its own run directory.

FILE is a Python file with CONFIG, such as "tiny:multi30k", and sweep(), a generator of the changes
of each point, such as {"model.num_heads": 4}. Config keys on the command line are set for all
points.

Rerun the same command to resume a sweep: it skips complete points, resumes stopped points and
retries failed points. Each point logs to log.txt in its run directory. Prints the table of results;
the exit status is 1 if a point failed.
"""

import contextlib
import dataclasses
import fnmatch
import hashlib
import itertools
import math
import os
import runpy
import shlex
import signal
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path
from typing import Any

from jformer import cli
from jformer.components import naming_failures_in
from jformer.config import Config
from jformer.console import say
from jformer.errors import RunError, Stopped, UserError, import_extra
from jformer.extras import report
from jformer.files import write_object
from jformer.rundir import config_of
from jformer.schema import flatten

MAX_NAME = 100  # characters of a folder's name; file systems allow 255
PAUSE = 0.5  # seconds between two polls of the processes
SILENT = 10.0  # seconds between two reports of progress
REQUEUES = 1000  # after a time limit; a preempted job is always requeued


def add_flags(parser: cli.Parser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", help="the sweep")
    parser.add_path("--workdir", "DIR", "folder of the runs (default: runs/NAME)")
    text = "points that run at the same time and share cores and GPUs (default: 1)"
    add("--jobs", default=1, type=int, metavar="N", help=text)
    add("--seeds", default=1, type=int, metavar="N", help="runs per point (default: 1)")
    text = "run the points whose names match, such as '*num_heads*'"
    add("--only", default="*", metavar="PATTERN", help=text)
    add("--dry_run", action="store_true", help="print the commands")
    text = "submit an array of jobs with submitit's parameters, such as slurm:gpus_per_node=1"
    add("--submit", default="", metavar="slurm:KEY=VALUE,...", help=text)
    cli.add_keys(parser)


def main(args: Any) -> int:
    if args.jobs < 1:
        raise UserError(f"--jobs={args.jobs}: must be >= 1")
    folder = Path(args.workdir or f"runs/{Path(args.file).stem}")
    keys = [f"--config.{key}={value}" for key, value in args.overrides.items()]
    points = make_points(args.file, folder, keys, args.only, args.seeds)
    if args.dry_run:
        for point in points:
            print(shlex.join(["python", *point.arguments]))
        return 0
    executor = make_executor(args.submit, args.jobs, folder) if args.submit else None
    waiting = [point for point in points if not point.is_complete]
    say(f"{len(points)} points, {len(points) - len(waiting)} complete")
    failed = run_on_cluster(waiting, executor) if executor else run_here(waiting, args.jobs)
    comparison = report.compare([point.workdir for point in points])
    if comparison.rows:
        print(report.markdown(comparison))
    if failed:
        raise RunError(f"{len(failed)} of {len(points)} points failed: {', '.join(failed)}")
    return 0


@dataclasses.dataclass(frozen=True)
class Point:
    workdir: Path
    config: Config
    flags: tuple[str, ...]
    overrides: dict[str, Any]

    @property
    def name(self) -> str:
        return self.workdir.name

    @property
    def arguments(self) -> list[str]:
        """Return Python's arguments that run or resume the point, or print its scores again."""
        return ["-m", "jformer.main", *self.flags, f"--workdir={self.workdir}"]

    @property
    def log(self) -> Path:
        """Return the file with the standard error of all processes of this point."""
        return self.workdir / "log.txt"

    @property
    def last_line(self) -> str:
        """Return the last line of the log, which has the step and the remaining time."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return (text.strip().splitlines() or ["no output"])[-1].strip()

    @property
    def scores(self) -> Path:
        """Return the file with the standard output of the run; only complete points have it."""
        return self.workdir / "scores.json"

    @property
    def partial(self) -> Path:
        return self.workdir / "scores.json.partial"

    @property
    def is_complete(self) -> bool:
        return self.scores.exists() and config_of(self.workdir) == self.config


def make_points(path: str, folder: Path, flags: list[str], only: str, seeds: int) -> list[Point]:
    """Return the checked points of a sweep file whose names match the pattern `only`.

    `flags` are set for all points. With `seeds` > 1, each point is repeated with the seeds that
    follow its own. `UserError` names the line of an error in the file.
    """
    with naming_failures_in(path):
        sweep = runpy.run_path(path)
        config, changes = sweep["CONFIG"], [dict(overrides) for overrides in sweep["sweep"]()]
    shared = [f"--config={config}", *flags]
    points: list[Point] = []
    for overrides in changes:
        first = make_point(folder, shared, overrides)
        seeded = [{**overrides, "seed": first.config.seed + more} for more in range(1, seeds)]
        points += [first, *(make_point(folder, shared, each) for each in seeded)]
    if len({point.config for point in points}) < len(points):
        raise UserError(f"{path}: yields the same config twice")
    chosen = [point for point in points if fnmatch.fnmatch(point.name, only)]
    if not chosen:
        names = ", ".join(point.name for point in points)
        raise UserError(f"--only={only}: no point matches; available: {names}")
    return chosen


def make_point(folder: Path, shared: list[str], overrides: dict[str, Any]) -> Point:
    """Return a checked point whose run directory is in `folder`."""
    from jformer.training.provenance import check_same_config

    workdir = folder / name_of(overrides)
    flags = [*shared, *(f"--config.{key}={value}" for key, value in overrides.items())]
    config = cli.config_of_flags(flags)
    check_same_config(config, workdir)
    values = flatten(config)
    return Point(workdir, config, tuple(flags), {key: values[key] for key in overrides})


def name_of(overrides: dict[str, Any]) -> str:
    """Return `model.num_heads=4+seed=1`; comma and @, which separate runs, are escaped.

    A long name, such as a component with options, ends in a hash.
    """
    values = {key: urllib.parse.quote(str(value), safe="()=") for key, value in overrides.items()}
    name = "+".join(f"{key}={value}" for key, value in values.items()) or "base"
    if len(name) <= MAX_NAME:
        return name
    return f"{name[: MAX_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def environments(jobs: int) -> list[dict[str, str]]:
    """Divide the GPUs among `jobs` processes, or the memory of each GPU if there are more jobs."""
    gpus = visible_gpus()
    if not gpus:
        return [{}] * jobs
    if jobs <= len(gpus):
        return [{"CUDA_VISIBLE_DEVICES": ",".join(gpus[number::jobs])} for number in range(jobs)]
    # By default, each JAX process reserves three quarters of a GPU's memory.
    share = 0.9 / math.ceil(jobs / len(gpus))
    memory = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{share:.3f}"}
    names = itertools.islice(itertools.cycle(gpus), jobs)
    return [{"CUDA_VISIBLE_DEVICES": name, **memory} for name in names]


def core_sets(jobs: int) -> list[set[int]]:
    """Divide the CPU cores that this process may use; an empty set means all cores.

    Small models gain: a process on one core has more than half its speed on two cores.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if not 1 < jobs <= len(cores):
        return [set()] * jobs
    return [set(cores[number::jobs]) for number in range(jobs)]


def visible_gpus() -> list[str]:
    """Return the GPUs' names for CUDA_VISIBLE_DEVICES without JAX, which would reserve them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [gpu for gpu in named.split(",") if gpu]
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True)
    except FileNotFoundError:
        return []
    return [str(number) for number, _ in enumerate(listed.stdout.splitlines())]


def start(point: Point, environment: dict[str, str], cores: set[int]) -> subprocess.Popen:
    """Start the process that runs or resumes a point; an empty set of cores means all."""
    point.workdir.mkdir(parents=True, exist_ok=True)
    write_object(point.workdir / "overrides.json", point.overrides)
    with point.partial.open("wb") as scores, point.log.open("ab") as log:
        # The parent handles Ctrl-C and preemption signals, and asks the run to save and end.
        before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        process = subprocess.Popen(
            [sys.executable, *point.arguments],
            stdin=subprocess.DEVNULL,
            stdout=scores,
            stderr=log,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        signal.signal(signal.SIGUSR2, before)
    if cores:
        with contextlib.suppress(ProcessLookupError):  # the process has already ended
            os.sched_setaffinity(process.pid, cores)
    return process


def finish(point: Point, status: int) -> str:
    """Keep the scores of an ended process; return why it failed, or ""."""
    if status == 0:
        point.partial.replace(point.scores)
        return ""
    how = f"status {status}" if status > 0 else f"killed by {signal.Signals(-status).name}"
    return f"{how}: {point.last_line} (log: {point.log})"


def report_end(point: Point, fault: str) -> list[str]:
    """Print the result of a point; return its name if it failed."""
    say(f"{point.name}: failed: {fault}" if fault else f"{point.name}: complete")
    return [point.name] if fault else []


def report_running(points: list[Point], reported: float) -> float:
    """Print the last line of each point's log if the last report is old; return its time."""
    now = time.monotonic()
    if now - reported < SILENT:
        return reported
    for point in points:
        if point.log.exists():  # else it waits for its node
            say(f"{point.name}: {point.last_line}")
    return now


def run_here(points: list[Point], jobs: int) -> list[str]:
    """Run points on this machine, `jobs` at a time; return the names of failed points."""
    from jformer.training.signals import Signals

    waiting, free = [*points], [*zip(environments(jobs), core_sets(jobs), strict=True)]
    running: dict[subprocess.Popen, tuple[Point, tuple[dict[str, str], set[int]]]] = {}
    failed: list[str] = []
    reported = time.monotonic()
    with Signals() as stop:
        while waiting or running:
            while waiting and free:
                point, share = waiting.pop(0), free.pop(0)
                say(f"{point.name}: starts; waiting: {len(waiting)}")
                running[start(point, *share)] = point, share
            for process in [*running]:
                if process.poll() is not None:
                    point, share = running.pop(process)
                    free.append(share)
                    failed += report_end(point, finish(point, process.returncode))
            reported = report_running([point for point, _ in running.values()], reported)
            if stop.caught:
                for process in running:
                    process.terminate()
                for process in running:
                    process.wait()
                raise Stopped(stop.caught)
            time.sleep(PAUSE)
    return failed


class Task:
    """A point as a job; submitit calls `checkpoint` before a preemption or a time limit."""

    def __init__(self, point: Point):
        self._point = point
        self._process: subprocess.Popen | None = None

    def __call__(self) -> str:
        self._process = start(self._point, {}, set())
        status = self._process.wait()
        while status == 128 + signal.SIGTERM:
            # The cluster stopped this job, and requeues it unless it ends by itself.
            signal.pause()
        return finish(self._point, status)

    def checkpoint(self) -> Any:
        from submitit.helpers import DelayedSubmission

        if self._process and self._process.poll() is None:
            self._process.terminate()
            # Popen's own wait would block on a lock that the interrupted wait holds.
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(Task(self._point))


def run_on_cluster(points: list[Point], executor: Any) -> list[str]:
    """Run points as one job array of submitit; return the names of failed points."""
    from submitit.core.utils import FailedJobError

    if not points:
        return []  # submitit warns about an empty array
    try:
        with executor.batch():
            jobs = [executor.submit(Task(point)) for point in points]
    except FailedJobError as error:
        raise RunError(f"the cluster rejected the jobs: {one_line(error)}") from error
    say("submitted; Ctrl-C leaves the jobs to the cluster, and `report` shows their progress")
    running = [*zip(points, jobs, strict=True)]
    failed: list[str] = []
    reported = time.monotonic()
    while running:
        for point, job in [pair for pair in running if pair[1].done()]:
            running.remove((point, job))
            failure = job.exception()
            reason = str(failure).partition("\n")[0]  # a traceback follows
            failed += report_end(point, f"job {job.job_id}: {reason}" if failure else job.result())
        reported = report_running([point for point, _ in running], reported)
        time.sleep(PAUSE)
    return failed


def make_executor(submit: str, jobs: int, folder: Path) -> Any:
    """Return submitit's executor for CLUSTER:KEY=VALUE,... with its parameters.

    The cluster limits the number of concurrent jobs, or `jobs` does if it is more than 1.
    """
    submitit = import_extra("submitit", "--submit", "submitit")
    cluster, _, text = submit.partition(":")
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    parameters = {key: int(value) if value.isdigit() else value for key, _, value in pairs}
    if jobs > 1:
        parameters.setdefault("slurm_array_parallelism", jobs)
    try:
        executor = submitit.AutoExecutor(
            folder / "jobs", cluster=cluster, slurm_max_num_timeout=REQUEUES
        )
        executor.update_parameters(**{"name": folder.name, **parameters})
    except (AssertionError, NameError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"--submit={submit}: {one_line(error)}") from error
    return executor


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())
