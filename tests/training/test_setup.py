"""Before the first step: the lock, the comparison of configs; and what one sees of a whole run."""

import contextlib
import dataclasses
import io
import re
import types
from typing import NamedTuple

import numpy as np
import pytest

from jformer.config import read_config, write_config
from jformer.data.vocabulary import Vocabularies
from jformer.errors import UserError
from jformer.main import main
from jformer.training.checkpoint import Checkpoints
from jformer.training.setup import check_same_config, describe, is_trained
from tests.conftest import small_config, small_flags

pytestmark = pytest.mark.process


def test_a_batch_beyond_the_memory_is_one_line(corpus_directory, tmp_path, capsys):
    flags = [
        *small_flags(corpus_directory, tmp_path / "run"), "--config.model.d_ff=1000000",
        "--config.train.batch_tokens=10000000",
    ]  # fmt: skip
    assert main(["jformer", *flags]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "config.train.batch_tokens=10,000,000" in error
    assert "config.train.accumulate=1" in error
    assert "--memory=" in error


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--config.parallel.fsdp=3"], "fsdp=3"),
        (["--profile=2"], "--profile=2: "),
        (["--profile=0:2"], "--profile=0:2: "),
        (["--profile=a:b"], "--profile=a:b: "),
        (["--config.data.max_length=2"], "train.en"),
        (["--config.model.positions=learned(max_positions=53)"], "config.model.positions="),
    ],
)
def test_a_run_that_fails_before_it_began_leaves_nothing_behind(
    corpus_directory, tmp_path, capsys, flags, message
):
    (tmp_path / "validation.en").write_text(("1 " * 60 + "\n") * 7)
    (tmp_path / "validation.de").write_text("one\n" * 7)
    workdir = tmp_path / "runs" / "new"
    command = ["jformer", *small_flags(corpus_directory, workdir)]
    command += [f"--config.data.validation={tmp_path / 'validation'}", *flags]
    assert main(command) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not workdir.exists()


def test_a_directory_that_cannot_be_made_is_one_line(corpus_directory, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["jformer", *small_flags(corpus_directory, tmp_path / "file" / "run")]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"file/run: .*Not a directory", error)


def changed(config, section, **values):
    part = dataclasses.replace(getattr(config, section), **values)
    return dataclasses.replace(config, **{section: part})


@pytest.fixture
def decaying(trained_workdir, tmp_path):
    """A directory with a checkpoint, of a run whose rate decays until its last step."""
    config = changed(read_config(trained_workdir / "config.json"), "optimizer", schedule="cosine")
    (tmp_path / "checkpoints" / "12").mkdir(parents=True)
    return config, tmp_path


def test_other_steps_are_another_run_where_the_schedule_ends_with_them(decaying):
    config, workdir = decaying
    config = changed(config, "optimizer", schedule="cosine", warmup_steps=2)
    write_config(config, workdir / "config.json")
    check_same_config(changed(config, "train", log_every=1), workdir)
    with pytest.raises(UserError, match=r"config\.train\.steps\b.*12\b.*99\b"):
        check_same_config(changed(config, "train", steps=99), workdir)


def test_other_steps_are_the_same_run_where_decay_steps_are_set(decaying):
    config, workdir = decaying
    schedule = "cosine(decay_steps=12)"
    config = changed(config, "optimizer", schedule=schedule, warmup_steps=2)
    write_config(config, workdir / "config.json")
    check_same_config(changed(config, "train", steps=99), workdir)


def test_without_a_checkpoint_any_config_begins_anew(trained_workdir, tmp_path):
    config = read_config(trained_workdir / "config.json")
    write_config(config, tmp_path / "config.json")
    check_same_config(dataclasses.replace(config, seed=9), tmp_path)


@pytest.mark.parametrize("content", [None, "", '{"step": 12, "split": "train"}\n{"step": 12, "spl'])
def test_a_log_that_is_missing_or_torn_does_not_keep_a_run_from_going_on(decaying, content):
    config, workdir = decaying
    if content is not None:
        (workdir / "metrics.jsonl").write_text(content)
    assert is_trained(config, workdir)
    assert not is_trained(changed(config, "train", steps=13), workdir)


@pytest.fixture(scope="module")
def run(corpus_directory, tmp_path_factory):
    """A whole run: its directory, and what it said."""
    workdir, errors = tmp_path_factory.mktemp("whole") / "run", io.StringIO()
    flags = [f for f in small_flags(corpus_directory, workdir) if "data.test" not in f]
    more = [
        "--profile=2:2", "--config.train.checkpoint_every=3", "--config.train.keep_every=6",
        "--config.train.checkpoint_minutes=1e-9", "--config.model.dtype=bfloat16",
    ]  # fmt: skip
    with contextlib.redirect_stderr(errors):
        assert main(["jformer", *flags, *more]) == 0
    return workdir, errors.getvalue().splitlines()


def test_of_checkpoints_the_last_and_multiples_stay_and_those_of_the_clock_go(run):
    """The clock asks for one at every step here; the last two are averaged."""
    workdir, _ = run
    assert {path.name for path in (workdir / "checkpoints").iterdir()} == {"6", "9", "12"}


def test_a_run_that_ends_without_a_word_has_the_checkpoints_of_its_clock(
    corpus_directory, tmp_path, during_step
):
    def killed():
        raise KeyboardInterrupt

    during_step({11: killed})
    more = ["--config.train.checkpoint_every=1000", "--config.train.checkpoint_minutes=1e-9"]
    assert main(["jformer", *small_flags(corpus_directory, tmp_path / "run"), *more]) == 130
    assert Checkpoints(tmp_path / "run").steps() == [10]


def test_the_profile_of_a_run_is_a_trace_in_its_directory(run):
    workdir, lines = run
    (line,) = (line for line in lines if line.startswith("profile "))
    assert re.search(rf"2\b.*3\b.*{workdir / 'profile'}", line)
    assert any(path.stat().st_size for path in (workdir / "profile").rglob("*.xplane.pb"))


def test_what_is_trained_is_said_before_it_begins(run):
    _, lines = run
    first = lines.index(next(line for line in lines if line.startswith("step 1/12")))
    text = "\n".join(lines[:first])
    assert re.search(r"^model +[\d,]+ parameters, .*\d+, bfloat16", text, re.MULTILINE)
    assert re.search(r"^data +300\b", text, re.MULTILINE)
    assert re.search(r"^batches +\d+x\d+\+\d+\b", text, re.MULTILINE)
    assert re.search(r"\b\d\d%", text)
    assert re.search(r"^training +12 steps, 1\.\d epochs.*\bjit\b.*1 x cpu$", text, re.MULTILINE)


def test_shares_of_the_time_are_said_at_the_end_and_sum_to_100(run):
    _, lines = run
    (line,) = (line for line in lines if line.startswith("time "))
    (profile,) = (line for line in lines if line.startswith("profile "))
    assert lines.index(line) > lines.index(profile)
    shares = dict(part.rsplit(" ", 2)[:2] for part in line.partition(": ")[2].split(", "))
    assert sum(map(int, shares.values())) == 100
    parts = {"preparation", "compilation", "step", "input", "checkpoints", "evaluation", "other"}
    assert shares.keys() == parts


class Sized(NamedTuple):
    size: int


def test_devices_and_how_they_share_the_work_are_described():
    """With stand-ins, as this process has one device."""
    whole, split = ({"sharding": types.SimpleNamespace(is_fully_replicated=r)} for r in (1, 0))
    leaves = [types.SimpleNamespace(size=30, **whole), types.SimpleNamespace(size=90, **split)]
    device = types.SimpleNamespace(device_kind="TPU v9")
    task = types.SimpleNamespace(
        config=small_config(),
        mesh=types.SimpleNamespace(
            size=8, shape={"data": 2, "fsdp": 4, "model": 1}, devices=np.full((2, 4, 1), device)
        ),
        vocabularies=Vocabularies(Sized(1300), Sized(2000)),
        batches=types.SimpleNamespace(
            layout=types.SimpleNamespace(shapes=[(8, 16, 20), (4, 32, 40)]), rows=range(5000),
            epoch=lambda number: range(8), token_utilization=lambda: 0.875,
        ),
        report=types.SimpleNamespace(lines=lambda: ["nothing skipped or changed"]),
    )  # fmt: skip
    text = " ".join(describe(task, types.SimpleNamespace(params=leaves)).split())
    for facts in (
        r"model 120 parameters.*1,300\b.*2,000\b.*float32\b.*\bXLA\b",
        r"data 5,000\b.*nothing skipped or changed",
        r"batches 8x16\+20, 4x32\+40\b.*\b2\b.*\b88%",
        r"training 12 steps, 1\.5 epochs.*\b8\b.*8 x TPU v9\b.*data 2, fsdp 4, model 1\b.*\b75%",
    ):
        assert re.search(facts, text)
    task.config = small_config(steps=401)
    warning = describe(task, types.SimpleNamespace(params=leaves)).splitlines()[-1]
    assert re.match(r"warning +50\.1 .*config\.train\.steps", warning)


def test_a_directory_that_cannot_be_written_is_one_line(corpus_directory, tmp_path, capsys):
    """Before the first checkpoint as well: what the system says, and no traceback."""
    workdir = tmp_path / "run"
    (workdir / "vocabulary.json").mkdir(parents=True)
    assert main(["jformer", *small_flags(corpus_directory, workdir)]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("jformer: [Errno")
    assert "vocabulary.json" in last
