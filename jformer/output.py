"""Where lines come from and go to: whole ones only, whatever happens.

A file is FILE.partial until all of it is there, and FILE.job beside it says what is being done: the
same command goes on behind the last whole line.
"""

import contextlib
import hashlib
import json
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jformer.config import UserError, replace_file
from jformer.data.corpora import existing, without_ends
from jformer.keys import Stopped


def standard_input() -> Iterator[bytes]:
    """Its lines; none where it is closed."""
    return without_ends(sys.stdin.buffer if sys.stdin else ())


class Output:
    """An open file, pipe or terminal; `done` lines of the input have been written before."""

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

    def close(self) -> None:
        """All is written."""


class OutputFile(Output):
    """A file that appears when all of it is there."""

    def __init__(self, path: Path, job: dict[str, Any], format: str):
        """`job` is all that the lines depend on: a file of another job is not gone on with.

        A job of nothing is begun anew.
        """
        self._path = path
        self._partial = path.with_name(path.name + ".partial")
        self._note = path.with_name(path.name + ".job")
        done = 0
        if job and self._partial.exists() and self._note.exists():
            self._check_same(job)
            done, size = whole_lines(self._partial, format)
            os.truncate(self._partial, size)
        else:
            self._partial.unlink(missing_ok=True)
            replace_file(self._note, json.dumps(job, indent=2).encode())
        super().__init__(
            os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), done
        )

    def _check_same(self, job: dict[str, Any]) -> None:
        before = json.loads(self._note.read_text(encoding="utf-8"))
        if before != job:
            names = ", ".join(name for name in job if job[name] != before.get(name))
            raise UserError(
                f"{self._partial}: was begun by another command, with another {names}; remove it "
                f"to begin anew, or choose another --output"
            )

    def close(self) -> None:
        os.close(self._descriptor)
        self._partial.rename(self._path)
        self._note.unlink()


def open_output(name: str, job: dict[str, Any], format: str) -> Output:
    """Standard output, if there is no name; a device or a pipe is written to as it is."""
    if not name:
        if sys.stdout is None:
            raise UserError("standard output is closed; set --output=FILE")
        return Output(sys.stdout.fileno())
    try:
        if os.path.exists(name) and not os.path.isfile(name):
            return Output(os.open(name, os.O_WRONLY))
        return OutputFile(Path(name), job, format)
    except OSError as error:
        raise UserError(f"--output={name}: cannot be written ({error.strerror})") from error


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


def fingerprints(names: dict[str, str]) -> dict[str, dict[str, Any]]:
    """`{"lines": .., "sha256": ..}` of each file, of which all must have as many lines.

    What is no plain text, or has no name, has None for lines.
    """
    result: dict[str, dict[str, Any]] = {}
    for key, name in names.items():
        result[key] = {"lines": None, "sha256": None}
        if not name:
            continue
        path = existing(Path(name))
        digest, lines, last = hashlib.sha256(), 0, b"\n"
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                digest.update(part)
                lines, last = lines + part.count(b"\n"), part[-1:]
        plain = path.suffix not in (".gz", ".sgm", ".xml")
        result[key] = {
            "lines": lines + (last != b"\n") if plain else None,
            "sha256": digest.hexdigest(),
        }
    counts = {
        names[key]: found["lines"] for key, found in result.items() if found["lines"] is not None
    }
    if len(set(counts.values())) > 1:
        told = " and ".join(f"{name} has {count} lines" for name, count in counts.items())
        raise UserError(f"{told}: line i of one must belong to line i of the other")
    return result


@contextlib.contextmanager
def stopping(output: Output) -> Iterator[None]:
    """SIGTERM and Ctrl-C end the job between two of its lines."""
    goes_on = "; the same command goes on" if isinstance(output, OutputFile) else ""

    def stop(number: int, frame: Any) -> None:
        raise Stopped(number, f"what is written is whole{goes_on}")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
