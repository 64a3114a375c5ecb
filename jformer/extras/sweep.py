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
import os
import runpy
import shlex
import signal
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterable
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
OVERRIDES = "overrides.json"  # in each run directory, because long names are shortened
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
    changed: tuple[str, ...]  # keys

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
    names: dict[Config, str] = {}
    for point in points:
        if point.config in names:
            raise UserError(f"{path}: {point.name} is the same run as {names[point.config]}")
        names[point.config] = point.name
    chosen = [point for point in points if fnmatch.fnmatch(point.name, only)]
    if not chosen:
        raise UserError(f"--only={only}: no point matches; available: {', '.join(names.values())}")
    return chosen


def make_point(folder: Path, shared: list[str], overrides: dict[str, Any]) -> Point:
    """Return a checked point whose run directory is in `folder`."""
    from jformer.training.provenance import check_same_config

    workdir = folder / name_of(overrides)
    flags = [*shared, *(f"--config.{key}={value}" for key, value in overrides.items())]
    config = cli.config_of_flags(flags)
    check_same_config(config, workdir)
    return Point(workdir, config, tuple(flags), tuple(overrides))


def name_of(overrides: dict[str, Any]) -> str:
    """Return `model.num_heads=4+seed=1`; comma and @, which separate runs, are escaped.

    A long name, such as a component with options, ends in a hash.
    """
    values = {key: urllib.parse.quote(str(value), safe="()=") for key, value in overrides.items()}
    name = "+".join(f"{key}={value}" for key, value in values.items()) or "base"
    if len(name) <= MAX_NAME:
        return name
    return f"{name[: MAX_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


@dataclasses.dataclass(frozen=True)
class Share:
    """The part of the machine that one of several processes uses."""

    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    cores: frozenset[int] = frozenset()  # empty: all


def shares(jobs: int) -> list[Share]:
    """Divide the cores and GPUs that this process may use among `jobs` processes.

    Small models gain: a process on one core has more than half its speed on two cores.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    gpus = visible_gpus()
    found = []
    for number in range(jobs):
        environment = {}
        if gpus:
            own = gpus[number::jobs] or [gpus[number % len(gpus)]]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(own)
        if 0 < len(gpus) < jobs:
            # By default, each JAX process reserves three quarters of a GPU's memory.
            share = 0.9 / -(-jobs // len(gpus))
            environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{share:.3f}"
        own_cores = cores[number::jobs] if 1 < jobs <= len(cores) else []
        found.append(Share(environment, frozenset(own_cores)))
    return found


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


def start(point: Point, share: Share) -> subprocess.Popen:
    """Start the process that runs or resumes a point."""
    say(f"{point.name}: starts")
    point.workdir.mkdir(parents=True, exist_ok=True)
    values = flatten(point.config)
    write_object(point.workdir / OVERRIDES, {key: values[key] for key in point.changed})
    with point.partial.open("wb") as scores, point.log.open("ab") as log:
        # The parent handles Ctrl-C and preemption signals, and asks the run to save and end.
        before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        process = subprocess.Popen(
            [sys.executable, *point.arguments],
            stdin=subprocess.DEVNULL,
            stdout=scores,
            stderr=log,
            env={**os.environ, **share.environment},
            start_new_session=True,
        )
        signal.signal(signal.SIGUSR2, before)
    if share.cores:
        with contextlib.suppress(ProcessLookupError):  # the process has already ended
            os.sched_setaffinity(process.pid, share.cores)
    return process


def finish(point: Point, status: int) -> str:
    """Keep the scores of an ended process; return why it failed, or ""."""
    if status == 0:
        point.partial.replace(point.scores)
        return ""
    how = f"status {status}" if status > 0 else f"killed by {signal.Signals(-status).name}"
    return f"{how}: {point.last_line} (log: {point.log})"


class Progress:
    """Reports the results of points, and every few seconds the last lines of running logs."""

    def __init__(self, points: list[Point]):
        self.failed: list[str] = []
        self._total, self._done = len(points), 0
        self._lines = {point.name: point.last_line for point in points}  # of earlier processes
        self._reported = time.monotonic()

    def ended(self, point: Point, fault: str) -> None:
        self._done += 1
        self.failed += [point.name] if fault else []
        result = f"failed: {fault}" if fault else "complete"
        say(f"{self._done}/{self._total}  {point.name}: {result}")

    def running(self, points: Iterable[Point]) -> None:
        if time.monotonic() - self._reported < SILENT:
            return
        self._reported = time.monotonic()
        for point in points:
            if (line := point.last_line) != self._lines[point.name]:
                say(f"{point.name}: {line}")
                self._lines[point.name] = line


def run_here(points: list[Point], jobs: int) -> list[str]:
    """Run points on this machine, `jobs` at a time; return the names of failed points."""
    from jformer.training.signals import Signals

    waiting, free, progress = [*points], shares(jobs), Progress(points)
    running: list[tuple[Point, subprocess.Popen, Share]] = []
    with Signals(minutes=0) as stop:
        while waiting or running:
            while waiting and free:
                point, share = waiting.pop(0), free.pop(0)
                running.append((point, start(point, share), share))
            for job in [*running]:
                point, process, share = job
                if process.poll() is not None:
                    running.remove(job)
                    free.append(share)
                    progress.ended(point, finish(point, process.returncode))
            progress.running(point for point, _, _ in running)
            if stop.caught:
                for _, process, _ in running:
                    process.terminate()
                for _, process, _ in running:
                    process.wait()
                raise Stopped(stop.caught)
            time.sleep(PAUSE)
    return progress.failed


class Task:
    """A point as a job; submitit calls `checkpoint` before a preemption or a time limit."""

    def __init__(self, point: Point):
        self._point = point
        self._process: subprocess.Popen | None = None

    def __call__(self) -> str:
        self._process = start(self._point, Share())
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
            submitted = [executor.submit(Task(point)) for point in points]
    except FailedJobError as error:
        raise RunError(f"the cluster rejected the jobs: {one_line(error)}") from error
    say("submitted; Ctrl-C leaves the jobs to the cluster, and `report` shows their progress")
    running, progress = [*zip(points, submitted, strict=True)], Progress(points)
    while running:
        for point, job in [*running]:
            if job.done():
                running.remove((point, job))
                failure = job.exception()
                reason = str(failure).partition("\n")[0]  # a traceback follows
                progress.ended(point, f"job {job.job_id}: {reason}" if failure else job.result())
        progress.running(point for point, _ in running)
        time.sleep(PAUSE)
    return progress.failed


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
