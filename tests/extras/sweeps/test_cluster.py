"""Points as jobs, by submitit's executor for one machine."""

import os
import signal
import subprocess
import time

import pytest

pytest.importorskip("submitit", reason="needs the extra slurm")

from jformer.extras.sweeps.cluster import Cluster
from jformer.extras.sweeps.points import load_sweep, make_points
from jformer.rundir import last_metrics
from tests.conftest import sweep_flags

pytestmark = pytest.mark.process

SUBMIT = "local:timeout_min=10"


def points_of(folder, corpus_directory, *more):
    sweep = load_sweep("tests/extras/sweeps/sweep_of_two.py")
    return make_points(sweep, folder, [*sweep_flags(corpus_directory), *more], "", 1)


def outcome(cluster, point):
    while (fault := cluster.poll(point)) is None:
        time.sleep(0.05)
    cluster._jobs[point.name]._process.wait()  # Python warns of processes that nobody waited for
    return fault


def task_of(point):
    """The process that runs the point's command, and the job's own above it."""
    listing = ["ps", "-eww", "-o", "pid=,ppid=,args="]
    listed = subprocess.run(listing, capture_output=True, text=True)
    for line in listed.stdout.splitlines():
        pid, parent, command = line.split(maxsplit=2)
        if "jformer.main" in command and command.endswith(f"--workdir={point.workdir}"):
            return int(pid), int(parent)
    raise AssertionError(f"{point.name} is not at work")


@pytest.fixture(scope="module")
def undisturbed(corpus_directory, tmp_path_factory):
    (point, _) = points_of(tmp_path_factory.mktemp("undisturbed"), corpus_directory)
    subprocess.run(point.command, check=True, capture_output=True)
    return point


def test_a_preempted_job_saves_is_requeued_and_ends_as_if_it_had_not_been(
    undisturbed, corpus_directory, tmp_path
):
    preempted, _ = points_of(tmp_path / "sweep", corpus_directory)
    cluster = Cluster(SUBMIT, 1, tmp_path / "sweep")
    waiting = [preempted]
    assert cluster.start(waiting) == [preempted]
    assert cluster.start(waiting) == waiting == []
    while not (preempted.workdir / "checkpoints" / "20").exists():
        time.sleep(0.01)
    process, job = task_of(preempted)
    os.kill(process, signal.SIGTERM)  # Slurm tells a job, and the processes that it has begun, too
    while "progress saved" not in preempted.log.read_text():
        time.sleep(0.01)
    time.sleep(1)  # a job that has ended is not requeued
    assert cluster.poll(preempted) is None
    os.kill(job, signal.SIGUSR2)
    assert outcome(cluster, preempted) == ""
    assert preempted.is_complete
    log = preempted.log.read_text()
    assert "SIGTERM" in log
    assert "resuming from step" in log
    logs = [last_metrics(point.workdir) for point in (preempted, undisturbed)]
    assert logs[0] == logs[1]
    assert logs[0]["step"] == 200
