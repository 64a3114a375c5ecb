"""Signals that ask a run to stop: the loop finishes its step, saves and ends.

These are Ctrl-C, SIGTERM, and SIGHUP of a terminal that has gone, unless `nohup` has it ignored. A
second one leaves at once.
"""

import contextlib
import os
import signal
import time
from typing import Any

import jax

# What a process may ask all of them for: to save, or with the number of a signal added, to stop.
SAVE = 1


class StopHandler:
    """What this process asks for: SAVE once `minutes` are over, SAVE + a signal's number to stop.

    `signal` is that number, 0 without one. A context: within it the signals are asked for, and
    outside they do what they did before.
    """

    def __init__(self, minutes: float):
        self._minutes = minutes
        self.signal = 0
        self.saved()

    def __enter__(self) -> "StopHandler":
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        self._before = {number: signal.signal(number, self._handle) for number in numbers}
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: Any) -> None:
        if self.signal:
            os._exit(128 + number)
        self.signal = number
        # Written past Python's buffers, which the interrupted code may be in the midst of filling.
        with contextlib.suppress(OSError):  # where the terminal has gone
            os.write(2, b"stopping after this step, saving; once more leaves at once\n")

    def saved(self) -> None:
        self._since = time.monotonic()

    @property
    def now(self) -> int:
        # One clock alone decides: those of several processes would each ask at a time of its own.
        due = self._minutes and time.monotonic() - self._since >= 60 * self._minutes
        if self.signal:
            return SAVE + self.signal
        return SAVE if due and jax.process_index() == 0 else 0
