"""The run directory: its lock, and the lines of metrics.jsonl."""

import shutil

import pytest

from jformer.main import main
from jformer.rundir import locked, read_metrics
from tests.conftest import small_flags


@pytest.mark.process
def test_a_second_training_in_a_directory_is_refused_while_the_first_one_lives(
    trained_workdir, corpus_directory, tmp_path, capsys
):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    command = ["jformer", *small_flags(corpus_directory, workdir), "--config.train.steps=13"]
    with locked(workdir):
        assert main(command) == 2
        assert f"{workdir}: another" in capsys.readouterr().err.splitlines()[-1]
    assert main(command) == 0
    assert read_metrics(workdir)[-1]["step"] == 13
    assert not (workdir / "lock").exists()


def test_lines_of_the_metrics_that_a_kill_or_a_power_cut_has_spoilt_are_passed_over(tmp_path):
    assert read_metrics(tmp_path) == []
    text = '{"step": 1, "split": "train"}\n\0\0\0\n{"step": 2, "split": "train"}\n{"step": 3, "spl'
    (tmp_path / "metrics.jsonl").write_text(text)
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2]
    assert read_metrics(tmp_path)[-1] == {"step": 2, "split": "train"}
