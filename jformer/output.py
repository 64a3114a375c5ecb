"""The line-based input and output of commands; a stopped command can resume its output file.

A file is FILE.partial until it is complete, and FILE.job beside it describes the job: the same
command resumes after the last whole line.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import signal
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from jformer import files
from jformer.data.corpora import Report, clean, existing, without_ends
from jformer.errors import Stopped, UserError


def standard_input() -> Iterator[bytes]:
    """Return the lines of standard input; none where it is closed."""
    return without_ends(sys.stdin.buffer if sys.stdin else ())


def open_standard_error() -> None:
    """Replace a closed standard error, or the next file that is opened would get its number."""
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def drop_output() -> None:
    """Discard what standard output does not accept: Python would fail again at exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@dataclasses.dataclass(frozen=True)
class Output:
    """An open file, pipe or terminal that already holds the outputs of `done` input lines."""

    descriptor: int
    done: int

    def write(self, text: str) -> None:
        """Write whole lines; if the disk is full, an incomplete one is cut off a regular file."""
        data, written = text.encode(), 0
        try:
            while written < len(data):
                written += os.write(self.descriptor, data[written:])
        except OSError:
            half = written - (data.rfind(b"\n", 0, written) + 1)
            if half and stat.S_ISREG(os.fstat(self.descriptor).st_mode):
                end = os.lseek(self.descriptor, 0, os.SEEK_CUR)
                os.ftruncate(self.descriptor, end - half)
            raise


def note_of(path: Path) -> Path:
    """Return the path of the file that describes the job that writes `path`."""
    return path.with_name(path.name + ".job")


def check_output(name: str, read: Iterable[str]) -> None:
    """Raise `UserError` where `open_output` would fail, before a model is loaded, which takes time.

    It is also raised where the output would replace one of the files in `read`.
    """
    if not name and sys.stdout is None:
        raise UserError("standard output is closed; set --output=FILE")
    for path in read:
        if name and os.path.isfile(path) and os.path.realpath(path) == os.path.realpath(name):
            raise UserError(f"--output={name}: is read by this command, too; choose another file")
    if name:
        files.check_writable("output", name)
        final = files.final_path(name)
        files.check_partial(files.partial_of(final))
        files.check_partial(note_of(final))


@contextlib.contextmanager
def open_output(name: str, job: dict[str, Any], format: str) -> Iterator[Output]:
    """Open a file, or standard output without a name; devices and pipes are written directly.

    A file gets its name when the block ends. If that is stopped, the same command resumes what it
    has written: `job` holds all that the lines of a file depend on, and {} never resumes. Raises
    `UserError` for the lines of another job, which are neither resumed nor discarded.
    """
    path, done = None, 0
    if not name:
        descriptor = os.dup(sys.stdout.fileno())
    elif files.is_special(name):
        descriptor = files.open_special("output", name)
    else:
        path = files.final_path(name)
        with files.writing("output", name):
            descriptor = files.open_partial(files.partial_of(path))
    try:
        if path:
            with files.writing("output", name):
                done = resume(descriptor, path, job, format)
        with stopping("; the same command goes on" if path and job else ""):
            yield Output(descriptor, done)
            if path:
                files.partial_of(path).rename(path)
                note_of(path).unlink()
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def stopping(goes_on: str) -> Iterator[None]:
    """Raise `Stopped` in the block on SIGTERM and Ctrl-C."""

    def stop(number: int, frame: Any) -> None:
        raise Stopped(number, f"what is written is whole{goes_on}")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def resume(descriptor: int, path: Path, job: dict[str, Any], format: str) -> int:
    """Lock the file and keep the whole lines of the same job; return the number of input lines."""
    partial, note = files.partial_of(path), note_of(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            f"{partial}: another command is writing it; wait for it, or choose another --output"
        ) from None
    done, size = whole_lines(partial, format) if note.exists() else (0, 0)
    if not (done and is_begun(partial, note, job)):
        done = size = 0
        files.write_object(note, job)
    os.ftruncate(descriptor, size)
    return done


def is_begun(partial: Path, note: Path, job: dict[str, Any]) -> bool:
    """Return whether the same job has begun the file; `UserError` where another one has."""
    before = files.read_object(note, f"remove it and {partial} to begin anew")
    if before and before != job:
        names = [name for name in {**before, **job} if job.get(name) != before.get(name)]
        names = names if job else ["input"]
        raise UserError(
            f"{partial}: was begun by another command, with another {', '.join(names)}; "
            f"remove it to begin anew, or choose another --output"
        )
    return bool(before)


def whole_lines(path: Path, format: str) -> tuple[int, int]:
    """Return how many input lines have all their outputs in a file, and the byte where these end.

    In tsv an input line has several rows that begin with its number; the last may lack some.
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
    """Return `{"lines": .., "sha256": ..}` of each named file; all must have as many lines.

    `lines` is None if a file is not plain text; both are None for a pipe, which is read only once.
    Bad lines raise `UserError` here, before there is any work to lose.
    """
    result: dict[str, dict[str, Any]] = {}
    policy = bad_lines.replace("skip", "error")
    for key, name in names.items():
        if not name:
            continue
        if files.is_special(name):
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
