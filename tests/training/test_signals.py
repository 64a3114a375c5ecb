"""Signals end a run with all saved; a second one ends it at once."""

import functools
import signal
import subprocess
import sys
import types

import pytest

from jformer.main import main
from jformer.training.checkpoints import Checkpoints
from jformer.training.loop import Loop
from jformer.training.signals import SAVE, Signals
from tests.conftest import small_flags


@pytest.fixture
def heard():
    """SIGHUP as on a terminal: these tests may run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def last_line(text):
    return text.splitlines()[-1]


@pytest.mark.process
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_saves_the_step_that_it_falls_in_and_sets_the_exit_status(
    corpus_directory, tmp_path, during_step, heard, capsys, name
):
    """The status is 130, 143 or 129, as a shell has it for a process that the signal ends."""
    number = getattr(signal, name)
    during_step({5: functools.partial(signal.raise_signal, number)})
    assert main(["jformer", *small_flags(corpus_directory, tmp_path / "run")]) == 128 + number
    assert Checkpoints(tmp_path / "run").steps() == [3, 5]
    out, err = capsys.readouterr()
    assert out == ""
    assert name in last_line(err)


@pytest.mark.process
@pytest.mark.parametrize("work", ["validate", "save"])
def test_a_signal_in_the_last_validation_or_save_is_heard(
    corpus_directory, tmp_path, monkeypatch, capsys, work
):
    own = getattr(Loop, work)

    def with_signal(self, argument):
        if int(self.state.step) == 12:
            signal.raise_signal(signal.SIGTERM)
        own(self, argument)

    monkeypatch.setattr(Loop, work, with_signal)
    command = ["jformer", *small_flags(corpus_directory, tmp_path / "run")]
    assert main(command) == 128 + signal.SIGTERM
    out, err = capsys.readouterr()
    assert out == ""
    assert "SIGTERM" in last_line(err)
    assert 12 in Checkpoints(tmp_path / "run").steps()
    assert main(command) == 0  # and now it is scored
    assert (tmp_path / "run" / "results.json").exists()


def test_a_second_signal_leaves_at_once():
    program = (
        "import os, signal, time\n"
        "from jformer.training.signals import Signals\n"
        "with Signals(0):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('still here', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(60)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout == "still here\n"
    assert result.stderr.count("\n") == 1  # the hint that a second signal leaves at once
    assert result.returncode == 128 + signal.SIGINT


def test_a_terminal_that_goes_is_a_stop_unless_nohup_ignores_it(heard):
    with Signals(0) as signals:
        signal.raise_signal(signal.SIGHUP)
        assert signals.request == SAVE + signal.SIGHUP
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Signals(0) as signals:
        signal.raise_signal(signal.SIGHUP)
        assert signals.request == 0


def test_outside_of_training_signals_do_what_they_did():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with Signals(0):
        pass
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_save_is_requested_when_the_minutes_since_the_last_one_are_over(monkeypatch):
    now = [100.0]
    clock = types.SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("jformer.training.signals.time", clock)
    signals, never, requests = Signals(minutes=2), Signals(minutes=0), []
    for seconds in (119, 1, 1000):
        now[0] += seconds
        requests.append(signals.request)
    signals.reset_timer()
    assert requests == [0, SAVE, SAVE]
    assert (signals.request, never.request) == (0, 0)


@pytest.mark.process
def test_the_minutes_count_from_the_last_save(corpus_directory, tmp_path, during_step, monkeypatch):
    """The clock jumps once: at this step there is a save, and at no later one but the last."""
    now, saved, save = [0.0], [], Loop.save
    clock = types.SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("jformer.training.signals.time", clock)
    during_step({5: lambda: now.append(now.pop() + 1000)})

    def noting(self, ended):
        saved.append(int(self.state.step))
        save(self, ended)

    monkeypatch.setattr(Loop, "save", noting)
    more = ["--config.train.checkpoint_every=1000", "--config.train.checkpoint_minutes=10"]
    more.append("--config.train.scored=validation")
    assert main(["jformer", *small_flags(corpus_directory, tmp_path / "run"), *more]) == 0
    assert saved == [5, 12]


@pytest.mark.process
def test_a_run_that_is_killed_has_the_checkpoints_of_its_clock(
    corpus_directory, tmp_path, during_step
):
    def killed():
        raise KeyboardInterrupt

    during_step({11: killed})
    more = ["--config.train.checkpoint_every=1000", "--config.train.checkpoint_minutes=1e-9"]
    assert main(["jformer", *small_flags(corpus_directory, tmp_path / "run"), *more]) == 130
    assert Checkpoints(tmp_path / "run").steps() == [10]
