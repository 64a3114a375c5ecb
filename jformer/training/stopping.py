"""Handling of signals that ask a run to stop: the loop finishes its step, saves and ends.

The signals are SIGINT (Ctrl-C), SIGTERM, and SIGHUP (the terminal was closed) unless `nohup` has it
ignored. A second signal exits at once, without saving.
"""

import contextlib
import os
import signal
import time
from typing import Any

import jax

# The request of a process to all of them to save; with a signal's number added, to stop as well.
SAVE = 1


class StopHandler:
    """Turns signals and the checkpoint timer into requests to the loop.

    A request is SAVE once `minutes` have passed since the last save, SAVE + a signal's number to
    stop, or 0. `signal` is that number, or 0. As a context manager it handles the signals and
    restores the former handlers on exit.
    """

    def __init__(self, minutes: float):
        self._minutes = minutes
        self.signal = 0
        self.saved()

    def __enter__(self) -> "StopHandler":
        numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            numbers.remove(signal.SIGHUP)
        self._before = {number: signal.signal(number, self._handle) for number in numbers}
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: Any) -> None:
        if self.signal:
            os._exit(128 + number)
        self.signal = number
        # Bypasses Python's buffers, which the interrupted code may be in the midst of filling.
        with contextlib.suppress(OSError):  # the terminal may be closed
            os.write(2, b"stopping after this step, saving; once more leaves at once\n")

    def saved(self) -> None:
        self._since = time.monotonic()

    @property
    def request(self) -> int:
        # Only the first process times saves: the others' clocks would request further ones.
        due = self._minutes and time.monotonic() - self._since >= 60 * self._minutes
        if self.signal:
            return SAVE + self.signal
        return SAVE if due and jax.process_index() == 0 else 0
