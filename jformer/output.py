"""Where lines come from and go to: whole ones only, whatever happens.

A file is FILE.partial until all of it is there, and FILE.job beside it says what is being done: the
same command goes on behind the last whole line.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from jformer.data.corpora import Report, clean, existing, without_ends
from jformer.errors import Stopped, UserError
from jformer.files import (
    check_partial,
    check_writable,
    final_path,
    is_special,
    open_partial,
    open_special,
    partial_of,
    read_object,
    replace_file,
    writing,
)


def standard_input() -> Iterator[bytes]:
    """Its lines; none where it is closed."""
    return without_ends(sys.stdin.buffer if sys.stdin else ())


def open_standard_error() -> None:
    """Where it is closed: else any file that is opened next would get its number."""
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def drop_output() -> None:
    """What standard output does not take: Python would fail once more when it ends."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Output:
    """An open file, pipe or terminal; `done` lines of the input have been written before."""

    goes_on = False  # whether the same command goes on with what a stopped one has written

    def __init__(self, descriptor: int, done: int = 0):
        self.done = done
        self._descriptor = descriptor

    def write(self, text: str) -> None:
        """Whole lines: where the disk is full, no half one stays in a file."""
        data, written = text.encode(), 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
        except OSError:
            half = written - (data.rfind(b"\n", 0, written) + 1)
            if half and stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                end = os.lseek(self._descriptor, 0, os.SEEK_CUR)
                os.ftruncate(self._descriptor, end - half)
            raise

    def complete(self) -> None:
        """All is written."""

    def close(self) -> None:
        os.close(self._descriptor)


def note_of(path: Path) -> Path:
    """Where it stands what job is writing a file."""
    return path.with_name(path.name + ".job")


class OutputFile(Output):
    """A file that appears when all of it is there."""

    def __init__(self, path: Path, job: dict[str, Any], format: str):
        """`job` is all that the lines depend on; one of nothing is always begun anew.

        What another job has begun is neither gone on with nor thrown away.
        """
        self.goes_on = bool(job)
        self._path = path
        self._partial = partial_of(path)
        self._note = note_of(path)
        super().__init__(open_partial(self._partial))
        try:
            self._begin(job, format)
        except (UserError, OSError):
            self.close()
            raise

    def _begin(self, job: dict[str, Any], format: str) -> None:
        """Go on, or begin anew."""
        self._lock()
        size = 0
        if self._note.exists():
            self.done, size = whole_lines(self._partial, format)
        if not (self.done and self._goes_on(job)):
            self.done = size = 0
            replace_file(self._note, json.dumps(job, indent=2).encode())
        os.ftruncate(self._descriptor, size)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{self._partial}: another command is writing it; wait for it, or choose another "
                f"--output"
            ) from None

    def _goes_on(self, job: dict[str, Any]) -> bool:
        before = read_object(self._note, f"remove it and {self._partial} to begin anew")
        if before and before != job:
            names = [name for name in {**before, **job} if job.get(name) != before.get(name)]
            names = names if job else ["input"]
            raise UserError(
                f"{self._partial}: was begun by another command, with another {', '.join(names)}; "
                f"remove it to begin anew, or choose another --output"
            )
        return bool(before)

    def complete(self) -> None:
        self._partial.rename(self._path)
        self._note.unlink()


def check_output(name: str, read: Iterable[str]) -> None:
    """Raise `UserError` where `open_output` would fail: loading a model takes its time.

    Or where it would take the place of a file that is `read`.
    """
    if not name and sys.stdout is None:
        raise UserError("standard output is closed; set --output=FILE")
    for path in read:
        if name and os.path.isfile(path) and os.path.realpath(path) == os.path.realpath(name):
            raise UserError(f"--output={name}: is read by this command, too; choose another file")
    if name:
        check_writable("output", name)
        final = final_path(name)
        check_partial(partial_of(final))
        check_partial(note_of(final))


def open_output(name: str, job: dict[str, Any], format: str) -> Output:
    """Standard output, if there is no name; a device or a pipe is written to as it is."""
    if not name:
        return Output(os.dup(sys.stdout.fileno()))
    if is_special(name):
        return Output(open_special("output", name))
    with writing("output", name):
        return OutputFile(final_path(name), job, format)


def whole_lines(path: Path, format: str) -> tuple[int, int]:
    """How many lines of the input a file has all outputs of, and up to which byte.

    In the format tsv there are several that begin with its number, and some of the last may lack.
    """
    done = size = before = 0
    last = b""
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            number = line.split(b"\t", 1)[0]
            if format != "tsv" or number != last:
                done, before, last = done + 1, size, number
            size += len(line)
    return (max(done - 1, 0), before) if format == "tsv" else (done, size)


def fingerprints(names: dict[str, str], bad_lines: str) -> dict[str, dict[str, Any]]:
    """`{"lines": .., "sha256": ..}` of each file that has a name; all must have as many lines.

    What is no plain text has None for lines, and a pipe, which is read only once, for both. A bad
    line is found here, before there is any work to lose.
    """
    result: dict[str, dict[str, Any]] = {}
    policy = bad_lines.replace("skip", "error")
    for key, name in names.items():
        if not name:
            continue
        if is_special(name):
            result[key] = {"lines": None, "sha256": None}
            continue
        path, digest, number = existing(Path(name)), hashlib.sha256(), 0
        plain = path.suffix not in (".gz", ".sgm", ".xml", ".parquet")
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                digest.update(line)
                if plain:
                    clean(line, f"{name}:{number}", number == 1, policy, Report())
        result[key] = {"lines": number if plain else None, "sha256": digest.hexdigest()}
    counts = {
        names[key]: found["lines"] for key, found in result.items() if found["lines"] is not None
    }
    if len(set(counts.values())) > 1:
        told = " and ".join(f"{name} has {count} lines" for name, count in counts.items())
        raise UserError(f"{told}: line i of one must belong to line i of the other")
    return result


@contextlib.contextmanager
def stopping(output: Output) -> Iterator[None]:
    """All that is written; SIGTERM and Ctrl-C end it between two lines."""
    goes_on = "; the same command goes on" if output.goes_on else ""

    def stop(number: int, frame: Any) -> None:
        raise Stopped(number, f"what is written is whole{goes_on}")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
        output.complete()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        output.close()
