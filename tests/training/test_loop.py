"""A run that is stopped anywhere goes on exactly; a real process, a real `kill -9`."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from jformer.components import arguments
from jformer.config import read_config
from jformer.errors import UserError
from jformer.main import main
from jformer.training.checkpoint import Checkpoints
from jformer.training.optimizer import make_optimizer
from jformer.training.setup import check_same_config
from jformer.training.step import create_state
from jformer.training.storage import SaveError
from tests.conftest import small_flags
from tests.training.test_stops import assert_served_alike

pytestmark = pytest.mark.process

STEPS = 32


PACKED = ["--config.data.batching=packed", "--config.data.augment=bpe_dropout(p=0.1)"]
IN_PARTS = [
    "--config.parallel.backend=pmap", "--config.train.accumulate=2", "--config.train.ema_decay=0.9",
]  # fmt: skip


def command(corpus_directory, workdir, more):
    without = ("every", "data.test")  # nothing is scored: that is for other tests
    flags = [f for f in small_flags(corpus_directory, workdir) if not any(w in f for w in without)]
    return [
        sys.executable, "-m", "jformer.main", *flags, f"--config.train.steps={STEPS}", *more,
        # Neither divides the other: a checkpoint falls between two lines of the log.
        "--config.train.log_every=7", "--config.train.checkpoint_every=5",
        "--config.train.evaluate_every=12", "--config.train.average_checkpoints=20",
    ]  # fmt: skip


def saved_run(workdir):
    """Everything that the last checkpoint holds."""
    from jformer.run import load

    run = load(workdir)
    optimizer = make_optimizer(run.config.optimizer, lambda count: 1.0)
    ema = run.config.train.ema_decay > 0
    state = create_state(run.model, optimizer, jax.random.key(0), ema)
    like = jax.device_put(state, jax.devices()[0])
    with Checkpoints(workdir) as checkpoints:
        return checkpoints.restore(checkpoints.steps()[-1], like)


def metrics_of(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        for measured in ("tokens_per_second", "mfu", "seconds"):
            line.pop(measured, None)
    return lines


def wait_for(path, process):
    while not path.exists():
        assert process.poll() is None, "the run ended before it could be stopped"
        time.sleep(0.002)


def assert_same_run(stopped, undisturbed):
    """Every leaf, the position in the data with the sums of the log, and every line of the log."""
    (state, position), (expected, expected_position) = saved_run(stopped), saved_run(undisturbed)
    assert int(state.step) == STEPS
    jax.tree.map(np.testing.assert_array_equal, state, expected)
    for measured in (position, expected_position):
        assert measured.pop("seconds") > 0
    assert position == expected_position
    assert metrics_of(stopped) == metrics_of(undisturbed)
    log = (stopped / "metrics.jsonl").read_text().splitlines()
    seconds = [json.loads(line).get("seconds", 0.0) for line in log]
    seconds = [each for each in seconds if each]
    assert seconds == sorted(seconds)  # a resumed run counts on
    steps = [line["step"] for line in metrics_of(stopped) if line["split"] == "train"]
    assert steps == [*range(7, STEPS, 7), STEPS]


@pytest.mark.optimized
def test_a_run_killed_and_resumed_ends_bit_equal_to_one_that_was_not(corpus_directory, tmp_path):
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    more = [*PACKED, "--config.optimizer.name=muon"]
    more.append(f"--config.data.test={corpus_directory / 'test'}")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command(corpus_directory, killed, more), **quiet)
    wait_for(killed / "checkpoints" / "10", process)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    reference = subprocess.Popen(command(corpus_directory, undisturbed, more), **quiet)
    again = subprocess.run(command(corpus_directory, killed, more), capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert re.search(r"resum.*step \d+", again.stderr)
    assert reference.wait() == 0
    assert_same_run(killed, undisturbed)
    assert_served_alike(killed, undisturbed)


@pytest.mark.slow  # test_stops has another such run, which is compared where it is served
def test_a_run_stopped_by_sigterm_under_pmap_in_parts_goes_on_bit_equal(corpus_directory, tmp_path):
    undisturbed, stopped = tmp_path / "undisturbed", tmp_path / "stopped"
    devices = {**os.environ, "JAX_NUM_CPU_DEVICES": "2"}
    process = subprocess.Popen(
        command(corpus_directory, stopped, IN_PARTS), env=devices, stderr=subprocess.PIPE, text=True
    )
    wait_for(stopped / "checkpoints" / "5", process)
    process.send_signal(signal.SIGTERM)
    errors = process.communicate()[1]
    assert process.returncode == 128 + signal.SIGTERM
    assert "SIGTERM" in errors.splitlines()[-1]
    saved = max(int(path.name) for path in (stopped / "checkpoints").glob("[0-9]*"))
    reference = subprocess.Popen(
        command(corpus_directory, undisturbed, IN_PARTS), env=devices, stderr=subprocess.DEVNULL
    )
    again = subprocess.run(
        command(corpus_directory, stopped, IN_PARTS), env=devices, capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    assert re.search(rf"resum.*step {saved}\b", again.stderr)
    assert reference.wait() == 0
    assert_same_run(stopped, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_run_killed_at_random_moments_ends_bit_equal(corpus_directory, tmp_path, seed):
    """Every step is saved, so that many of the moments are in the midst of a save."""
    rng = np.random.default_rng(seed)
    more = [[*PACKED, "--config.train.accumulate=2"], IN_PARTS][seed % 2]
    devices = {**os.environ, "JAX_NUM_CPU_DEVICES": "2"}
    every_step = "--config.train.checkpoint_every=1"
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    for _ in range(3):
        process = subprocess.Popen(
            [*command(corpus_directory, killed, more), every_step],
            env=devices, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        before = len(list(killed.glob("checkpoints/*")))
        while process.poll() is None and len(list(killed.glob("checkpoints/*"))) == before:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.5))
        process.kill()
        process.wait()
    for workdir in (killed, undisturbed):
        last = [*command(corpus_directory, workdir, more), every_step]
        assert subprocess.run(last, env=devices, stderr=subprocess.DEVNULL).returncode == 0
    assert_same_run(killed, undisturbed)


def test_after_each_step_the_loop_looks_for_a_save_that_has_failed(
    corpus_directory, tmp_path, monkeypatch, capsys
):
    """In the background, long before the next save."""

    def failed(checkpoints):
        raise SaveError("a failed save")

    monkeypatch.setattr(Checkpoints, "check_errors", failed)
    flags = [*small_flags(corpus_directory, tmp_path / "run"), "--config.train.log_every=1"]
    assert main(["jformer", *flags]) == 1
    assert capsys.readouterr().err.endswith("jformer: a failed save\n")
    assert [line["step"] for line in metrics_of(tmp_path / "run")] == [1]


@pytest.mark.parametrize(
    ("scored", "splits"), [("validation", ["validation"]), ("all", ["validation", "test"])]
)
def test_a_run_scores_the_splits_that_it_was_asked_for(
    trained_workdir, corpus_directory, tmp_path, capfd, scored, splits
):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    (workdir / "results.json").unlink()
    flags = [*small_flags(corpus_directory, workdir), f"--config.train.scored={scored}"]
    capfd.readouterr()
    assert main(["jformer", *flags]) == 0
    assert list(json.loads(capfd.readouterr().out)) == splits


def test_a_complete_run_prints_its_scores_again_and_trains_no_more(
    trained_workdir, corpus_directory, capsys
):
    before = {
        path: path.stat().st_mtime_ns for path in trained_workdir.rglob("*") if path.is_file()
    }
    assert main(["jformer", *small_flags(corpus_directory, trained_workdir)]) == 0
    captured = capsys.readouterr()
    assert re.search(r"complete.*step 12\b", captured.err)
    assert json.loads(captured.out.splitlines()[-1])["test"]["step"] == 12
    after = {path: path.stat().st_mtime_ns for path in trained_workdir.rglob("*") if path.is_file()}
    assert after.keys() == before.keys()
    assert not any("checkpoints" in str(path) for path in after if after[path] != before[path])


def test_metrics_hold_every_line_that_was_asked_for(trained_workdir):
    lines = metrics_of(trained_workdir)
    assert [line["step"] for line in lines if line["split"] == "train"] == [4, 8, 12]
    assert [line["step"] for line in lines if line["split"] == "validation"] == [6, 12]
    train = [line for line in lines if line["split"] == "train"]
    assert set(train[0]) == {
        "step", "split", "loss", "nll", "perplexity", "learning_rate", "gradient_norm", "skipped",
        "flops",
    }  # fmt: skip
    assert train[2]["flops"] > train[1]["flops"] > train[0]["flops"] > 0
    config = read_config(trained_workdir / "config.json")
    factor = arguments("schedule", config.optimizer.schedule)["factor"]
    rate = factor * 16**-0.5 * 8 * config.optimizer.warmup_steps**-1.5
    assert train[1]["learning_rate"] == pytest.approx(rate, rel=1e-5)


def test_another_config_in_the_same_directory_is_refused_with_what_differs(
    trained_workdir, corpus_directory, capsys
):
    flags = [
        *small_flags(corpus_directory, trained_workdir),
        "--config.model.dropout=0.3",
        "--config.seed=4",
    ]
    assert main(["jformer", *flags]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"config\.model\.dropout\b.*0\.1\b.*0\.3\b", error)
    assert re.search(r"config\.seed\b.*0\b.*4\b", error)


def test_more_steps_and_other_decoding_are_the_same_run(trained_workdir):
    import dataclasses

    config = read_config(trained_workdir / "config.json")
    train = dataclasses.replace(config.train, steps=99, log_every=1, evaluate_every=2)
    longer = dataclasses.replace(config, train=train)
    other_beam = dataclasses.replace(config, decode=dataclasses.replace(config.decode, beam_size=9))
    for same in (config, longer, other_beam):
        check_same_config(same, trained_workdir)
    with pytest.raises(UserError, match=r"config\.seed\b.*0\b.*7\b"):
        check_same_config(dataclasses.replace(config, seed=7), trained_workdir)


def test_a_vocabulary_that_is_not_the_runs_own_is_refused(
    trained_workdir, corpus_directory, tmp_path, capsys
):
    import shutil

    from jformer.data.vocabulary import Vocabulary

    copy = tmp_path / "copy"
    shutil.copytree(trained_workdir, copy)
    flags = [*small_flags(corpus_directory, copy), "--config.train.steps=15"]
    Vocabulary.train(["other text"], 300).save(copy / "vocabulary.json")
    assert main(["jformer", *flags]) == 2
    assert str(copy / "vocabulary.json") in capsys.readouterr().err.splitlines()[-1]
    os.remove(copy / "vocabulary.json")
    assert main(["jformer", *flags]) == 2
    assert str(copy / "vocabulary.json") in capsys.readouterr().err.splitlines()[-1]
