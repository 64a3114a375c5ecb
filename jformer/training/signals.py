"""Signals that stop a run: the loop finishes its step, saves a checkpoint and ends.

The signals are SIGINT (Ctrl-C), SIGTERM and SIGHUP (the terminal was closed). One that the shell
ignores, as `nohup` does with SIGHUP, stays ignored. A second signal exits at once, without saving.
"""

import contextlib
import os
import signal
import time
from typing import Any

import jax

# A process requests a save, or with a signal's number added, a save and stop.
SAVE = 1


class Signals:
    """Turns signals and the checkpoint timer into requests; handles the signals as a context.

    A request is SAVE if `minutes` have passed since the last save, SAVE + a signal's number to
    stop, or 0.
    """

    def __init__(self, minutes: float):
        self._minutes = minutes
        self.caught = 0  # the number of a signal
        self.reset_timer()

    def __enter__(self) -> "Signals":
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        handled = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._handle) for number in handled}
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: Any) -> None:
        if self.caught:
            os._exit(128 + number)
        self.caught = number
        # Bypasses Python's buffers, which the interrupted code may be filling.
        with contextlib.suppress(OSError):  # the terminal may be closed
            os.write(2, b"stopping after this step; press Ctrl-C again to quit without saving\n")

    def reset_timer(self) -> None:
        self._since = time.monotonic()

    @property
    def request(self) -> int:
        # Only the first process times saves: other clocks would request additional saves.
        due = self._minutes and time.monotonic() - self._since >= 60 * self._minutes
        if self.caught:
            return SAVE + self.caught
        return SAVE if due and jax.process_index() == 0 else 0
