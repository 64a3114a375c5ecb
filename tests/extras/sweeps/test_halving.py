"""Successive halving, with a small program in the place of each run, and with real runs."""

import json
import re
import subprocess
import sys

import pytest

from jformer.errors import RunError, UserError
from tests.conftest import sweep_flags
from tests.extras.sweeps.test_runner import command, run_small, table_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

SCORED = "--config.train.scored=validation"


@pytest.fixture
def search(tmp_path):
    """Run a sweep of these values of attention dropout in the folder `search.folder`."""

    def search(values, *flags, steps=8):
        path = tmp_path / "mine.py"
        points = [{"model.attention_dropout": value} for value in values]
        path.write_text(
            f'CONFIG = "configs/tiny.py:files"\n\ndef sweep():\n    yield from {points}\n'
        )
        return run_small(search.folder, steps, SCORED, *flags, path=str(path))

    search.folder = tmp_path / "search"
    return search


def points_of(folder):
    """The attention dropout of the runs directly in a folder, with the number of their steps."""
    found = {}
    for scores in folder.glob("*/scores.json"):
        config = json.loads((scores.parent / "config.json").read_text())
        found[scores.parent.name.partition("=")[2]] = config["train"]["steps"]
    return found


def test_the_better_half_of_each_round_goes_on_with_twice_as_many_steps(search, capsys):
    assert search([0.3, 0.1, 0.5, 0.2, 0.4], "--rounds=3") == 0
    every = {f"0.{i}": 2 for i in range(1, 6)}
    assert points_of(search.folder / "round-1") == every
    assert points_of(search.folder / "round-2") == {"0.1": 4, "0.2": 4, "0.3": 4}
    assert points_of(search.folder) == {"0.1": 8, "0.2": 8}
    out, err = capsys.readouterr()
    assert len([row for row in table_of(out) if row[0] == "run"]) == 3  # a table for each round
    told = [line for line in err.splitlines() if line.startswith("round ")]
    assert [re.findall(r"dropout=(0\.\d)", line) for line in told] == [
        ["0.3", "0.1", "0.2"], ["0.1", "0.2"],
    ]  # fmt: skip


def test_what_is_better_is_told_by_the_mean_over_seeds(tmp_path, search):
    path = tmp_path / "seeds.py"
    path.write_text(
        'CONFIG = "configs/tiny.py:files"\n\n'
        "def sweep():\n"
        '    yield {"model.attention_dropout": 0.0, "model.dropout": 0.5}\n'  # the best of seed 0
        '    yield {"model.attention_dropout": 0.1, "model.dropout": 0.0}\n'
    )
    run_small(search.folder, 4, SCORED, "--rounds=2", "--seeds=2", path=str(path))
    chosen = "model.attention_dropout=0.1+model.dropout=0.0"
    assert {run.parent.name for run in search.folder.glob("*/scores.json")} == {
        chosen, f"{chosen}+seed=1",
    }  # fmt: skip


def test_a_point_of_which_a_seed_failed_does_not_go_on_and_is_told_at_the_end(search, capsys):
    failing = search.folder / "round-1" / "model.attention_dropout=0.1+seed=1"
    failing.mkdir(parents=True)
    (failing / "fails").touch()
    with pytest.raises(
        RunError, match=r"1 of 4 points failed: model.attention_dropout=0.1\+seed=1"
    ):
        search([0.1, 0.2], "--rounds=2", "--seeds=2")
    assert points_of(search.folder) == {"0.2": 8, "0.2+seed=1": 8}


def test_a_failed_point_counts_when_half_of_the_points_is_rounded_up(search, capsys):
    failing = search.folder / "round-1" / "model.attention_dropout=0.1"
    failing.mkdir(parents=True)
    (failing / "fails").touch()
    with pytest.raises(RunError, match=r"attention_dropout=0\.1"):
        search([0.1, 0.2, 0.3], "--rounds=2")
    assert points_of(search.folder) == {"0.2": 8, "0.3": 8}


def test_the_same_command_again_runs_no_complete_point(search):
    search([0.1, 0.2], "--rounds=2")
    logs = {log: log.read_text() for log in search.folder.rglob("log.txt")}
    assert len(logs) == 3
    search([0.1, 0.2], "--rounds=2")
    assert {log: log.read_text() for log in search.folder.rglob("log.txt")} == logs


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--rounds=5",), "has 8 steps, too few for so many halvings"),
        (
            (
                "--rounds=2",
                "--config.optimizer.schedule=linear",
                "--config.optimizer.warmup_steps=5",
            ),
            "round 1 of 2, model.attention_dropout=0.1, 4 steps: config.optimizer.warmup_steps=5",
        ),
        (
            ("--rounds=2", "--config.train.scored=test"),
            "is scored on test, and what goes on is chosen on validation",
        ),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_runs(search, flags, told):
    with pytest.raises(UserError) as error:
        search([0.1], *flags)
    assert told in str(error.value)
    assert not search.folder.exists()


@pytest.mark.process
def test_the_winner_of_real_runs_is_the_run_that_a_plain_sweep_has(corpus_directory, tmp_path):
    flags = sweep_flags(corpus_directory, steps=40)
    for folder, more in (("plain", []), ("search", ["--rounds=2"])):
        ended = subprocess.run(
            command(tmp_path / folder, flags, "--jobs=2", *more), capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stderr
    first = {
        name: json.loads((tmp_path / "search/round-1" / name / "scores.json").read_text())
        for name in ("base", "model.dropout=0.4")
    }
    winner = max(first, key=lambda name: first[name]["validation"]["bleu"])
    (whole,) = (tmp_path / "search").glob("*/scores.json")
    assert whole.parent.name == winner
    plain = json.loads((tmp_path / "plain" / winner / "scores.json").read_text())
    found = json.loads(whole.read_text())
    for scores in (plain, found):
        del scores["validation"]["seconds"]
    assert found == plain
