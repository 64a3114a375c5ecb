"""Two real processes, joined by jax.distributed over localhost, train one run."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import jformer
from jformer.main import main
from jformer.rundir import LOCK, read_metrics
from tests.conftest import small_flags

pytestmark = pytest.mark.process

ENVIRONMENT = {**os.environ, "JAX_NUM_CPU_DEVICES": "2", "JAX_PLATFORMS": "cpu"}


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def flags_of(corpus_directory, workdir, *more):
    """Of a run that does not score the test set."""
    changed = ["--config.data.test=", "--config.train.checkpoint_every=1000"]
    return [*small_flags(corpus_directory, workdir), *changed, *more]


def start_two(corpus_directory, workdir, *more, of_second=()):
    """Both begin at once, each with two devices of four."""
    address = f"--config.parallel.coordinator=localhost:{free_port()}"
    processes = []
    for own in ([f"{address}/0/2"], [f"{address}/1/2", *of_second]):
        program = [
            sys.executable,
            "-m",
            "jformer.main",
            *flags_of(corpus_directory, workdir, *more, *own),
        ]
        pipes = {"stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(program, env=ENVIRONMENT, **pipes))
    return processes


def ends(*processes):
    errors = [process.communicate(timeout=120)[1] for process in processes]
    return [process.returncode for process in processes], errors


def wait_for_loop(workdir, process):
    """Until the first validation, for which both are within the loop."""
    while not any(line["split"] == "validation" for line in read_metrics(workdir)):
        assert process.poll() is None, "the run ended before it could be stopped"
        time.sleep(0.01)


def test_two_processes_of_which_one_is_stopped_end_as_one_process_that_was_not(
    corpus_directory, tmp_path
):
    """SIGTERM reaches the second alone; both save the same step, and go on from there."""
    alone, together = tmp_path / "alone", tmp_path / "together"
    (tmp_path / "link").symlink_to(tmp_path)
    other_name = [f"--workdir={tmp_path / 'link' / 'together'}"]
    endless = ["--config.train.steps=100000"]
    first, second = start_two(corpus_directory, together, *endless, of_second=other_name)
    wait_for_loop(together, first)
    second.send_signal(signal.SIGTERM)
    codes, errors = ends(first, second)
    assert codes == [128 + signal.SIGTERM] * 2, errors
    (saved,) = (int(path.name) for path in (together / "checkpoints").iterdir())
    last = f"--config.train.steps={saved + 8}"

    codes, errors = ends(*start_two(corpus_directory, together, last, of_second=other_name))
    assert codes == [0, 0], errors
    assert re.search(rf"\bstep {saved}\b", errors[0])  # resumes
    assert "step" not in errors[1]  # the first alone tells the progress
    assert main(["jformer", *flags_of(corpus_directory, alone, last)]) == 0
    assert {path.name for path in together.iterdir()} == {path.name for path in alone.iterdir()}
    # Sums over devices go another way through two processes: the last bits differ.
    for line, other in zip(read_metrics(together), read_metrics(alone), strict=True):
        for measured in ("tokens_per_second", "seconds"):
            line.pop(measured, None), other.pop(measured, None)
        assert line.pop("split") == other.pop("split")
        assert line == pytest.approx(other, rel=1e-4)
    params = (jformer.load(workdir, "last").params for workdir in (together, alone))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), *params)


CHECK = """
import sys
from pathlib import Path
from jformer.config import ParallelConfig
from jformer.errors import UserError
from jformer.training import sharding
coordinator, own, shared, facts = sys.argv[1:]
sharding.join(ParallelConfig(coordinator=coordinator))
for known, workdir in (("the same", own), (facts, shared), ("the same", shared)):
    try:
        sharding.check_same(known, Path(workdir))
    except UserError as error:
        print(error)
"""


def test_processes_without_a_shared_workdir_or_of_different_configs_all_end(tmp_path):
    port, processes, shared = free_port(), [], tmp_path / "first"
    for number, name in enumerate(("first", "second")):
        own = tmp_path / name
        own.mkdir()
        (shared / LOCK).touch()
        arguments = f"localhost:{port}/{number}/2", str(own), str(shared), f"facts of {name}"
        program, pipes = [sys.executable, "-c", CHECK, *arguments], {"stdout": subprocess.PIPE}
        processes.append(subprocess.Popen(program, env=ENVIRONMENT, text=True, **pipes))
    for process, name in zip(processes, ("first", "second"), strict=True):
        lines = process.communicate(timeout=120)[0].splitlines()
        not_shared, different = (line for line in lines if "processes differ" in line)
        assert f"workdir={tmp_path / name}" in not_shared
        assert f"workdir={shared}" in different
