"""Signals that stop a run: the loop finishes its step, saves a checkpoint and ends.

They are SIGINT (Ctrl-C), SIGTERM and SIGHUP (a closed terminal). After `nohup`, SIGHUP stays
ignored. A second signal exits at once, without saving.
"""

import contextlib
import os
import signal
from typing import Any, Self


class Signals:
    """A context that notes the number of a signal in `caught`, which is 0 before."""

    caught = 0

    def __enter__(self) -> Self:
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
