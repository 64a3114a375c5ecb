"""A point at work: one process, and who else must keep away from its run directory."""

import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Collection, Mapping
from typing import BinaryIO

from experiments.sweep import Point


class Work:
    """A process that runs a point's command. What it says is kept in the run directory."""

    def __init__(
        self, point: Point, lock: BinaryIO, environment: Mapping[str, str], cores: Collection[int]
    ):
        self._point = point
        self._partial = point.scores.with_name(point.scores.name + ".partial")
        self._partial.unlink(missing_ok=True)  # of a killed one; a link would be written through
        with self._partial.open("xb") as scores, point.log.open("ab") as log:
            # Ctrl-C and preemption are for who started it, who then asks it to save and end.
            before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
            self._process = subprocess.Popen(
                point.command, stdin=subprocess.DEVNULL, stdout=scores, stderr=log,
                env={**os.environ, **environment}, start_new_session=True,
                pass_fds=[lock.fileno()],
            )  # fmt: skip
            signal.signal(signal.SIGUSR2, before)
        if cores:
            with contextlib.suppress(ProcessLookupError):  # it has ended already
                os.sched_setaffinity(self._process.pid, cores)

    def poll(self) -> str | None:
        """None while it works, then what went wrong, or nothing."""
        status = self._process.poll()
        return None if status is None else self._ended(status)

    def wait(self) -> str:
        return self._ended(self._process.wait())

    @property
    def was_stopped(self) -> bool:
        """Whether it has ended because it was asked to, with all saved."""
        return self._process.returncode == 128 + signal.SIGTERM

    def stop(self) -> None:
        """Ask it to save and to end."""
        self._process.send_signal(signal.SIGTERM)

    def join(self) -> None:
        """Return when it has ended. May interrupt `wait`, as the handler of a signal does.

        Popen's own wait would then wait for a lock which this very thread holds.
        """
        if self._process.returncode is None:
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            self._process.poll()

    def _ended(self, status: int) -> str:
        if status == 0:
            self._partial.replace(self._point.scores)
            return ""
        lines = self._point.log.read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
        how = f"status {status}" if status > 0 else f"killed by {signal.Signals(-status).name}"
        return f"{how}: {last.strip()} (all of it in {self._point.log})"


def begin(point: Point, environment: Mapping[str, str], cores: Collection[int]) -> Work | None:
    """None where another process is at work on the point: of another sweep, or of a killed one."""
    point.workdir.mkdir(parents=True, exist_ok=True)
    with (point.workdir / "sweep.lock").open("wb") as lock:
        try:
            # The process inherits the lock, which ends with it and not with this one.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        return Work(point, lock, environment, cores)
