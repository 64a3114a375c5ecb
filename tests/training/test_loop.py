"""Whole runs: killed and resumed, refused, out of memory, out of patience, not finite."""

import contextlib
import functools
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
import orbax.checkpoint as ocp
import pytest

from jformer.config import read_config, write_config
from jformer.errors import UserError
from jformer.main import main
from jformer.rundir import BEST, read_metrics, read_results
from jformer.schema import replaced
from jformer.training.checkpoints import ARRAYS, Checkpoints
from jformer.training.provenance import check_same_config, is_complete
from tests.conftest import small_flags
from tests.training.test_logging import lines_of

pytestmark = pytest.mark.process

STEPS = 32
PACKED = ["--config.data.batching=packed", "--config.data.augment=bpe_dropout(p=0.1)"]
IN_PARTS = ["--config.parallel.backend=pmap", "--config.train.accumulate=2"]
IN_PARTS.append("--config.train.ema_decay=0.9")
# Neither interval divides another: a checkpoint falls between two lines of the log.
VALUES = (f"steps={STEPS}", "log_every=7", "checkpoint_every=5", "evaluate_every=12")
INTERVALS = [f"--config.train.{value}" for value in (*VALUES, "average_checkpoints=20")]
INTERVALS.append("--config.train.scored=validation")


def flags_of(corpus_directory, workdir, *more):
    """Of a run that does not score the test set."""
    return ["jformer", *small_flags(corpus_directory, workdir), "--config.data.test=", *more]


def start(corpus_directory, workdir, *more, devices=1):
    _, *flags = flags_of(corpus_directory, workdir, *more)
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices)}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-m", "jformer.main", *flags], env=env, **quiet)


def kill_after(checkpoint, process, seconds=0.0):
    while not checkpoint.exists() and process.poll() is None:
        time.sleep(0.002)
    time.sleep(seconds)
    process.kill()
    return process.wait()


def saved(workdir, step):
    """The arrays of a checkpoint, on one device, and its position."""
    folder, trees = workdir / "checkpoints" / str(step), {}
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    for name in filter(lambda name: (folder / name).exists(), ARRAYS):
        shapes = ocp.StandardCheckpointHandler().metadata(folder / name).tree
        like = functools.partial(jax.ShapeDtypeStruct, sharding=one)
        trees[name] = jax.tree.map(lambda x, like=like: like(x.shape, x.dtype), shapes)
    found = Checkpoints(workdir).read(step, {**trees, "position": None})
    assert found["position"].pop("seconds") > 0
    return found


def untimed(lines):
    measured = ("tokens_per_second", "seconds")
    return [{name: value for name, value in one.items() if name not in measured} for one in lines]


def assert_same_run(one, other):
    """Every array and the position in the data, all lines of the log, scores and served weights."""
    jax.tree.map(np.testing.assert_array_equal, saved(one, STEPS), saved(other, STEPS))
    assert untimed(read_metrics(one)) == untimed(read_metrics(other))
    assert_in_order(one)
    results = read_results(one)
    assert untimed(results.values()) == untimed(read_results(other).values())
    assert results["served"]["step"] == STEPS


def assert_in_order(workdir):
    steps = [line["step"] for line in read_metrics(workdir)]
    assert steps == sorted(steps)


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
@pytest.mark.parametrize("seed", range(4))
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
    assert re.search(r"complete.*config\.train\.steps", err)
    assert before == {p: p.stat().st_mtime_ns for p in workdir.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("schedule", "change", "differs"),
    [
        ("equation_3", {"seed": 4, "model": {"dropout": 0.3}}, r"seed\b.*0\b.*4\b.*dropout.*0\.3"),
        ("equation_3", {"train": {"steps": 99, "log_every": 1}, "decode": {"beam_size": 9}}, ""),
        ("cosine", {"train": {"steps": 99}}, r"config\.train\.steps\b.*12\b.*99\b"),
    ],
)
def test_another_config_is_refused_with_what_differs_but_more_steps_are_the_same_run(
    trained_workdir, tmp_path, schedule, change, differs
):
    optimizer = {"optimizer": {"schedule": schedule, "warmup_steps": 2}}
    config = replaced(read_config(trained_workdir / "config.json"), optimizer)
    write_config(config, tmp_path / "config.json")
    other = replaced(config, change)
    check_same_config(other, tmp_path)  # without a checkpoint the run begins anew
    (tmp_path / "checkpoints" / "12").mkdir(parents=True)
    check_same_config(config, tmp_path)
    with pytest.raises(UserError, match=differs) if differs else contextlib.nullcontext():
        check_same_config(other, tmp_path)


@pytest.mark.parametrize(
    ("workdir", "flag", "status", "message"),
    [
        ("new", "--config.parallel.fsdp=3", 2, "fsdp=3"),
        ("file/run", "--config.seed=1", 2, "Not a directory"),
        ("run", "--config.seed=1", 1, "vocabulary.json"),  # which is a folder there
    ],
)
def test_a_run_that_cannot_begin_is_one_line_and_leaves_nothing_behind(
    corpus_directory, tmp_path, capsys, workdir, flag, status, message
):
    (tmp_path / "run" / "vocabulary.json").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    assert main(flags_of(corpus_directory, tmp_path / workdir, flag)) == status
    assert re.match(rf"jformer: .*{message}", capsys.readouterr().err.splitlines()[-1])
    assert {path.name for path in tmp_path.iterdir()} == {"run", "file"}


def test_a_run_ends_after_its_patience_with_all_saved_and_goes_on_with_more(
    corpus_directory, tmp_path, capsys
):
    """It cannot learn; its 20 steps are validated at every second."""
    workdir = tmp_path / "run"
    more = ["--config.optimizer.schedule=equation_3(factor=1e-30)", "--config.train.steps=20"]
    more += ["--config.train.evaluate_every=2", "--config.train.checkpoint_every=1000"]

    def run(patience):
        flags = flags_of(corpus_directory, workdir, *more, f"--config.train.patience={patience}")
        assert main(flags) == 0
        validated = [line["step"] for line in lines_of(workdir, "validation")]
        assert read_metrics(workdir)[-1]["split"] == "ended"
        return validated, Checkpoints(workdir).steps()[-1], capsys.readouterr().err

    assert run(patience=3)[:2] == ([2, 4, 6, 8], 8)
    *same, said = run(patience=3)
    assert same == [[2, 4, 6, 8], 8]
    assert re.search(r"complete.*train\.patience", said)
    *longer, said = run(patience=4)
    assert longer == [[2, 4, 6, 8, 10], 10]
    assert re.search(r"resum.*step 8\b", said)
    assert read_metrics(workdir)[-1]["best_step"] == 2
    changes = {"patience": 2}, {"patience": 0, "steps": 10}, {"patience": 5}, {"patience": 0}
    config = read_config(workdir / "config.json")
    others = [replaced(config, {"train": change}) for change in changes]
    assert [is_complete(other, workdir) for other in others] == [True, True, False, False]


def test_updates_that_are_not_finite_change_nothing_and_ten_in_a_row_end_the_run(
    corpus_directory, tmp_path, capsys
):
    """The first update makes all others infinite. A resumed run counts from its start."""
    workdir, too_high = tmp_path / "run", "--config.optimizer.schedule=equation_3(factor=1e30)"

    def run(steps):
        intervals = ("checkpoint_every=1", "average_checkpoints=20", "evaluate_every=3")
        more = [f"--config.train.{name}" for name in (f"steps={steps}", *intervals)]
        return main(flags_of(corpus_directory, workdir, too_high, *more))

    assert run(steps=7) == 0
    first, *others = ({**saved(workdir, step), "position": {}} for step in range(1, 8))
    for state in others:
        jax.tree.map(np.testing.assert_array_equal, state, first)
    assert run(steps=40) == 1
    *_, last = capsys.readouterr().err.splitlines()
    assert re.match(r"jformer: .*\b10\b.*optimizer\.clip_norm", last)
    assert sum(line["skipped"] for line in lines_of(workdir, "train")) == 15  # of steps 2 to 16
    assert_in_order(workdir)
    assert {line["split"] for line in read_metrics(workdir)} >= {"train", "validation"}
    assert Checkpoints(workdir, folder=BEST).steps() == []  # NaN is not the best score
