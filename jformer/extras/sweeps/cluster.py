"""Runs the points of a sweep on a cluster through submitit: Slurm, or `local` for a trial."""

import signal
from pathlib import Path
from typing import Any

from jformer.errors import RunError, UserError, import_extra
from jformer.extras.sweeps.points import Point
from jformer.extras.sweeps.process import Work, begin

REQUEUES = 1000  # of a job that reached its time limit; a preempted job is always requeued


class Task:
    """A point as a job; submitit calls `checkpoint` before a preemption or a time limit."""

    def __init__(self, point: Point):
        self._point = point
        self._work: Work | None = None

    def __call__(self) -> str:
        self._work = begin(self._point, {}, ())
        if self._work is None:
            return "another process is at work on it"
        fault = self._work.wait()
        while self._work.was_stopped:
            # The cluster stopped it; it requeues a preempted job unless that ends by itself.
            signal.pause()
        return fault

    def checkpoint(self) -> Any:
        from submitit.helpers import DelayedSubmission

        if self._work:
            self._work.stop()
            self._work.join()
        return DelayedSubmission(Task(self._point))


class Cluster:
    """Submits all points as one job array; the cluster runs as many at a time as it can."""

    def __init__(self, submit: str, jobs: int, folder: Path):
        """Create the executor; `submit` is CLUSTER:KEY=VALUE,... with submitit's parameters."""
        submitit = import_extra("submitit", "--submit", "submitit")
        cluster, _, text = submit.partition(":")
        pairs = (pair.partition("=") for pair in text.split(",") if pair)
        given = {key: int(value) if value.isdigit() else value for key, _, value in pairs}
        limit = {"slurm_array_parallelism": jobs} if jobs > 1 else {}
        try:
            self._executor = submitit.AutoExecutor(
                folder / "jobs", cluster=cluster, slurm_max_num_timeout=REQUEUES
            )
            self._executor.update_parameters(**{"name": folder.name, **limit, **given})
        except (AssertionError, NameError, RuntimeError, TypeError, ValueError) as error:
            raise UserError(f"--submit={submit}: {' '.join(str(error).split())}") from error
        self._jobs: dict[str, Any] = {}

    def start(self, waiting: list[Point]) -> list[Point]:
        from submitit.core.utils import FailedJobError

        started = list(waiting)
        if not started:
            return []  # submitit warns about an empty array
        try:
            with self._executor.batch():
                jobs = [self._executor.submit(Task(point)) for point in started]
        except FailedJobError as error:
            raise RunError(f"the cluster takes no jobs: {' '.join(str(error).split())}") from error
        self._jobs |= {point.name: job for point, job in zip(started, jobs, strict=True)}
        waiting.clear()
        return started

    def poll(self, point: Point) -> str | None:
        """Return None until the job has ended, then an error message, or "" for success."""
        job = self._jobs[point.name]
        if not job.done():
            return None
        error = job.exception()
        return f"job {job.job_id}: {str(error).splitlines()[0]}" if error else job.result()

    def stop(self) -> str:
        """Leave the jobs to the cluster and return a message about that."""
        return "the cluster goes on with the jobs; `report` shows how they do"
