"""Rows of the log, rendered and run again."""

import json
import re
import shutil
import types

import pytest

from experiments import log
from experiments.log import is_whole, read_rows, render, render_log, run, scores_of
from jformer.errors import UserError
from jformer.extras.views.report import read_run
from tests.conftest import file_flags, small_flags

ROW = {
    "id": 7, "date": "2026-11-21", "command": "--config=configs/base.py", "commit": "a", "seed": 0,
}  # fmt: skip


def test_a_row_is_a_line_of_the_table():
    row = {**ROW, "scores": {"test BLEU": "36.56", "test PPL": "5.290", "dev BLEU": "7.00"}}
    *_, line = render({"7": row}).splitlines()
    scores = "test BLEU 36.56, PPL 5.290; dev BLEU 7.00"
    assert line == f"| 7 | 2026-11-21 | `--config=configs/base.py` | a | 0 |  |  | {scores} |  |"
    row |= {"changes": "640 tokens", "outcome": "NLL 4.36, rising"}
    *_, line = render({"7": row}).splitlines()
    assert "| `--config=configs/base.py`, 640 tokens | a | 0 |  |  | NLL 4.36, rising |" in line


def test_a_row_can_be_run_again_if_its_command_is_whole():
    assert is_whole(ROW)
    assert not is_whole({**ROW, "changes": "640 tokens"})
    assert not is_whole({"changes": "as 7"})


def test_the_table_in_the_log_is_that_of_the_rows(monkeypatch, tmp_path):
    text = log.LOG.read_text(encoding="utf-8")
    old = tmp_path / "LOG.md"
    old.write_text(text.replace("| 12 | ", "| 512 | ", 1), encoding="utf-8")
    monkeypatch.setattr(log, "LOG", old)
    render_log()
    assert old.read_text(encoding="utf-8") == text


def test_the_log_itself_has_rows_that_can_be_run_again():
    rows = {number: row for number, row in read_rows(log.ROWS).items() if is_whole(row)}
    assert {"17", "21"} <= rows.keys()
    assert all(row["scores"] for row in rows.values())


@pytest.fixture
def logged(monkeypatch, tmp_path, trained_workdir, corpus_directory):
    """A log whose row 5 is of the run that the tests share, with one score that it has not."""
    seen = read_run(trained_workdir)
    keys = [f for f in small_flags(corpus_directory, "") if not f.startswith("--workdir")]
    placed = [*(f for f in keys if "data.test=" not in f), "--config.data.test=DIR"]
    scores = {**scores_of(seen), "other BLEU": "1.00"}
    monkeypatch.setattr(log, "ROWS", tmp_path / "rows.jsonl")
    log.ROWS.write_text(json.dumps({**ROW, "id": 5, "command": " ".join(placed), "scores": scores}))
    monkeypatch.setattr(log, "commit", lambda: "abc1234")
    return seen


@pytest.mark.process
def test_a_row_is_run_again_and_compared(logged, tmp_path, corpus_directory, capsys):
    (test,) = (flag for flag in file_flags(corpus_directory) if "data.test=" in flag)
    workdir = shutil.copytree(logged.workdir, tmp_path / "again")
    shutil.rmtree(workdir / "checkpoints")
    assert run(["5", f"--workdir={workdir}", test]) == 0
    heading, *lines, new = capsys.readouterr().out.splitlines()
    assert heading.split() == ["then", "now", "difference"]
    told = {re.split(r"  +", line)[0]: line.split()[-3:] for line in lines}
    assert told.pop("other BLEU") == ["1.00", "-", "-"]
    # Another test may have had the shared run's validation split scored as well.
    assert set(told) == scores_of(logged).keys()
    assert set(told) >= {"test BLEU", "test lc", "test chrF", "test PPL", "validation NLL"}
    assert {apart for *_, apart in told.values()} == {"+0.000"}
    # The printed row is one that can be run again in its turn.
    again = json.loads(new)
    assert is_whole(again)
    assert again["command"].split()[-1] == test
    assert again["scores"] == scores_of(logged)


@pytest.mark.process
def test_a_difference_is_what_is_more_now_than_then(logged, monkeypatch, capsys):
    row = {**ROW, "id": 5, "scores": {"validation NLL": "1.250"}}
    log.ROWS.write_text(json.dumps(row))
    ended = types.SimpleNamespace(returncode=0)
    monkeypatch.setattr(log.subprocess, "run", lambda *_, **options: ended)
    assert run(["5", f"--workdir={logged.workdir}"]) == 0
    (line,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("validation NLL"))
    then, now, apart = map(float, line.split()[-3:])
    assert (then, now) == (1.25, float(scores_of(logged)["validation NLL"]))
    assert apart == pytest.approx(now - then, abs=1e-3)
    assert now > 2


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["4"], r"4: .*rows\.jsonl.*\b5"),
        (["5"], "--config.data.test=FOLDER"),
    ],
)
def test_a_row_that_cannot_be_run_is_named(logged, arguments, message):
    with pytest.raises(UserError, match=message):
        run(arguments)


@pytest.mark.process
def test_a_run_that_fails_says_why(logged, tmp_path, capfd):
    flags = ["--config.data.test=none", f"--workdir={tmp_path / 'failed'}"]
    assert run(["5", *flags]) == 2
    assert "none.en: " in capfd.readouterr().err
