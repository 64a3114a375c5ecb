"""Ctrl-C and SIGTERM end a run with all saved; a second one ends it at once."""

import os
import signal
import subprocess
import sys
import threading
import time
import types

import pytest

from jformer.main import main
from jformer.training import loop
from jformer.training.checkpoint import Checkpoints
from jformer.training.stopping import SAVE, StopHandler
from tests.conftest import small_flags

pytestmark = pytest.mark.process


def test_ctrl_c_saves_the_step_that_it_falls_in_and_exits_with_130(
    corpus_directory, tmp_path, capsys
):
    workdir = tmp_path / "run"
    flags = [
        *small_flags(corpus_directory, workdir), "--config.train.steps=100000",
        "--config.train.checkpoint_every=100000", "--config.train.evaluate_every=100000",
    ]  # fmt: skip

    def interrupt():
        while (
            not (workdir / "metrics.jsonl").exists()
            or "train" not in (workdir / "metrics.jsonl").read_text()
        ):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    assert main(["jformer", *flags]) == 130
    (saved,) = (int(path.name) for path in (workdir / "checkpoints").iterdir())
    assert 4 <= saved < 100_000
    assert "SIGINT" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("work", ["validate", "save"])
def test_a_signal_in_the_last_validation_or_save_is_heard(
    corpus_directory, tmp_path, monkeypatch, capsys, work
):
    owner = loop if work == "validate" else Checkpoints
    own = getattr(owner, work)

    def with_signal(*arguments):
        state = arguments[1]
        if int(state.step) == 12:
            signal.raise_signal(signal.SIGTERM)
        return own(*arguments)

    monkeypatch.setattr(owner, work, with_signal)
    flags = [*small_flags(corpus_directory, tmp_path / "run"), "--config.train.evaluate_every=12"]
    assert main(["jformer", *flags]) == 128 + signal.SIGTERM
    out, err = capsys.readouterr()
    assert "SIGTERM" in err.splitlines()[-1]
    assert out == ""
    assert (tmp_path / "run" / "checkpoints" / "12").is_dir()
    assert main(["jformer", *flags]) == 0  # and now it is scored
    assert (tmp_path / "run" / "results.json").exists()


def test_a_terminal_that_goes_is_a_stop_unless_nohup_ignores_it():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopHandler(0) as requests:
            signal.raise_signal(signal.SIGHUP)
            assert requests.request == 0
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with StopHandler(0) as requests:
            signal.raise_signal(signal.SIGHUP)
            assert requests.request == SAVE + signal.SIGHUP
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_second_signal_leaves_at_once(name):
    program = (
        "import os, signal, time\n"
        "from jformer.training.stopping import StopHandler\n"
        "with StopHandler(0):\n"
        f"    os.kill(os.getpid(), signal.{name})\n"
        "    print('still here', flush=True)\n"
        f"    os.kill(os.getpid(), signal.{name})\n"
        "    time.sleep(60)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout == "still here\n"
    assert result.stderr.count("\n") == 1  # the hint that a second signal leaves at once
    assert result.returncode == 128 + getattr(signal, name)


def test_the_minutes_count_from_the_last_save(corpus_directory, tmp_path, monkeypatch):
    """The clock jumps once: one save more than that of the last step, not one at every step."""
    times, saves, save = iter([0.0] * 10), [], Checkpoints.save
    clock = types.SimpleNamespace(monotonic=lambda: next(times, 1000.0))
    monkeypatch.setattr("jformer.training.stopping.time", clock)

    def counting(checkpoints, state, *rest, **options):
        saves.append(int(state.step))
        save(checkpoints, state, *rest, **options)

    monkeypatch.setattr(Checkpoints, "save", counting)
    flags = [f for f in small_flags(corpus_directory, tmp_path / "run") if "data.test" not in f]
    more = ["--config.train.checkpoint_every=1000", "--config.train.checkpoint_minutes=10"]
    assert main(["jformer", *flags, *more]) == 0
    assert len(saves) == 2
    assert saves[0] < saves[1] == 12


def test_outside_of_training_signals_do_what_they_did():
    before = signal.getsignal(signal.SIGINT)
    with StopHandler(0) as requests:
        signal.raise_signal(signal.SIGINT)
        assert requests.request == SAVE + signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is before


def test_a_save_is_asked_for_when_the_minutes_are_over():
    requests = StopHandler(minutes=0.001)
    assert requests.request == 0
    time.sleep(0.07)
    assert requests.request == SAVE
    requests.saved()
    assert requests.request == 0
    assert StopHandler(minutes=0).request == 0
