"""The process that runs a point of a sweep, and the lock on its run directory."""

import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Collection, Mapping
from typing import BinaryIO

from jformer.extras.sweeps.points import Point


class Work:
    """A process that runs a point's command; its output is kept in the run directory."""

    def __init__(
        self, point: Point, lock: BinaryIO, environment: Mapping[str, str], cores: Collection[int]
    ):
        self._point = point
        self._partial = point.scores.with_name(point.scores.name + ".partial")
        self._partial.unlink(missing_ok=True)  # of a killed process; a link would be followed
        with self._partial.open("xb") as scores, point.log.open("ab") as log:
            # Ctrl-C and preemption signals are for the parent, which then asks it to save and end.
            before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
            self._process = subprocess.Popen(
                point.command,
                stdin=subprocess.DEVNULL,
                stdout=scores,
                stderr=log,
                env={**os.environ, **environment},
                start_new_session=True,
                pass_fds=[lock.fileno()],
            )
            signal.signal(signal.SIGUSR2, before)
        if cores:
            with contextlib.suppress(ProcessLookupError):  # the process has already ended
                os.sched_setaffinity(self._process.pid, cores)

    def poll(self) -> str | None:
        """Return None while the process runs, then an error message, or "" for success."""
        status = self._process.poll()
        return None if status is None else self._ended(status)

    def wait(self) -> str:
        return self._ended(self._process.wait())

    @property
    def was_stopped(self) -> bool:
        """Return whether the process ended on request, with everything saved."""
        return self._process.returncode == 128 + signal.SIGTERM

    def stop(self) -> None:
        """Ask the process to save and end."""
        self._process.send_signal(signal.SIGTERM)

    def join(self) -> None:
        """Return when the process has ended; may be called by a signal handler during `wait`.

        Popen's own wait would then block on a lock that this very thread holds.
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
    """Start a point; None if a process of another sweep, or of a killed one, still runs it."""
    point.workdir.mkdir(parents=True, exist_ok=True)
    with (point.workdir / "sweep.lock").open("wb") as lock:
        try:
            # The child inherits the lock, which is released when the child ends, not this process.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        return Work(point, lock, environment, cores)
