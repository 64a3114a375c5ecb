"""The line-based input and output of commands; a stopped command can resume its output file.

Lines go to FILE.partial, whose first line identifies the job: all that the lines depend on. The
same command resumes after the last whole line. FILE is complete when FILE.partial is gone.
"""

import contextlib
import dataclasses
import fcntl
import io
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from jformer import files
from jformer.console import say
from jformer.data.corpora import without_ends
from jformer.errors import RunError, Stopped, UserError


def standard_input() -> Iterator[bytes]:
    """Return the lines of standard input; none if it is closed."""
    return without_ends(sys.stdin.buffer if sys.stdin else ())


@dataclasses.dataclass(frozen=True)
class Output:
    """An open file, pipe or terminal that already has the outputs of `done` input lines."""

    file: io.FileIO
    target: str  # names the file in errors
    done: int = 0

    def write(self, text: str) -> None:
        """Write whole lines, without a buffer."""
        data = text.encode()
        with files.writing(self.target, RunError):
            while data:
                data = data[self.file.write(data) :]


def check_output(name: str, read: Iterable[str]) -> None:
    """Raise `UserError` if `open_output` would fail, or write to one of the files in `read`."""
    if not name and sys.stdout is None:
        raise UserError("standard output is closed; set --output=FILE")
    for path in read if name else ():
        if os.path.isfile(path) and os.path.realpath(path) == os.path.realpath(name):
            raise UserError(f"--output={name}: is an input of this command; choose another file")
    if name:
        files.check_writable("output", name)
    if name and not files.is_special(name):
        files.check_writable("output", f"{name}.partial")


@contextlib.contextmanager
def open_output(name: str, job: dict[str, Any], format: str) -> Iterator[Output]:
    """Open a file to write or to resume, or standard output without a name.

    An empty `job` never resumes. Raises `UserError` if another job began the file.
    """
    target = f"--output={name}" if name else "standard output"
    if not name or files.is_special(name):
        path = name or sys.stdout.fileno()
        with (
            open(path, "wb", buffering=0, closefd=bool(name)) as file,
            stopping("the output is incomplete"),
        ):
            yield Output(file, target)
        return
    partial, state = Path(f"{name}.partial"), "rerun the same command to resume"
    if not job:
        state = "the same command starts again"
        say(f"{partial}: cannot resume after a stop, because the input is read only once")
    with partial.open("ab", buffering=0) as file, stopping(state):
        yield Output(file, target, resume(file, partial, job, format))
        with partial.open("rb") as lines, files.writing(target, RunError):
            lines.readline()
            with open(name, "wb") as complete:
                shutil.copyfileobj(lines, complete)
        partial.unlink()


def resume(file: io.FileIO, path: Path, job: dict[str, Any], format: str) -> int:
    """Lock the file and keep its whole lines; return how many input lines are done."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"{path}: another command is writing it; choose another --output") from None
    head = json.dumps(job).encode() + b"\n"
    with path.open("rb") as lines:
        if not head.startswith(lines.readline()):  # a kill can cut it
            raise UserError(
                f"{path}: another command began it (see its first line); remove it to start "
                f"again, or choose another --output"
            )
        done, size = whole_lines(lines, format) if job else (0, 0)
    file.truncate(len(head) + size if done else 0)
    if not done:
        file.write(head)
    return done


def whole_lines(lines: Iterable[bytes], format: str) -> tuple[int, int]:
    """Return how many input lines have all their outputs, and the size of these outputs.

    In tsv an input line has several rows that begin with its number; the last may lack some.
    """
    done = size = before = 0
    last = b""
    for line in lines:
        if not line.endswith(b"\n"):
            break
        number = line.split(b"\t", 1)[0]
        if format != "tsv" or number != last:
            done, before, last = done + 1, size, number
        size += len(line)
    return (max(done - 1, 0), before) if format == "tsv" else (done, size)


@contextlib.contextmanager
def stopping(state: str) -> Iterator[None]:
    """Raise `Stopped` in the block on SIGTERM and Ctrl-C; its message ends with `state`."""

    def stop(number: int, frame: Any) -> None:
        raise Stopped(number, state)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
