"""Progress that a log file can hold, with one estimate of the time left."""

import re

import pytest

from jformer.console import Progress


@pytest.fixture
def clock(monkeypatch):
    """The seconds that have passed, to be set."""
    seconds = [0.0]
    monkeypatch.setattr("jformer.console.time.monotonic", lambda: seconds[0])
    return seconds


@pytest.mark.parametrize(("total", "line"), [(4000, "line 2000/4000 .*01:20"), (None, "line 2000")])
def test_a_log_gets_a_line_now_and_then(capsys, clock, total, line):
    """The pace is that of this command, not of the lines that were there before."""
    progress = Progress("line", total, done=1000)
    clock[0] = 5
    progress.advance(500)
    assert capsys.readouterr().err == ""
    clock[0] = 40
    progress.advance(500)
    assert re.fullmatch(rf"{line}\n", capsys.readouterr().err)
