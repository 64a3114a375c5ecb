"""Files: those of a run directory are written whole or not at all, and those that a user names.

A user's name may be that of a device or a pipe, which is written to as it is, or of a link, which
stays one while the file that it points to is replaced.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jformer.errors import RunError, UserError


def replace_file(path: Path, content: bytes) -> None:
    """Write under another name first: a kill leaves the old file or the new one, never a half."""
    partial = partial_of(path)
    # Somebody may have put a link or a pipe there: it goes, and is never written through.
    partial.unlink(missing_ok=True)
    try:
        with partial.open("xb") as file:
            file.write(content)
        partial.rename(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def partial_of(path: Path) -> Path:
    """Where the content of a file is until it is whole."""
    return path.with_name(path.name + ".partial")


def open_partial(path: Path) -> int:
    """The descriptor of a file to append to, made where there is none."""
    check_partial(path)
    # Without following a link, or waiting for a reader of a pipe, that is put there right now.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    return os.open(path, flags, 0o666)


def check_partial(path: Path) -> None:
    """Raise `UserError` for a link, a pipe or a folder: no earlier command has left that there."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UserError(f"{path}: is no regular file; remove it, or choose another --output")


def read_object(path: Path, way_out: str) -> dict[str, Any]:
    """The JSON object in a file of ours; `UserError` names a damaged file, and the way out."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {way_out}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: is not JSON ({error}); {way_out}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: is damaged: it holds no JSON object; {way_out}")
    return content


def check_writable(flag: str, name: str) -> None:
    """Raise `UserError` where --FLAG=NAME cannot be written: the work before it takes its time."""
    if os.path.isdir(name):
        raise UserError(f"--{flag}={name}: is a directory; a file is needed there")
    with writing(flag, name):
        with contextlib.suppress(FileNotFoundError):
            os.stat(name)  # tells of a link to itself, for one
        if not is_special(name):
            tempfile.TemporaryFile(dir=final_path(name).parent).close()


def write_file(flag: str, name: str, content: bytes) -> None:
    """Write all that --FLAG=NAME is to hold; an old file stays until the new one is whole."""
    if is_special(name):
        with os.fdopen(open_special(flag, name), "wb") as file:
            file.write(content)
        return
    try:
        replace_file(final_path(name), content)
    except OSError as error:
        raise RunError(f"--{flag}={name}: cannot be written ({error.strerror})") from error


def open_special(flag: str, name: str) -> int:
    """The descriptor of a device or a pipe; it waits for who reads a pipe."""
    with writing(flag, name):
        return os.open(name, os.O_WRONLY)


def is_special(name: str) -> bool:
    """Whether it is a device or a pipe, say."""
    return os.path.exists(name) and not os.path.isfile(name) and not os.path.isdir(name)


def final_path(name: str) -> Path:
    """The file that a link points to, or the file itself."""
    return Path(os.path.realpath(name))


@contextlib.contextmanager
def writing(flag: str, name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"--{flag}={name}: cannot be written ({error.strerror})") from error
