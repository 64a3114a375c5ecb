"""Rows of LOG.md that are run again."""

import re
import shutil
import types

import pytest

from experiments import log
from experiments.log import read_log, read_scores, run_again, scores_of
from jformer.errors import UserError
from jformer.views.report import read_run
from tests.conftest import file_flags, small_flags

pytestmark = pytest.mark.process

HEADING = "| id | date | command | commit | seed | hardware | wall time | scores | remark |\n"


def row(number, command, scores="test BLEU 40.00"):
    return f"| {number} | 2026-11-21 | {command} | a | 0 | 2 cores | 1 min | {scores} | none |\n"


def test_rows_with_a_whole_command_can_be_run_again():
    text = HEADING + row(7, "`--config=configs/base.py --config.seed=3`")
    text += row(8, "`--config=configs/base.py`, 640 tokens") + row(9, "as 7")
    rows = read_log(text)
    assert list(rows) == ["7"]
    assert rows["7"].command == ["--config=configs/base.py", "--config.seed=3"]


def test_scores_are_read_by_split_and_name():
    cell = "test BLEU **36.56**, lc 36.88, PPL 5.290; dev BLEU 7.00; validation NLL 1.736; slow"
    assert read_scores(cell) == {
        "test BLEU": 36.56, "test lc": 36.88, "test PPL": 5.29, "dev BLEU": 7.0,
        "validation NLL": 1.736,
    }  # fmt: skip


def test_the_log_itself_has_rows_that_can_be_run_again():
    rows = read_log(log.LOG.read_text(encoding="utf-8"))
    assert {"17", "21"} <= rows.keys()
    assert all(row.scores for row in rows.values())


@pytest.fixture
def logged(monkeypatch, tmp_path, trained_workdir, corpus_directory):
    """A log whose row 5 is of the run that the tests share, with one score that it has not."""
    run = read_run(trained_workdir)
    keys = [f for f in small_flags(corpus_directory, "") if not f.startswith("--workdir")]
    placed = [*(f for f in keys if "data.test=" not in f), "--config.data.test=DIR"]
    text = HEADING + row(5, f"`{' '.join(placed)}`", f"{scores_of(run)}; other BLEU 1.00")
    monkeypatch.setattr(log, "LOG", tmp_path / "LOG.md")
    log.LOG.write_text(text)
    monkeypatch.setattr(log, "commit", lambda: "abc1234")
    return run


def test_a_row_is_run_again_and_compared(logged, tmp_path, corpus_directory, capsys):
    (test,) = (flag for flag in file_flags(corpus_directory) if "data.test=" in flag)
    workdir = shutil.copytree(logged.workdir, tmp_path / "again")
    shutil.rmtree(workdir / "checkpoints")
    assert run_again(["5", f"--workdir={workdir}", test]) == 0
    heading, *lines, new = capsys.readouterr().out.splitlines()
    assert heading.split() == ["then", "now", "difference"]
    told = {re.split(r"  +", line)[0]: line.split()[-3:] for line in lines}
    assert told.pop("other BLEU") == ["1.0", "-", "-"]
    # Another test may have had the shared run's validation split scored as well.
    assert set(told) == set(read_scores(scores_of(logged)))
    assert set(told) >= {"test BLEU", "test lc", "test chrF", "test PPL", "validation NLL"}
    assert {apart for *_, apart in told.values()} == {"+0.000"}
    # The printed row is one that can be run again in its turn.
    (again,) = read_log(new.replace("|  |", "| 6 |", 1)).values()
    assert again.command[-1] == test
    assert again.scores == read_scores(scores_of(logged))


def test_a_difference_is_what_is_more_now_than_then(logged, monkeypatch, capsys):
    log.LOG.write_text(HEADING + row(5, "`--config=it`", "validation NLL 1.250"))
    ended = types.SimpleNamespace(returncode=0)
    monkeypatch.setattr(log.subprocess, "run", lambda *_, **options: ended)
    assert run_again(["5", f"--workdir={logged.workdir}"]) == 0
    (line,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("validation NLL"))
    then, now, apart = map(float, line.split()[-3:])
    assert (then, now) == (1.25, read_scores(scores_of(logged))["validation NLL"])
    assert apart == pytest.approx(now - then, abs=1e-3)
    assert now > 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["4"], "4: is no row of LOG.md with a whole command; 5"),
        (["5"], "the row needs a folder of yours: --config.data.test=FOLDER"),
    ],
)
def test_a_row_that_cannot_be_run_is_named(logged, arguments, message):
    with pytest.raises(UserError, match=message):
        run_again(arguments)


def test_a_run_that_fails_says_why(logged, tmp_path, capfd):
    flags = ["--config.data.test=none", f"--workdir={tmp_path / 'failed'}"]
    assert run_again(["5", *flags]) == 2
    assert "none.en: no such file" in capfd.readouterr().err
