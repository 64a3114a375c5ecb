"""The line-based input and output of commands; a stopped command can resume its output file.

Lines go to FILE.partial, whose first line identifies the job: everything that the lines depend on.
The same command resumes after the last whole line. FILE is complete when FILE.partial is gone.
"""

import contextlib
import dataclasses
import io
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from jformer import files
from jformer.errors import RunError, UserError


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


def check_output(name: str, inputs: Iterable[str]) -> None:
    """Raise `UserError` if --output=NAME cannot be written, or is one of the inputs."""
    if not name:
        return
    if os.path.realpath(name) in map(os.path.realpath, filter(None, inputs)):
        raise UserError(f"--output={name}: is an input of this command; choose another file")
    files.check_writable("output", name)
    if not files.is_special(name):
        files.check_writable("output", f"{name}.partial")


@contextlib.contextmanager
def open_output(name: str, job: dict[str, Any]) -> Iterator[Output]:
    """Open a file to write or to resume, or standard output without a name.

    A device or a pipe is written directly, as is the output of an empty `job`, one of whose inputs
    can be read only once. Raises `UserError` if another job began the file.
    """
    target = f"--output={name}" if name else "standard output"
    if not name or not job or files.is_special(name):
        path = name or sys.stdout.fileno()
        with open(path, "wb", buffering=0, closefd=bool(name)) as file:
            yield Output(file, target)
        return
    partial = Path(f"{name}.partial")
    with partial.open("ab", buffering=0) as file:
        yield Output(file, target, resume(file, partial, job))
        with partial.open("rb") as lines, files.writing(target, RunError):
            lines.readline()
            with open(name, "wb") as complete:
                shutil.copyfileobj(lines, complete)
        partial.unlink()


def resume(file: io.FileIO, path: Path, job: dict[str, Any]) -> int:
    """Keep the whole lines of the file; return how many input lines are done."""
    head = json.dumps(job).encode() + b"\n"
    done = size = 0
    with path.open("rb") as lines:
        if not head.startswith(lines.readline()):  # a kill can cut it
            raise UserError(
                f"{path}: another command began it (see its first line); delete it to start "
                f"over, or choose another --output"
            )
        for line in lines:
            if line.endswith(b"\n"):
                done, size = done + 1, size + len(line)
    file.truncate(len(head) + size if done else 0)
    if not done:
        file.write(head)
    return done
