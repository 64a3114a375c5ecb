"""Writing of files: atomic inside run directories, and in place for paths that a user names.

A path that a user names is opened like a shell redirection, and no file is renamed over it.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jformer.errors import UserError

SUMS = "SHA256SUMS"  # checksums of the files in a folder, which `sha256sum -c` verifies


def replace_file(path: Path, content: bytes) -> None:
    """Write to a temporary name in the same folder, flush to the disk, rename.

    After a kill, a power cut or on a full disk, `path` is the complete old or new file.
    """
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, read in small parts: a mapped file would stay in memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_sums(folder: Path, pattern: str) -> None:
    """Write the checksums of all files that match a pattern of `Path.glob`."""
    files = [path for path in sorted(folder.glob(pattern)) if path.is_file()]
    lines = [f"{sha256_of(path)}  {path.relative_to(folder)}\n" for path in files]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def first_damage(folder: Path, is_checked: Callable[[str], bool]) -> str:
    """Describe the first listed file that is missing or has changed; empty if all are intact."""
    sums = folder / SUMS
    text = sums.read_text(encoding="utf-8", errors="replace") if sums.exists() else ""
    for line in text.splitlines():
        digest, _, name = line.partition("  ")
        path = folder / name
        if is_checked(name) and not (path.is_file() and sha256_of(path) == digest):
            return f"{name} is missing or has changed"
    return ""


def read_object(path: Path, fix: str) -> dict[str, Any]:
    """Return the JSON object in a file; `UserError` names a damaged file and the fix."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); {fix}") from error


def write_object(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object for `read_object`."""
    replace_file(path, json.dumps(content, indent=2).encode() + b"\n")


def new_folder(flag: str, name: str) -> Path:
    """Make the folder --FLAG=NAME and its parents; `UserError` if it exists."""
    if os.path.exists(name):
        raise UserError(f"--{flag}={name}: exists; choose a new folder")
    with writing(f"--{flag}={name}"):
        os.makedirs(name)
    return Path(name)


@contextlib.contextmanager
def writing(target: str, kind: type[Exception] = UserError) -> Iterator[None]:
    """Raise an OSError of the block as an error that names the target and the reason."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader, such as `head`, has read enough
    except OSError as error:
        raise kind(f"{target}: cannot be written ({error.strerror})") from error
