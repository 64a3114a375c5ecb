"""Rows of the log, rendered and run again."""

from experiments import log
from experiments.log import is_whole, read_rows, render_log


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
