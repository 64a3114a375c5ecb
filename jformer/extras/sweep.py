"""Sweeps: many runs of one config with changes, as local processes or as cluster jobs.

A sweep is a Python file with a config, `CONFIG = "tiny:multi30k"`, and a generator
`sweep()` of flat overrides, one dict per point: `{"model.num_heads": 4}`, or `{}` for none.
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

from jformer.cli import config_of_flags
from jformer.components import naming_failures_in
from jformer.config import Config
from jformer.console import say
from jformer.errors import RunError, Stopped, UserError, import_extra
from jformer.files import write_object
from jformer.rundir import config_of, has_run
from jformer.schema import flatten
from jformer.training.provenance import check_same_config
from jformer.training.signals import Signals

MAX_NAME = 100  # characters of a folder's name; file systems allow 255
OVERRIDES = "overrides.json"  # in each run directory, because long names are shortened
PAUSE = 0.5  # seconds between two polls of the processes
SILENT = 10.0  # seconds between two reports of progress
REQUEUES = 1000  # after a time limit; a preempted job is always requeued


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
    def command(self) -> list[str]:
        """Return the command that runs or resumes the point, or prints its scores again."""
        train = ["-m", "jformer.main", *self.flags, f"--workdir={self.workdir}"]
        return [sys.executable, *train]

    @property
    def as_typed(self) -> str:
        return shlex.join(["python", *self.command[1:]])

    @property
    def log(self) -> Path:
        """Return the file with the standard error of all processes of this point."""
        return self.workdir / "log.txt"

    @property
    def last_line(self) -> str:
        """Return the last line of the log, which has the step and the remaining time."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return ([line for line in text.splitlines() if line.strip()] or ["no output"])[-1].strip()

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
    """Return the checked points of a sweep file; `flags` are set for all points.

    `only` is a pattern of names with or without their seeds, such as `*num_heads*`. With
    `seeds` > 1, each point is repeated with the seeds that follow its own.
    """
    config, all_overrides = load_sweep(path)
    shared = [f"--config={config}", *flags]
    names: dict[Config, str] = {}
    chosen = []
    for overrides in all_overrides:
        if not isinstance(overrides, dict):
            raise UserError(
                f"{path}: sweep() yields {overrides!r}; must yield dicts of dotted keys, "
                f"such as {{'model.num_heads': 4}}"
            )
        seeded: list[Point] = []
        for more in range(seeds):
            seed = {"seed": seeded[0].config.seed + more} if more else {}
            seeded.append(make_point(folder, shared, {**overrides, **seed}))
        for point in seeded:
            if point.config in names:
                raise UserError(f"{path}: {point.name} is the same run as {names[point.config]}")
            names[point.config] = point.name
            if any(fnmatch.fnmatch(name, only or "*") for name in (point.name, seeded[0].name)):
                chosen.append(point)
    if not names:
        raise UserError(f"{path}: has no points; sweep() must yield dicts of overrides")
    if not chosen:
        raise UserError(f"--only={only}: no point matches; available: {', '.join(names.values())}")
    return chosen


def load_sweep(path: str) -> tuple[str, list[Any]]:
    """Return CONFIG and what sweep() yields; `UserError` names the line of any error in them."""
    if not Path(path).is_file():
        raise UserError(f"{path}: not found; must be a Python file with CONFIG and sweep()")
    with naming_failures_in(path):
        sweep = runpy.run_path(path)
        if "CONFIG" in sweep and "sweep" in sweep:
            return sweep["CONFIG"], list(sweep["sweep"]())
    raise UserError(
        f"{path}: must define CONFIG, the --config of a run, and sweep(), a generator of overrides"
    )


def make_point(folder: Path, shared: list[str], overrides: dict[str, Any]) -> Point:
    """Return a checked point whose run directory is in `folder`."""
    workdir = folder / name_of(overrides)
    flags = [*shared, *(f"--config.{key}={value}" for key, value in overrides.items())]
    config = config_of_flags(flags)
    check_same_config(config, workdir)
    return Point(workdir, config, tuple(flags), overrides)


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
            if len(gpus) < jobs:
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
    point.workdir.mkdir(parents=True, exist_ok=True)
    values = flatten(point.config)
    write_object(point.workdir / OVERRIDES, {key: values[key] for key in point.overrides})
    with point.partial.open("wb") as scores, point.log.open("ab") as log:
        # The parent handles Ctrl-C and preemption signals, and asks the run to save and end.
        before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        process = subprocess.Popen(
            point.command,
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

    def __init__(self, total: int):
        self.failed: list[str] = []
        self._total, self._done = total, 0
        self._shown: dict[str, str] = {}
        self._reported = time.monotonic()

    def started(self, point: Point) -> None:
        self._shown[point.name] = point.last_line  # of an earlier process
        say(f"{point.name}: {'resumes' if has_run(point.workdir) else 'starts'}")

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
            if (line := point.last_line) != self._shown[point.name]:
                say(f"{point.name}: {line}")
                self._shown[point.name] = line


def run_here(points: list[Point], jobs: int) -> list[str]:
    """Run points on this machine, `jobs` at a time; return the names of failed points."""
    waiting, free, progress = [*points], shares(jobs), Progress(len(points))
    running: list[tuple[Point, subprocess.Popen, Share]] = []
    with Signals(minutes=0) as stop:
        while waiting or running:
            while waiting and free:
                point, share = waiting.pop(0), free.pop(0)
                progress.started(point)
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
    running, progress = [*zip(points, submitted, strict=True)], Progress(len(points))
    for point in points:
        progress.started(point)
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
    given = {key: int(value) if value.isdigit() else value for key, _, value in pairs}
    limit = {"slurm_array_parallelism": jobs} if jobs > 1 else {}
    try:
        executor = submitit.AutoExecutor(
            folder / "jobs", cluster=cluster, slurm_max_num_timeout=REQUEUES
        )
        executor.update_parameters(**{"name": folder.name, **limit, **given})
    except (AssertionError, NameError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"--submit={submit}: {one_line(error)}") from error
    return executor


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())
