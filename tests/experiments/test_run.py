"""A sweep as a program: real processes, killed and failing ones among them."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import sweep_flags

pytestmark = pytest.mark.process

SWEEP = "tests/experiments/sweep_of_two.py"


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path):
    """No process of a test that failed goes on."""
    yield
    listed = subprocess.run(["ps", "-eww", "-o", "pid=,args="], capture_output=True, text=True)
    for line in listed.stdout.splitlines():
        pid, command = line.split(maxsplit=1)
        if str(tmp_path) in command:
            os.kill(int(pid), signal.SIGKILL)


def begun(folder):
    """How many points have saved something; what is still being written has a longer name."""
    saved = (path for path in folder.glob("*/checkpoints/*") if path.name.isdigit())
    return len({path.parents[1] for path in saved})


def command(folder, flags, *more):
    return [sys.executable, "-m", "experiments.run", SWEEP, f"--workdir={folder}", *flags, *more]


def table_of(text):
    """The printed table without its last column, the time."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-2]] for line in lines]


@pytest.fixture(scope="module")
def undisturbed(corpus_directory, tmp_path_factory):
    """The folder of a sweep that ran from its beginning to its end, and what that printed."""
    folder = tmp_path_factory.mktemp("sweep") / "undisturbed"
    ended = subprocess.run(
        command(folder, sweep_flags(corpus_directory), "--jobs=2"), capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    return folder, ended


def children(process):
    """The processes that a process has started and that are alive."""
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True
    )
    return [int(pid) for pid in listed.stdout.split()]


def wait_for(condition, process):
    while not condition():
        assert process.poll() is None, "the sweep ended before it could be stopped"
        time.sleep(0.01)


def test_each_point_is_a_whole_run_and_the_table_has_all(undisturbed):
    folder, ended = undisturbed
    heading, _, *rows = table_of(ended.stdout)
    assert [row[0] for row in rows] == ["base", "dropout=0.4"]
    assert {row[heading.index("state")] for row in rows} == {"complete"}
    for name in ("base", "model.dropout=0.4"):
        scores = json.loads((folder / name / "scores.json").read_text())
        assert list(scores) == ["validation"]
        assert json.loads((folder / name / "results.json").read_text()) == scores
        assert "step 200/200" in (folder / name / "log.txt").read_text()
    assert "2/2" in ended.stderr.splitlines()[-1]


def test_complete_points_are_not_run_again(undisturbed, corpus_directory):
    folder, ended = undisturbed
    log = (folder / "base" / "log.txt").read_text()
    again = subprocess.run(
        command(folder, sweep_flags(corpus_directory)), capture_output=True, text=True
    )
    assert again.returncode == 0
    assert again.stdout == ended.stdout
    assert "2 points, 2 complete" in again.stderr
    assert (folder / "base" / "log.txt").read_text() == log


def test_a_sweep_killed_half_way_ends_with_the_table_of_one_that_was_not(
    undisturbed, corpus_directory, tmp_path
):
    """kill -9 for the sweep and one of its two processes; the other one goes on by itself."""
    flags = sweep_flags(corpus_directory)
    process = subprocess.Popen(command(tmp_path, flags, "--jobs=2"), stderr=subprocess.DEVNULL)
    wait_for(lambda: begun(tmp_path) == 2, process)
    first, second = children(process)
    process.kill()
    os.kill(first, signal.SIGKILL)
    process.wait()
    again = subprocess.run(command(tmp_path, flags, "--jobs=2"), capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert not Path(f"/proc/{second}").exists()
    assert table_of(again.stdout) == table_of(undisturbed[1].stdout)
    assert any("resuming from step" in log.read_text() for log in tmp_path.glob("*/log.txt"))


def test_a_stopped_sweep_stops_its_processes_with_all_saved(corpus_directory, tmp_path):
    process = subprocess.Popen(
        command(tmp_path, sweep_flags(corpus_directory, 100_000), "--jobs=2"),
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for(lambda: begun(tmp_path) == 2, process)
    at_work = children(process)
    process.send_signal(signal.SIGTERM)
    errors = process.communicate()[1]
    assert process.returncode == 128 + signal.SIGTERM
    assert errors.splitlines()[-1].endswith("all is saved; the same command goes on")
    assert not any(Path(f"/proc/{pid}").exists() for pid in at_work)
    for name in ("base", "model.dropout=0.4"):
        assert "stopped by SIGTERM; all is saved" in (tmp_path / name / "log.txt").read_text()


def test_a_point_with_another_process_at_work_waits_for_that_and_says_so(
    corpus_directory, tmp_path
):
    folder = tmp_path / "runs"
    (folder / "base").mkdir(parents=True)
    flags = [*sweep_flags(corpus_directory, 100_000), "--only=base"]
    with (folder / "base" / "sweep.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(command(folder, flags), stderr=subprocess.PIPE, text=True)
        told = [process.stderr.readline() for _ in range(2)]
        assert told[1].endswith("base: another process is at work on it; waiting for that\n")
    assert process.stderr.readline().endswith("base: begins\n")
    wait_for(lambda: begun(folder) == 1, process)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    process = subprocess.Popen(command(folder, flags), stderr=subprocess.PIPE, text=True)
    assert [process.stderr.readline() for _ in range(2)][1].endswith("base: goes on\n")
    process.send_signal(signal.SIGTERM)
    process.communicate()


def test_a_point_that_fails_is_reported_and_the_others_go_on(
    undisturbed, corpus_directory, tmp_path
):
    folder = shutil.copytree(undisturbed[0], tmp_path / "sweep")
    shutil.rmtree(folder / "base")
    (folder / "base").mkdir()
    (folder / "base" / "checkpoints").write_text("in the way")
    (folder / "model.dropout=0.4" / "scores.json").unlink()
    ended = subprocess.run(
        command(folder, sweep_flags(corpus_directory)), capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "experiments.run: 1 of 2 points failed: base"
    assert "base: failed: status " in ended.stderr
    assert (folder / "model.dropout=0.4" / "scores.json").exists()
    heading, _, *rows = table_of(ended.stdout)
    states = [row[heading.index("state")] for row in rows]
    assert re.fullmatch(r"step \d+ of 200", states[0])
    assert states[1] == "complete"


def test_a_sweep_of_which_nothing_begins_ends_with_an_empty_table(corpus_directory, tmp_path):
    flags = [*sweep_flags(corpus_directory), "--config.data.train=none", "--only=base"]
    ended = subprocess.run(command(tmp_path, flags), capture_output=True, text=True)
    assert ended.returncode == 1
    assert "base: failed: status 2: jformer: none.en: no such file" in ended.stderr
    assert len(ended.stdout.splitlines()) == 2  # the heading


def test_a_process_that_is_killed_fails_its_point_alone(corpus_directory, tmp_path):
    flags = [*sweep_flags(corpus_directory, 100_000), "--only=base"]
    process = subprocess.Popen(
        command(tmp_path, flags), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: begun(tmp_path) == 1, process)
    os.kill(children(process)[0], signal.SIGKILL)
    errors = process.communicate()[1]
    assert process.returncode == 1
    assert "base: failed: killed by SIGKILL" in errors
