"""Whole runs: killed and resumed, refused, out of memory, out of patience, not finite."""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jformer.config import read_config, write_config
from jformer.data.vocabulary import Vocabulary
from jformer.errors import UserError
from jformer.main import main
from jformer.rundir import read_metrics
from jformer.schema import replaced
from jformer.training import checkpoints as checkpoints_module
from jformer.training import step as step_module
from jformer.training.checkpoints import ARRAYS, Checkpoints
from jformer.training.provenance import check_same_config, is_complete
from tests.conftest import small_flags

pytestmark = pytest.mark.process

STEPS = 32
PACKED = ["--config.data.batching=packed", "--config.data.augment=bpe_dropout(p=0.1)"]
IN_PARTS = [
    "--config.parallel.backend=pmap", "--config.train.accumulate=2", "--config.train.ema_decay=0.9",
]  # fmt: skip
# Neither interval divides another: a checkpoint falls between two lines of the log.
INTERVALS = [
    f"--config.train.steps={STEPS}", "--config.train.log_every=7",
    "--config.train.checkpoint_every=5", "--config.train.evaluate_every=12",
    "--config.train.average_checkpoints=20",
]  # fmt: skip


def flags_of(corpus_directory, workdir, *more):
    """Of a run that does not score the test set."""
    flags = [f for f in small_flags(corpus_directory, workdir) if "data.test" not in f]
    return ["jformer", *flags, *more]


def start(corpus_directory, workdir, *more, devices=1):
    command = [
        sys.executable,
        "-m",
        "jformer.main",
        *flags_of(corpus_directory, workdir, *more)[1:],
    ]
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices)}
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill_after(checkpoint, process, seconds=0.0):
    while not checkpoint.exists() and process.poll() is None:
        time.sleep(0.002)
    time.sleep(seconds)
    process.kill()
    return process.wait()


def saved(workdir, step):
    """The arrays and the position of a checkpoint."""
    checkpoints = Checkpoints(workdir)
    names = [name for name in ARRAYS if (workdir / "checkpoints" / str(step) / name).exists()]
    found = checkpoints.read(step, dict.fromkeys(names), "position")
    assert found["position"].pop("seconds") > 0
    return found


def log_of(workdir):
    """The log without what depends on the time."""
    measured = ("tokens_per_second", "mfu", "seconds")
    lines = read_metrics(workdir)
    return [{name: n for name, n in line.items() if name not in measured} for line in lines]


def results_of(workdir):
    results = json.loads((workdir / "results.json").read_text())
    for scores in results.values():
        scores.pop("seconds", None)
    return results


def assert_same_run(one, other):
    """Every array and the position in the data, all lines of the log, scores and served weights."""
    jax.tree.map(np.testing.assert_array_equal, saved(one, STEPS), saved(other, STEPS))
    assert log_of(one) == log_of(other)
    steps = [line["step"] for line in log_of(one)]
    assert steps == sorted(steps)
    assert results_of(one) == results_of(other)
    assert results_of(one)["validation"]["params_sha256"]


@pytest.mark.optimized
def test_a_run_killed_and_resumed_ends_bit_equal_to_one_that_was_not(corpus_directory, tmp_path):
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    more = [*INTERVALS, *PACKED, "--config.optimizer.name=muon"]
    process = start(corpus_directory, killed, *more)
    assert kill_after(killed / "checkpoints" / "10", process) == -signal.SIGKILL
    processes = [start(corpus_directory, workdir, *more) for workdir in (undisturbed, killed)]
    assert [process.wait() for process in processes] == [0, 0]
    assert_same_run(killed, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_run_killed_at_random_moments_ends_bit_equal(corpus_directory, tmp_path, seed):
    """Every step is saved, so that many of the moments are in the midst of a save."""
    rng = np.random.default_rng(seed)
    more = [*INTERVALS, *(PACKED, IN_PARTS)[seed % 2], "--config.train.checkpoint_every=1"]
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    for _ in range(3):
        first_new = max(Checkpoints(killed).steps(), default=0) + 1
        process = start(corpus_directory, killed, *more, devices=2)
        kill_after(killed / "checkpoints" / str(first_new), process, rng.uniform(0, 0.5))
    for workdir in (killed, undisturbed):
        assert start(corpus_directory, workdir, *more, devices=2).wait() == 0
    assert_same_run(killed, undisturbed)


def test_a_save_that_fails_in_the_background_ends_the_run_before_the_next_one(
    corpus_directory, tmp_path, monkeypatch, during_step, capsys
):
    failing = threading.Event()

    def fail(*_):
        failing.set()
        raise OSError("no space left")

    def wait():
        assert failing.wait(60)
        time.sleep(0.2)  # until the exception has left the thread

    monkeypatch.setattr(checkpoints_module, "write_sums", fail)
    during_step({4: wait, 5: wait})
    more = ["--config.train.log_every=1", "--config.train.evaluate_every=100"]
    assert main(flags_of(corpus_directory, tmp_path / "run", *more)) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert re.match(rf"jformer: {tmp_path / 'run' / 'checkpoints'}: .*no space left", message)
    assert max(line["step"] for line in log_of(tmp_path / "run")) < 6


def test_a_run_scores_the_splits_that_it_is_asked_for_and_a_complete_one_prints_them_again(
    trained_workdir, corpus_directory, tmp_path, capfd
):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    command = ["jformer", *small_flags(corpus_directory, workdir), "--config.train.scored=all"]
    assert main(command) == 0
    scores = json.loads(capfd.readouterr().out)
    assert list(scores) == ["validation", "test"]
    before = {path: path.stat().st_mtime_ns for path in workdir.rglob("*") if path.is_file()}
    assert main(command) == 0
    out, err = capfd.readouterr()
    assert json.loads(out) == scores
    assert re.search(r"complete.*step 12\b.*config\.train\.steps", err)
    assert before == {p: p.stat().st_mtime_ns for p in workdir.rglob("*") if p.is_file()}


COSINE = {"optimizer": {"schedule": "cosine", "warmup_steps": 2}}
WITH_END = {"optimizer": {"schedule": "cosine(decay_steps=12)", "warmup_steps": 2}}


@pytest.mark.parametrize(
    ("of_both", "change", "differs"),
    [
        ({}, {"seed": 4, "model": {"dropout": 0.3}}, r"seed\b.*0\b.*4\b.*dropout.*0\.1\b.*0\.3\b"),
        ({}, {"train": {"steps": 99, "log_every": 1}, "decode": {"beam_size": 9}}, ""),
        (COSINE, {"train": {"steps": 99}}, r"config\.train\.steps\b.*12\b.*99\b"),
        (WITH_END, {"train": {"steps": 99}}, ""),
    ],
)
def test_another_config_is_refused_with_what_differs_but_more_steps_are_the_same_run(
    trained_workdir, tmp_path, of_both, change, differs
):
    config = replaced(read_config(trained_workdir / "config.json"), of_both)
    write_config(config, tmp_path / "config.json")
    other = replaced(config, change)
    check_same_config(other, tmp_path)  # without a checkpoint the run begins anew
    (tmp_path / "checkpoints" / "12").mkdir(parents=True)
    check_same_config(config, tmp_path)
    with pytest.raises(UserError, match=differs) if differs else contextlib.nullcontext():
        check_same_config(other, tmp_path)


def test_a_vocabulary_that_is_not_the_runs_own_is_refused(
    trained_workdir, corpus_directory, tmp_path, capsys
):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    command = ["jformer", *small_flags(corpus_directory, workdir), "--config.train.steps=15"]
    Vocabulary.train(["other text"], 300).save(workdir / "vocabulary.json")
    assert main(command) == 2
    assert str(workdir / "vocabulary.json") in capsys.readouterr().err.splitlines()[-1]
    (workdir / "vocabulary.json").unlink()
    assert main(command) == 2
    assert str(workdir / "vocabulary.json") in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--config.parallel.fsdp=3"], "fsdp=3"),
        (["--profile=2"], "--profile=2: "),
        (["--profile=0:2"], "--profile=0:2: "),
        (["--config.data.max_length=2"], "train.en"),
    ],
)
def test_a_run_that_fails_before_it_began_is_one_line_and_leaves_nothing_behind(
    corpus_directory, tmp_path, capsys, flags, message
):
    workdir = tmp_path / "runs" / "new"
    assert main(flags_of(corpus_directory, workdir, *flags)) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not workdir.exists()


def test_a_directory_that_cannot_be_made_or_written_is_one_line(corpus_directory, tmp_path, capsys):
    (tmp_path / "run" / "vocabulary.json").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    for name, status, told in (("file/run", 2, "Not a directory"), ("run", 1, "vocabulary.json")):
        assert main(flags_of(corpus_directory, tmp_path / name)) == status
        assert re.match(rf"jformer: .*{told}", capsys.readouterr().err.splitlines()[-1])


def test_a_batch_beyond_the_memory_is_one_line(corpus_directory, tmp_path, capsys):
    more = ["--config.model.d_ff=1000000", "--config.train.batch_tokens=10000000"]
    assert main(flags_of(corpus_directory, tmp_path / "run", *more)) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert re.match(r"jformer: .*batch_tokens=10,000,000 .*accumulate=1\b.*--memory=", message)


@pytest.fixture(scope="module")
def impatient(corpus_directory, tmp_path_factory):
    """Directory and calls of a run that cannot learn: with patience 3, once more, with 4."""
    workdir, calls = tmp_path_factory.mktemp("impatient") / "run", []
    more = [
        "--config.optimizer.schedule=equation_3(factor=1e-30)", "--config.train.steps=20",
        "--config.train.evaluate_every=2", "--config.train.checkpoint_every=1000",
    ]  # fmt: skip
    for patience in (3, 3, 4):
        flags, errors = [*more, f"--config.train.patience={patience}"], io.StringIO()
        with contextlib.redirect_stderr(errors):
            assert main(flags_of(corpus_directory, workdir, *flags)) == 0
        lines = [(n["step"], n["split"]) for n in log_of(workdir) if n["split"] != "train"]
        calls.append((lines, Checkpoints(workdir).steps()[-1], errors.getvalue()))
    return workdir, calls


def test_a_run_ends_after_its_patience_with_all_saved_and_goes_on_with_more(impatient):
    workdir, ((lines, saved, _), (again, _, complete), (longer, last, resumed)) = impatient
    assert lines == [*((step, "validation") for step in (2, 4, 6, 8)), (8, "ended")]
    assert saved == 8
    assert again == lines
    assert re.search(r"complete.*step 8\b.*config\.train\.patience", complete)
    assert re.search(r"resum.*step 8\b", resumed)
    assert longer == [*lines, (10, "validation"), (10, "ended")]
    assert last == 10
    ended = {"step": 10, "split": "ended", "patience": 4, "best_step": 2}
    assert log_of(workdir)[-1] == ended


@pytest.mark.parametrize(
    ("change", "complete"),
    [
        ({}, True),
        ({"patience": 2}, True),
        ({"patience": 5}, False),
        ({"patience": 0}, False),
        ({"patience": 0, "steps": 10}, True),
    ],
)
def test_a_run_is_complete_at_its_last_step_or_without_patience(impatient, change, complete):
    """It ended at step 10 of 20, with patience 4."""
    config = read_config(impatient[0] / "config.json")
    assert is_complete(replaced(config, {"train": change}), impatient[0]) is complete


# The first update makes the parameters so large that no other step is finite.
TOO_HIGH = "--config.optimizer.schedule=equation_3(factor=1e30)"


def skipped_in(workdir):
    return [line for line in log_of(workdir) if line["split"] == "skipped"]


def test_updates_that_are_not_finite_change_nothing_and_ten_in_a_row_end_the_run(
    corpus_directory, tmp_path, capsys
):
    """Also across a stop, and where they are fetched late no line goes back in steps."""

    def run(steps):
        intervals = ("checkpoint_every=1", "average_checkpoints=20", "evaluate_every=3")
        more = [f"--config.train.{name}" for name in (f"steps={steps}", *intervals)]
        return main(flags_of(corpus_directory, tmp_path / "run", TOO_HIGH, *more))

    assert run(steps=7) == 0
    for step in range(2, 8):
        arrays, before = ({**saved(tmp_path / "run", n), "position": n} for n in (step, 1))
        jax.tree.map(np.testing.assert_array_equal, arrays, {**before, "position": step})
    assert run(steps=40) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    batches = ", ".join(f"0:{n}" for n in range(1, 11))
    assert re.match(
        rf"jformer: .*\b2\b.*\b11\b.*{batches}\).*config\.optimizer\.clip_norm", message
    )
    assert skipped_in(tmp_path / "run") == [
        {"step": step, "split": "skipped", "epoch": 0, "batch": step - 1} for step in range(2, 12)
    ]
    steps = [line["step"] for line in log_of(tmp_path / "run")]
    assert steps == sorted(steps)
    assert {line["split"] for line in log_of(tmp_path / "run")} == {
        "skipped",
        "train",
        "validation",
    }
    assert Checkpoints(tmp_path / "run").steps(best=True) == []  # NaN is not the best score


def test_a_run_with_few_skipped_steps_in_a_row_goes_on(corpus_directory, tmp_path, monkeypatch):
    loss_sums = step_module.loss_sums

    def not_always_finite(logits_BTV, labels_BT, label_smoothing, *others):
        sums = loss_sums(logits_BTV, labels_BT, label_smoothing, *others)
        bad = (labels_BT.sum() % 3 > 0) & (label_smoothing > 0)  # not when it is evaluated
        return {**sums, "loss": jnp.where(bad, jnp.nan, sums["loss"])}

    monkeypatch.setattr(step_module, "loss_sums", not_always_finite)
    assert main(flags_of(corpus_directory, tmp_path / "run", "--config.train.steps=24")) == 0
    skipped = [line["step"] for line in skipped_in(tmp_path / "run")]
    assert 10 < len(skipped) < 24  # in all more than may be in a row
    for line in log_of(tmp_path / "run"):
        if line["split"] == "train":
            window = range(line["step"] - 3, line["step"] + 1)
            assert line["skipped"] == sum(step in window for step in skipped)
            assert np.isfinite(line["loss"])
