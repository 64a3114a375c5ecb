"""Ctrl-C and SIGTERM: the loop finishes its step, saves and ends; a second one leaves at once."""

import os
import signal
import time
from typing import Any

import jax

SAVE = 1  # what a process may ask all of them for; any higher number is a signal's: stop


class Requests:
    """What this process asks for: SAVE once `minutes` are over, or the number of a signal.

    A context: within it the signals are asked for, and outside they do what they did before.
    """

    def __init__(self, minutes: float):
        self._minutes = minutes
        self._signal = 0
        self.saved()

    def __enter__(self) -> "Requests":
        self._before = {n: signal.signal(n, self._handle) for n in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: Any) -> None:
        if self._signal:
            os._exit(128 + number)
        self._signal = number
        # Written past Python's buffers, which the interrupted code may be in the midst of filling.
        os.write(2, b"stopping after this step, saving; once more leaves at once\n")

    def saved(self) -> None:
        self._since = time.monotonic()

    @property
    def now(self) -> int:
        # One clock alone decides: those of several processes would each ask at a time of its own.
        due = self._minutes and time.monotonic() - self._since >= 60 * self._minutes
        return self._signal or (SAVE if due and jax.process_index() == 0 else 0)
