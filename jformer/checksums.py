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
    """Describe the first listed file that is missing or has changed; empty if there is none.

    Only files whose names satisfy `has_sum` are checked. Unless checksums are `required`, a folder
    without any passes. Files that are not listed are ignored: file managers and network file
    systems add their own, such as .DS_Store, desktop.ini and .nfs0001.
    """
    if not (folder / SUMS).exists():
        return f"{SUMS} is missing" if required else ""
    sums, name = {}, SUMS
    try:
        if not (folder / SUMS).is_file():
            return f"{SUMS} is no regular file"
        text = (folder / SUMS).read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), start=1):
            match = re.fullmatch("([0-9a-f]{64})  (?!/)(.+)", line)
            if not match or ".." in match[2].split("/"):
                return f"{SUMS}, line {number}: {line[:200]!r} is no sum of a file in it"
            sums[match[2]] = match[1]
        if not sums:
            return f"{SUMS} is empty"
        for name in filter(has_sum, sums):
            if not (folder / name).is_file():
                return f"{name!r}, which {SUMS} names, is missing"
            if sha256_of(folder / name) != sums[name]:
                return f"{name} is not as it was written"
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    return ""
