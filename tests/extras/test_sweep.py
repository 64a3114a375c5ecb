"""Sweeps, with a small program in place of each run."""

import dataclasses
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jformer.config import write_config
from jformer.errors import RunError, Stopped, UserError
from jformer.extras import sweep
from jformer.extras.sweep import (
    Point,
    core_sets,
    environments,
    make_points,
    run_on_cluster,
    start,
)
from jformer.main import run

SWEEP = "tests/extras/sweep_of_two.py"
PROGRAM = Path(__file__).with_name("small_program.py")
NO_FILES = [f"--config.data.{split}=none" for split in ("train", "validation")]
needs_submitit = pytest.mark.skipif(
    not importlib.util.find_spec("submitit"), reason="needs the extra slurm"
)


class SmallPoint(Point):
    @property
    def arguments(self):
        config = json.dumps(dataclasses.asdict(self.config))
        return [str(PROGRAM), str(self.workdir), str(self.config.train.steps), config]


@pytest.fixture
def small_runs(monkeypatch):
    monkeypatch.setattr(sweep, "Point", SmallPoint)
    monkeypatch.setattr(sweep, "PAUSE", 0.01)
    monkeypatch.setattr(sweep, "SILENT", 0.1)


@pytest.fixture
def make(tmp_path):
    """The points of a sweep with this body of `sweep()`."""

    def make(body, flags=(), only="*", seeds=1):
        path = tmp_path / "mine.py"
        path.write_text(f'CONFIG = "configs/tiny.py"\n\n\ndef sweep():\n    {body}\n')
        return make_points(str(path), Path("runs/mine"), list(flags), only, seeds)

    return make


def test_a_point_is_named_by_its_changes(make):
    body = 'yield from ({}, {"model.num_heads": 2, "data.train": "a/b,c@d"})'
    base, point = make(body, ["--config.train.steps=7"])
    assert (base.name, base.config.model.num_heads) == ("base", 4)
    assert point.name == "model.num_heads=2+data.train=a%2Fb%2Cc%40d"
    assert point.arguments == [
        "-m", "jformer.main", "--config=configs/tiny.py", "--config.train.steps=7",
        "--config.model.num_heads=2", "--config.data.train=a/b,c@d",
        f"--workdir=runs/mine/{point.name}",
    ]  # fmt: skip


def test_a_long_name_ends_in_a_hash_and_is_the_name_of_one_folder(make):
    body = (
        'yield from ({"optimizer.name": f"muon(momentum={m}, weight_decay=0.125, adam_factor=2.5, "'
        '"beta1=0.875, beta2=0.96875)"} for m in (0.9, 0.8))'
    )
    names = [point.name for point in make(body)]
    assert len({*names}) == 2
    assert all(len(name) <= 100 and "/" not in name for name in names)


@pytest.mark.parametrize(
    ("only", "chosen"),
    [
        (
            "*",
            [("base", 5), ("seed=6", 6), ("model.dropout=0.2", 5), ("model.dropout=0.2+seed=6", 6)],
        ),
        ("*=0.2*", [("model.dropout=0.2", 5), ("model.dropout=0.2+seed=6", 6)]),
        ("*seed=6", [("seed=6", 6), ("model.dropout=0.2+seed=6", 6)]),
    ],
)
def test_further_seeds_follow_the_configs_own_and_only_chooses_points(make, only, chosen):
    body = 'yield from ({}, {"model.dropout": 0.2})'
    points = make(body, ["--config.seed=5"], only, seeds=2)
    assert [(point.name, point.config.seed) for point in points] == chosen


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('yield {"model.dropuot": 0.1}', r"--config\.model\.dropuot=0\.1: unknown.*dropout"),
        ("yield from ({}, {})", "yields the same config twice"),
        ('yield "model.num_heads=4"', r"mine\.py: ValueError"),
        ('yield {"model.num_heads": 1 // 0}', r"mine\.py:5: ZeroDivisionError"),
        ("return None", r"mine\.py: TypeError"),
    ],
)
def test_a_mistake_in_a_sweep_is_named(make, body, message):
    with pytest.raises(UserError, match=message):
        make(body)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--only=*heads*"], r"--only=\*heads\*: no point matches; available: base, model"),
        pytest.param(["--submit=slrm"], "--submit=slrm: .*slrm", marks=needs_submitit),
    ],
)
def test_a_mistake_in_the_command_is_one_line_before_anything_runs(tmp_path, flags, message):
    scored = "--config.train.scored=validation"
    with pytest.raises(UserError, match=message) as caught:
        run(["sweep", SWEEP, f"--workdir={tmp_path}", *NO_FILES, scored, *flags])
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*/config.json"))


def test_without_submitit_one_line_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)  # as if it were not there
    with pytest.raises(UserError, match="--submit requires packages: pip install submitit"):
        run(["sweep", SWEEP, f"--workdir={tmp_path}", *NO_FILES, "--submit=local"])


SWEEPS = [path for path in Path("experiments").glob("*.py") if "def sweep()" in path.read_text()]


@pytest.mark.parametrize("path", SWEEPS, ids=str)
def test_every_sweep_of_a_clone_has_points_with_sound_configs(capsys, path):
    assert run(["sweep", str(path), "--dry_run"]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 2


def test_a_point_is_complete_if_its_process_ended_well_with_this_very_config(make, tmp_path):
    (point,) = make("yield {}")
    point = dataclasses.replace(point, workdir=tmp_path)
    write_config(point.config, tmp_path / "config.json")
    assert not point.is_complete
    point.scores.write_text("{}")
    assert point.is_complete
    (longer,) = make('yield {"train.steps": 9999}')
    assert not dataclasses.replace(point, config=longer.config).is_complete


def test_cores_are_divided_among_several_processes(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(5)))
    assert core_sets(2) == [{0, 2, 4}, {1, 3}]
    assert core_sets(1) == [set()]  # all of them
    assert core_sets(6) == [set()] * 6


@pytest.mark.parametrize("visible", [None, "3,GPU-8f2a,5,6"])
def test_gpus_are_divided_and_more_processes_share_their_memory(monkeypatch, visible):
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    else:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    listed = subprocess.CompletedProcess([], 0, "GPU: NVIDIA H200\n" * 4)
    monkeypatch.setattr("subprocess.run", lambda command, **_: listed)
    a, b, c, d = (visible or "0,1,2,3").split(",")
    assert environments(2) == [
        {"CUDA_VISIBLE_DEVICES": f"{a},{c}"},
        {"CUDA_VISIBLE_DEVICES": f"{b},{d}"},
    ]
    eight = environments(8)
    assert [share["CUDA_VISIBLE_DEVICES"] for share in eight] == [a, b, c, d] * 2
    assert {share["XLA_PYTHON_CLIENT_MEM_FRACTION"] for share in eight} == {"0.450"}


def run_small(folder, steps, *flags, path=SWEEP):
    keys = [f"--config.train.steps={steps}", "--config.train.scored=validation"]
    return run(["sweep", str(path), f"--workdir={folder}", *keys, *NO_FILES, *flags])


def table_of(text):
    """The rows of the printed tables, with their headings."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


@pytest.mark.usefixtures("small_runs")
def test_each_point_is_run_once_and_printed_in_a_row(tmp_path, capsys):
    assert run_small(tmp_path, 5, "--jobs=2") == 0
    out, err = capsys.readouterr()
    heading, _, *rows = table_of(out)
    assert [row[heading.index("changed")] for row in rows] == ["base", "dropout=0.4"]
    assert {row[heading.index("validation BLEU (last)")] for row in rows} == {"**5.00**"}
    assert re.search("^base: step [1-5]/5$", err, re.M)  # the last line of its log so far
    overrides = tmp_path / "model.dropout=0.4" / "overrides.json"
    assert json.loads(overrides.read_text()) == {"model.dropout": 0.4}
    logs = {log: log.read_text() for log in tmp_path.rglob("log.txt")}
    assert len(logs) == 2
    assert run_small(tmp_path, 5) == 0
    assert {log: log.read_text() for log in tmp_path.rglob("log.txt")} == logs


@pytest.mark.usefixtures("small_runs")
def test_the_same_command_resumes_a_stopped_sweep(tmp_path):
    def stop():
        while not (tmp_path / "base" / "checkpoints" / "1").exists():
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(Stopped):
        run_small(tmp_path, 100, "--only=base")
    saved = len([*(tmp_path / "base" / "checkpoints").iterdir()])
    assert run_small(tmp_path, 100, "--only=base") == 0
    assert f"from step {saved}\n" in (tmp_path / "base" / "log.txt").read_text()


@pytest.mark.usefixtures("small_runs")
def test_a_failed_point_is_reported_and_tried_again_and_the_others_run(tmp_path, capsys):
    (tmp_path / "base").mkdir(parents=True)
    (tmp_path / "base" / "fails").touch()
    with pytest.raises(RunError, match="1 of 2 points failed: base"):
        run_small(tmp_path, 3)
    out, err = capsys.readouterr()
    assert "base: failed: status 1: small_program: it was told to fail" in err
    heading, _, *rows = table_of(out)
    assert [row[heading.index("steps")] for row in rows] == ["0 of 3", "3 of 3"]
    (tmp_path / "base" / "fails").unlink()
    assert run_small(tmp_path, 3) == 0


@pytest.mark.usefixtures("small_runs")
def test_ctrl_c_on_a_terminal_does_not_reach_the_runs(tmp_path):
    """A terminal sends SIGINT to every process of the command's process group."""
    (point,) = make_points(SWEEP, tmp_path, ["--config.train.steps=1", *NO_FILES], "base", 1)
    process = start(point, {}, set())
    assert os.getpgid(process.pid) == process.pid
    process.wait()


@needs_submitit
@pytest.mark.process
@pytest.mark.usefixtures("small_runs")
def test_a_preempted_job_saves_is_requeued_and_ends_as_if_it_had_not_been(tmp_path):
    (point,) = make_points(SWEEP, tmp_path, ["--config.train.steps=100", *NO_FILES], "base", 1)

    def preempt():
        while not (point.workdir / "checkpoints" / "3").exists():
            time.sleep(0.01)
        program, job = processes_of(point)
        os.kill(program, signal.SIGTERM)  # Slurm signals all processes of a job
        time.sleep(1)  # a job that has ended is not requeued
        os.kill(job, signal.SIGUSR2)

    thread = threading.Thread(target=preempt, daemon=True)
    thread.start()
    executor = sweep.make_executor("local:timeout_min=10", 1, tmp_path)
    assert run_on_cluster([point], executor) == []
    thread.join()
    assert point.is_complete
    starts = [line for line in point.log.read_text().splitlines() if line.startswith("from step")]
    assert len(starts) == 2
    assert starts[1] != "from step 0"
    assert len([*(point.workdir / "checkpoints").iterdir()]) == 100


def processes_of(point):
    """The process that runs the point's command, and the job's own above it."""
    listing = ["ps", "-eww", "-o", "pid=,ppid=,args="]
    for line in subprocess.check_output(listing, text=True).splitlines():
        pid, parent, command = line.split(maxsplit=2)
        if f"{PROGRAM} {point.workdir} " in command:
            return int(pid), int(parent)
    raise AssertionError(f"{point.name} does not run")
