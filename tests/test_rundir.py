"""The run directory: its lock, metrics.jsonl and results.json."""

import json
import shutil

import pytest

from jformer.main import main
from jformer.rundir import MetricsFile
from tests.conftest import small_flags


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
    aside = f"damaged, and put aside into metrics.jsonl.damaged: line 2, {len(lines) + 2}"
    told = f"{path}: {aside}"
    assert capfd.readouterr().err.splitlines().count(told) == 1
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
