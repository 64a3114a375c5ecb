"""Checksums of the files in a folder, kept in the folder to find damage when it is read again.

They stand in a file SHA256SUMS, in the format of `sha256sum -c`.
"""

import re
from collections.abc import Callable
from pathlib import Path

from jformer.files import sha256_of

SUMS = "SHA256SUMS"


def write_sums(folder: Path, pattern: str = "*") -> None:
    """Write the checksums of all files that match a pattern of `Path.glob`."""
    files = [path for path in sorted(folder.glob(pattern)) if path.is_file()]
    lines = [f"{sha256_of(path)}  {path.relative_to(folder)}\n" for path in files]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def first_damage(
    folder: Path, has_sum: Callable[[str], bool] = lambda name: True, required: bool = True
) -> str:
    """Describe the first file of a folder that is not as it was written; empty if there is none.

    `has_sum` returns whether a file of that name is expected to have a checksum; unless they are
    `required`, a folder without any passes. Only regular files in the folder are opened: a path
    among the checksums may be that of a device or a pipe.
    """
    files, sums, name = {}, {}, SUMS
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder).as_posix()
        if path.is_file():
            files[relative] = path
        elif path.is_symlink() or not path.is_dir():
            return f"{relative!r} is no regular file"
    if SUMS not in files:
        return f"{SUMS} is missing" if required else ""
    try:
        text = files.pop(SUMS).read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), start=1):
            match = re.fullmatch("([0-9a-f]{64})  (?!/)(.+)", line)
            if not match or ".." in match[2].split("/"):
                return f"{SUMS}, line {number}: {line[:200]!r} is no sum of a file in it"
            sums[match[2]] = match[1]
        for name in filter(has_sum, sorted({*files, *sums})):
            if name not in files:
                return f"{name!r}, which {SUMS} names, is missing"
            if name not in sums:
                return f"{name!r} is not in {SUMS}"
            if sha256_of(files[name]) != sums[name]:
                return f"{name} is not as it was written"
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    return ""
