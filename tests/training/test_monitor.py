"""metrics.jsonl without a repeated or missing line, and progress that a log file can hold."""

import json
import re
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jformer.main import main
from jformer.training.metrics import MetricsAccumulator, StepMetrics
from jformer.training.monitor import MetricsFile, Profile, Progress
from tests.conftest import small_flags


def step_at(step, **metrics):
    """One token with a loss of 0.5."""
    values = {"loss": 0.5, "nll": 0.0, "tokens": 1.0, "gradient_norm": 1.0, "skipped": 0, **metrics}
    return StepMetrics(
        step, 0, step - 1, {name: jnp.float32(value) for name, value in values.items()}
    )


def steps_in(path):
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_a_resumed_file_drops_what_happens_again_and_a_torn_last_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, 0)
    for step in (10, 20, 30):
        file.write(step, "train", loss=1.5)
    with path.open("a") as torn:
        torn.write('{"step": 40, "spl')
    file = MetricsFile(path, 20)
    file.write(30, "train", loss=1.0)
    assert steps_in(path) == [10, 20, 30]


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
    file = MetricsFile(tmp_path / "metrics.jsonl", 0)
    assert file.write(10, "validation", nll=0.25, seconds=3.0) == "validation  nll 0.25"
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {
        "step": 10, "split": "validation", "nll": 0.25, "seconds": 3.0,
    }  # fmt: skip


def test_sums_go_on_from_those_of_a_checkpoint():
    window = MetricsAccumulator({"loss": 1.25, "tokens": 2.0, "steps": 3.0})
    for step in range(4, 9):
        window.add(step_at(step), 10.0)
    assert [seen.step for seen in window.drain(lambda: 2)] == [4, 5, 6]
    assert (window.sums()["loss"], window.sums()["steps"]) == (2.75, 6)
    assert [seen.step for seen in window.drain()] == [7, 8]
    sums = window.sums()
    assert (sums["loss"], sums["tokens"], sums["steps"]) == (3.75, 7.0, 8.0)
    assert MetricsAccumulator(sums).sums() == sums


def test_speed_and_utilization_are_those_of_this_process_alone():
    """The tokens of a checkpoint's sums took their time in another one."""
    window = MetricsAccumulator({"loss": 1.25, "nll": 2.0, "tokens": 2.0, "steps": 3.0})
    for step in range(4, 9):
        window.add(step_at(step), flops_a_token=10.0)
    assert len(list(window.drain())) == 5
    means = window.means(seconds=2.0, peak=100.0)
    assert means["tokens_per_second"] == 5 / 2
    assert means["mfu"] == 5 * 10 / 2 / 100
    assert (means["loss"], means["nll"]) == (3.75 / 7, 2 / 7)
    assert means["perplexity"] == pytest.approx(np.exp(2 / 7))


def test_the_work_of_the_whole_run_is_counted_on_over_lines_and_checkpoints():
    window = MetricsAccumulator({"flops_in_all": 7.0})
    for step in (1, 2):
        window.add(step_at(step), flops_a_token=10.0)
        assert len(list(window.drain())) == 1
        means = window.means(seconds=1.0, peak=1.0)
        window = window.next()
    assert means["flops"] == window.sums()["flops_in_all"] == 27.0
    assert means["mfu"] == 10.0  # of its own window
    assert window.sums()["steps"] == 0


def test_the_gradient_norm_is_a_mean_over_the_updates_that_were_made():
    window = MetricsAccumulator({})
    for step, skipped in enumerate([0, 1, 0, 1], start=1):
        window.add(step_at(step, skipped=skipped, gradient_norm=3.0 - 3 * skipped), 1.0)
    assert len(list(window.drain())) == 4
    means = window.means(1.0, 1.0)
    assert (means["gradient_norm"], means["skipped"]) == (3.0, 2.0)


def test_progress_off_a_terminal_is_lines_with_the_time_left(capsys):
    progress = Progress(90, 1000)
    for _ in range(20):
        progress.advance({})
    progress.report(110, "loss 2.5")
    progress.close()
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"step 91/1000  done in 0 s, with compilation", lines[0])
    assert re.fullmatch(r"step 110/1000  ETA 00:00  ", lines[1])
    assert re.fullmatch(r"step 110/1000  ETA 00:00  loss 2.5", lines[2])


@pytest.fixture
def traces(monkeypatch):
    """Calls of JAX's profiler."""
    calls = []
    monkeypatch.setattr("jax.profiler.start_trace", lambda folder: calls.append(f"to {folder}"))
    monkeypatch.setattr("jax.profiler.stop_trace", lambda: calls.append("stop"))
    return calls


@pytest.mark.parametrize(
    ("text", "steps", "expected"),
    [
        ("3:2", range(1, 9), ["1", "2", "to run/profile", "3", "4", "stop", "5", "6", "7", "8"]),
        ("3:2", range(4, 7), ["4", "5", "6"]),  # a run that was resumed beyond it
        ("3:9", range(1, 5), ["1", "2", "to run/profile", "3", "4", "stop"]),  # and one too short
        ("", range(1, 3), ["1", "2"]),
    ],
)
def test_a_profile_is_of_its_steps_and_is_written_when_the_run_ends(traces, text, steps, expected):
    profile = Profile(text, Path("run"))
    for step in steps:
        profile.step_begins(step)
        traces.append(str(step))
        profile.step_ended(step, {})
    profile.close()
    assert traces == expected
