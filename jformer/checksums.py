"""Checksums of the files in a folder, stored in SHA256SUMS, which `sha256sum -c` verifies."""

from collections.abc import Callable
from pathlib import Path

from jformer.files import sha256_of

SUMS = "SHA256SUMS"


def write_sums(folder: Path, pattern: str = "*") -> None:
    """Write the checksums of all files that match a pattern of `Path.glob`."""
    files = [path for path in sorted(folder.glob(pattern)) if path.is_file()]
    lines = [f"{sha256_of(path)}  {path.relative_to(folder)}\n" for path in files]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def first_damage(folder: Path, is_checked: Callable[[str], bool] = lambda name: True) -> str:
    """Describe the first listed file that is missing or has changed; empty if all are intact.

    A folder without checksums passes, as do files that are not listed, such as .DS_Store.
    """
    path = folder / SUMS
    if not path.exists():
        return ""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for line in lines:
        digest, _, name = line.partition("  ")
        try:
            if is_checked(name) and sha256_of(folder / name) != digest:
                return f"{name} has changed"
        except (OSError, ValueError) as error:
            return f"{name} cannot be read ({error})"
    return "" if lines else f"{SUMS} is empty"
