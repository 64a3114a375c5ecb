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
from tests.conftest import small_flags
from tests.training.test_loop import metrics_of, wait_for

pytestmark = pytest.mark.process

ENVIRONMENT = {**os.environ, "JAX_NUM_CPU_DEVICES": "2", "JAX_PLATFORMS": "cpu"}


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def command(corpus_directory, workdir, *more):
    without = ("checkpoint_every", "data.test")  # nothing is scored: that is for other tests
    flags = [f for f in small_flags(corpus_directory, workdir) if not any(w in f for w in without)]
    return [
        sys.executable, "-m", "jformer.main", *flags, "--config.train.checkpoint_every=1000",
        "--config.train.steps=60", *more,
    ]  # fmt: skip


def start_two(corpus_directory, workdir, *more, of_second=()):
    """Both begin at once, each with two devices of four."""
    port, processes = free_port(), []
    for process in (0, 1):
        place = [
            f"--config.parallel.coordinator=localhost:{port}", "--config.parallel.processes=2",
            f"--config.parallel.process={process}", "--config.parallel.timeout=30",
        ]  # fmt: skip
        flags = [*command(corpus_directory, workdir, *more), *place]
        flags += of_second if process else ()
        processes.append(
            subprocess.Popen(flags, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
        )
    return processes


def ends(processes):
    errors = [process.communicate(timeout=120)[1] for process in processes]
    return [process.returncode for process in processes], errors


def test_two_processes_of_which_one_is_stopped_end_as_one_process_that_was_not(
    corpus_directory, tmp_path
):
    """SIGTERM reaches the second alone; both save the same step, and go on from there."""
    alone, together = tmp_path / "alone", tmp_path / "together"
    first, second = start_two(corpus_directory, together, "--config.train.steps=100000")
    wait_for(together / "best", first)  # made at step 6, so both are within the loop
    second.send_signal(signal.SIGTERM)
    codes, errors = ends([first, second])
    assert codes == [128 + signal.SIGTERM] * 2, errors
    (saved,) = (int(path.name) for path in (together / "checkpoints").iterdir())
    last = f"--config.train.steps={saved + 8}"

    codes, errors = ends(start_two(corpus_directory, together, last))
    assert codes == [0, 0], errors
    assert re.search(rf"resum.*step {saved}\b", errors[0])
    assert "step" not in errors[1]  # the first alone tells the progress
    whole = subprocess.run(
        command(corpus_directory, alone, last), env={**ENVIRONMENT, "JAX_NUM_CPU_DEVICES": "4"}
    )
    assert whole.returncode == 0
    # Sums over devices go another way through two processes: the last bits differ.
    lines, expected = metrics_of(together), metrics_of(alone)
    for line, other in zip(lines, expected, strict=True):
        assert line.pop("split") == other.pop("split")
        assert line == pytest.approx(other, rel=1e-4)
    params = (jformer.load(workdir, "last").params for workdir in (together, alone))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), *params)


def test_a_process_that_has_joined_and_not_begun_ends_at_once_at_a_signal():
    joined = f"""
import os, signal
from jformer.config import ParallelConfig
from jformer.training.processes import join
join(ParallelConfig(coordinator="localhost:{free_port()}", processes=1, process=0))
os.kill(os.getpid(), signal.SIGTERM)
"""
    ended = subprocess.run([sys.executable, "-c", joined], env=ENVIRONMENT, timeout=60)
    assert ended.returncode == -signal.SIGTERM


@pytest.mark.slow
def test_when_one_process_is_killed_the_other_ends_with_a_message(corpus_directory, tmp_path):
    workdir = tmp_path / "run"
    first, second = start_two(corpus_directory, workdir, "--config.train.steps=100000")
    wait_for(workdir / "best", first)
    second.kill()
    began = time.monotonic()
    codes, errors = ends([first, second])
    assert codes[0] != 0
    assert "another task died" in errors[0] or "Connection closed" in errors[0]
    assert time.monotonic() - began < 60


@pytest.mark.slow
def test_a_process_whose_others_never_start_ends_with_a_message(corpus_directory, tmp_path):
    first, second = start_two(corpus_directory, tmp_path / "run", "--config.parallel.timeout=5")
    second.kill()
    codes, errors = ends([first, second])
    assert codes[0] != 0
    assert "2 processes" in errors[0]
    assert "DEADLINE_EXCEEDED" in errors[0]


@pytest.mark.slow
def test_processes_of_different_configs_all_end_with_what_differs(corpus_directory, tmp_path):
    processes = start_two(
        corpus_directory, tmp_path / "run", of_second=["--config.model.dropout=0.4"]
    )
    codes, errors = ends(processes)
    assert codes == [2, 2], errors
    assert re.search(r"config\.model\.dropout\b.*0\.4\b.*0\.1\b.*process 0\b", errors[1])
    assert "process 1" in errors[0]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--config.parallel.coordinator=host:1"], ["config.parallel.processes"]),
        (
            ["--config.parallel.coordinator=host:65536"],
            ["config.parallel.coordinator=host:65536", "HOST:PORT", "auto"],
        ),
        (
            ["--config.parallel.processes=2"],
            ["config.parallel.processes=2", "config.parallel.coordinator"],
        ),
        (
            ["--config.parallel.coordinator=h:1", "--config.parallel.processes=2",
             "--config.parallel.process=2"],
            ["config.parallel.process=2", "config.parallel.processes=2"],
        ),
        (
            ["--config.parallel.coordinator=h", "--config.parallel.processes=2",
             "--config.parallel.process=1"],
            ["config.parallel.coordinator=h:", "HOST:PORT"],
        ),
    ],
)  # fmt: skip
def test_an_incomplete_address_is_one_line(corpus_directory, tmp_path, capsys, flags, named):
    assert main(["jformer", *small_flags(corpus_directory, tmp_path / "run"), *flags]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert all(name in message for name in named)


def test_a_coordinator_port_that_is_taken_is_one_line(corpus_directory, tmp_path):
    with socket.create_server(("localhost", 0)) as other:
        address = f"localhost:{other.getsockname()[1]}"
        place = ["coordinator=" + address, "processes=2", "process=0", "timeout=30"]
        flags = command(corpus_directory, tmp_path / "run")
        flags += [f"--config.parallel.{each}" for each in place]
        result = subprocess.run(flags, capture_output=True, text=True, env=ENVIRONMENT)
    assert result.returncode == 2
    assert f"config.parallel.coordinator={address}" in result.stderr.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_processes_without_a_shared_workdir_all_end_before_any_work(corpus_directory, tmp_path):
    folders = [tmp_path / "of first", tmp_path / "of second"]
    processes = start_two(corpus_directory, folders[0], of_second=[f"--workdir={folders[1]}"])
    codes, errors = ends(processes)
    assert codes == [2, 2], errors
    for folder, error in zip(folders, errors, strict=True):
        assert f"workdir={folder}" in error.splitlines()[-1]
        assert "tokenizing" not in error
        assert not folder.exists()


def test_processes_may_name_a_shared_workdir_by_different_paths(corpus_directory, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    flags = [f"--workdir={tmp_path / 'link' / 'run'}", "--config.train.steps=2"]
    processes = start_two(
        corpus_directory, tmp_path / "run", "--config.train.steps=2", of_second=flags
    )
    codes, errors = ends(processes)
    assert codes == [0, 0], errors
    assert not [path.name for path in (tmp_path / "run").iterdir() if path.name.startswith(".")]


def test_where_there_is_no_cluster_auto_says_so(corpus_directory, tmp_path):
    flags = command(corpus_directory, tmp_path / "run", "--config.parallel.coordinator=auto")
    result = subprocess.run(flags, capture_output=True, text=True)
    assert result.returncode == 2
    last = result.stderr.splitlines()[-1]
    assert "config.parallel.coordinator=auto" in last
