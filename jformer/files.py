"""Atomic writing of files, both in run directories and under names that a user gives.

A user's name may be that of a device or a pipe, which is written to directly, or of a symbolic
link, which is kept while its target is replaced. Missing folders above it are made.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jformer.errors import RunError, UserError


def replace_file(path: Path, content: bytes) -> None:
    """Write to another name, then rename: a kill leaves the old file or the new one."""
    partial = partial_of(path)
    # A link or a pipe of that name is removed, and never written through.
    partial.unlink(missing_ok=True)
    try:
        with partial.open("xb") as file:
            file.write(content)
        partial.rename(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def partial_of(path: Path) -> Path:
    """Return the path that holds the content of a file until it is complete."""
    return path.with_name(path.name + ".partial")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, read in small parts: if mapped, it would stay in memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_partial(path: Path) -> int:
    """Open a regular file to append to, creating it if needed; return its descriptor."""
    check_partial(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # If a link or a pipe appears there right now, do not follow it or wait for a reader.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    return os.open(path, flags, 0o666)


def check_partial(path: Path) -> None:
    """Raise `UserError` for a link, a pipe or a folder: no earlier command has created that."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UserError(f"{path}: is no regular file; remove it, or choose another --output")


def read_object(path: Path, way_out: str) -> dict[str, Any]:
    """Return the JSON object in a file; `UserError` names a damaged file and the way out."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {way_out}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: is not JSON ({error}); {way_out}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: is damaged: it holds no JSON object; {way_out}")
    return content


def write_object(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object for `read_object`."""
    replace_file(path, json.dumps(content, indent=2).encode() + b"\n")


def check_writable(flag: str, name: str) -> None:
    """Raise `UserError` where --FLAG=NAME cannot be written, before long work is lost by that."""
    if os.path.isdir(name):
        raise UserError(f"--{flag}={name}: is a directory; a file is needed there")
    with writing(flag, name):
        with contextlib.suppress(FileNotFoundError):
            os.stat(name)  # fails for a link to itself, for instance
        if not is_special(name):
            parents = final_path(name).parents
            tempfile.TemporaryFile(dir=next(filter(Path.exists, parents))).close()


def write_file(flag: str, name: str, content: bytes) -> None:
    """Write the content of --FLAG=NAME; an old file stays until the new one is complete."""
    if is_special(name):
        with os.fdopen(open_special(flag, name), "wb") as file:
            file.write(content)
        return
    path = final_path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    except OSError as error:
        raise RunError(f"--{flag}={name}: cannot be written ({error.strerror})") from error


@contextlib.contextmanager
def new_folder(flag: str, name: str) -> Iterator[Path]:
    """Give a folder to fill, which becomes --FLAG=NAME when the block ends, or is removed.

    Raises `UserError` where there is anything of that name but an empty folder.
    """
    path = final_path(name)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UserError(f"--{flag}={name}: exists; a new or an empty folder is needed there")
    with writing(flag, name):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{path.name}.", suffix=".partial", dir=path.parent))
    try:
        yield partial
        partial.chmod(0o777 & ~umask())
        with writing(flag, name):
            partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def umask() -> int:
    """Return the permissions that new files do not get; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def open_special(flag: str, name: str) -> int:
    """Open a device or a pipe and return its descriptor; waits until a pipe has a reader."""
    with writing(flag, name):
        return os.open(name, os.O_WRONLY)


def is_special(name: str) -> bool:
    """Return whether `name` exists but is no file and no directory, as a device or a pipe."""
    return os.path.exists(name) and not os.path.isfile(name) and not os.path.isdir(name)


def final_path(name: str) -> Path:
    """Return the path with symbolic links resolved."""
    return Path(os.path.realpath(name))


@contextlib.contextmanager
def writing(flag: str, name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"--{flag}={name}: cannot be written ({error.strerror})") from error
