"""The run directory: its lock, metrics.jsonl and results.json."""

import contextlib
import json
import shutil
import signal
import subprocess
import sys

import pytest

from jformer.main import main
from jformer.rundir import MetricsFile, locked
from tests.conftest import small_flags

HOLDER = (
    "import pathlib, sys, time\n"
    "from jformer.rundir import locked\n"
    "with locked(pathlib.Path(sys.argv[1])):\n"
    "    print('locked', flush=True)\n"
    "    time.sleep(600)\n"
)


@contextlib.contextmanager
def holder(workdir):
    """Another process that trains in the directory, as far as a third can tell."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(workdir)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "locked\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.process
def test_a_second_training_in_a_directory_is_refused_while_the_first_one_lives(
    trained_workdir, corpus_directory, tmp_path, capsys
):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    before = sorted(workdir.rglob("*"))
    command = ["jformer", *small_flags(corpus_directory, workdir)]
    with holder(workdir) as first:
        assert main(command) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert f"{workdir}: another training" in error
        first.send_signal(signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL
    assert main(command) == 0
    assert sorted(workdir.rglob("*")) == before


def test_a_lock_that_a_user_removed_does_not_make_a_clean_end_a_failure(tmp_path):
    with locked(tmp_path / "run"):
        (tmp_path / "run" / "lock").unlink()
        (tmp_path / "run" / "metrics.jsonl").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["metrics.jsonl"]


def test_a_directory_that_its_run_leaves_empty_goes_with_the_lock(tmp_path):
    with locked(tmp_path / "runs" / "new"):
        assert (tmp_path / "runs" / "new" / "lock").exists()
    assert not (tmp_path / "runs" / "new").exists()


def steps_in(path):
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_a_resumed_file_drops_what_happens_again_and_a_torn_last_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(tmp_path, 0)
    for step in (10, 20, 30):
        file.write(step, "train", loss=1.5)
    with path.open("a") as torn:
        torn.write('{"step": 40, "spl')
    file = MetricsFile(tmp_path, 20)
    file.write(30, "train", loss=1.0)
    assert steps_in(path) == [10, 20, 30]


@pytest.mark.process
def test_a_resume_puts_damaged_lines_aside_and_goes_on(
    trained_workdir, corpus_directory, tmp_path, capfd
):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    path = workdir / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    bad = [b'{"step": 3, "spl\xff\n', b"[3]\n"]
    path.write_bytes(b"".join([lines[0], bad[0], *lines[1:], bad[1]]))
    more = [*small_flags(corpus_directory, workdir), "--config.train.steps=13"]
    capfd.readouterr()
    assert main(["jformer", *more]) == 0
    [note] = [line for line in capfd.readouterr().err.splitlines() if str(path) in line]
    assert "metrics.jsonl.damaged" in note
    assert f"line 2, {len(lines) + 2}" in note
    assert (workdir / "metrics.jsonl.damaged").read_bytes() == b"".join(bad)
    now = path.read_bytes().splitlines(keepends=True)
    assert now[: len(lines)] == lines
    assert {json.loads(line)["step"] for line in now[len(lines) :]} == {13}


def test_a_line_has_its_step_its_split_and_named_numbers(tmp_path):
    MetricsFile(tmp_path, 0).write(10, "validation", nll=0.25, seconds=3.0)
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {
        "step": 10,
        "split": "validation",
        "nll": 0.25,
        "seconds": 3.0,
    }
