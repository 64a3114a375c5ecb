"""Signals end a run with all saved; a second one ends it at once."""

import functools
import signal
import subprocess
import sys
import time
import types

import pytest

from jformer.main import main
from jformer.training.checkpoints import Checkpoints
from jformer.training.signals import Signals
from tests.conftest import small_flags


@pytest.fixture
def heard():
    """SIGHUP as on a terminal: these tests may run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.process
def test_a_signal_saves_the_step_that_it_falls_in_and_sets_the_exit_status(
    corpus_directory, tmp_path, during_step, heard, capsys
):
    """The status is the one that a shell has for a process that the signal ends."""
    during_step({5: functools.partial(signal.raise_signal, signal.SIGHUP)})
    assert main(["jformer", *small_flags(corpus_directory, tmp_path / "run")]) == 129
    assert Checkpoints(tmp_path / "run").steps() == [3, 5]
    out, err = capsys.readouterr()
    assert out == ""
    assert "SIGHUP" in err.splitlines()[-1]


def test_a_second_signal_leaves_at_once():
    program = """
import signal, time
from jformer.training.signals import Signals
with Signals():
    signal.raise_signal(signal.SIGTERM)
    print('still here', flush=True)
    signal.raise_signal(signal.SIGINT)
    time.sleep(60)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout == "still here\n"
    assert result.stderr.count("\n") == 1  # the hint that a second signal leaves at once
    assert result.returncode == 128 + signal.SIGINT


def test_outside_of_training_and_where_nohup_ignores_it_a_signal_does_what_it_did(heard):
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    before = [signal.getsignal(number) for number in numbers]
    with Signals() as signals:
        signal.raise_signal(signal.SIGHUP)
        assert signals.caught == 0
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.process
def test_a_killed_run_has_the_checkpoints_of_its_clock_which_counts_from_the_last_save(
    corpus_directory, tmp_path, during_step, monkeypatch
):
    """The clock jumps once, before the one step that is saved."""
    now = [0.0]
    clock = types.SimpleNamespace(monotonic=lambda: now[0], perf_counter=time.perf_counter)
    monkeypatch.setattr("jformer.training.loop.time", clock)

    def killed():
        raise KeyboardInterrupt

    during_step({5: lambda: now.append(now.pop() + 1000), 8: killed})
    more = ["--config.train.checkpoint_every=1000", "--config.train.checkpoint_minutes=10"]
    assert main(["jformer", *small_flags(corpus_directory, tmp_path / "run"), *more]) == 130
    assert Checkpoints(tmp_path / "run").steps() == [5]
