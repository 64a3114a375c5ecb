"""Metrics of steps, their sums and means, and traces of some steps."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jformer.main import main
from jformer.training.metrics import MetricsAccumulator, StepMetrics
from jformer.training.monitor import Profile
from tests.conftest import small_flags


def step_at(step, **metrics):
    """One token with a loss of 0.5."""
    values = {"loss": 0.5, "nll": 0.0, "tokens": 1.0, "gradient_norm": 1.0, "skipped": 0, **metrics}
    return StepMetrics(
        step, 0, step - 1, {name: jnp.float32(value) for name, value in values.items()}
    )


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


def test_speed_and_utilization_leave_out_steps_whose_time_is_compilation():
    window = MetricsAccumulator({})
    for step in range(1, 6):
        window.add(step_at(step), flops_a_token=10.0, timed=step > 2)
    assert len(list(window.drain())) == 5
    means = window.means(seconds=2.0, peak=100.0)
    assert (means["tokens_per_second"], means["mfu"]) == (3 / 2, 3 * 10 / 2 / 100)
    assert means["flops"] == 5 * 10


@pytest.mark.process
def test_a_run_of_one_step_claims_no_speed(corpus_directory, tmp_path):
    flags = small_flags(corpus_directory, tmp_path)
    assert main(["jformer", *flags, "--config.train.steps=1"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    (line,) = [line for line in lines if line["split"] == "train"]
    assert (line["tokens_per_second"], line["mfu"]) == (0, 0)


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
