"""The terminal: lines on standard error, progress, and tables."""

import sys
import time
from collections.abc import Sequence

from tqdm import tqdm

SECONDS_SILENT = 30.0  # between two lines of progress in a log
_quiet = False


def be_quiet() -> None:
    """Suppress all further lines: only the first of several processes reports."""
    global _quiet
    _quiet = True


def say(text: str) -> None:
    """Print a line on standard error, above a progress bar if there is one."""
    if not _quiet:
        tqdm.write(text, file=sys.stderr)
        sys.stderr.flush()


def as_duration(seconds: float) -> str:
    """Format seconds as 01:23 or 1:02:03."""
    return tqdm.format_interval(round(seconds))


class Progress:
    """A bar on a terminal; otherwise a line after each `SECONDS_SILENT` without a report.

    The remaining time follows from the mean pace of this process.
    """

    def __init__(self, unit: str, total: int | None, done: int = 0):
        self._unit, self._total, self._first, self._done = unit, total, done, done
        self._began = self._reported = time.monotonic()
        hidden = _quiet or not sys.stderr.isatty()
        # Without smoothing, the bar estimates from the mean pace as well.
        self._bar = tqdm(
            initial=done, total=total, unit=unit, disable=hidden, leave=False, smoothing=0
        )

    def advance(self, number: int = 1) -> None:
        self._done += number
        self._bar.update(number)
        if self._bar.disable and time.monotonic() - self._reported >= SECONDS_SILENT:
            self.report("")

    def report(self, text: str) -> None:
        """Print a line with the progress, the remaining time and `text`."""
        self._reported = time.monotonic()
        line = f"{self._unit} {self._done}"
        if self._total is not None:
            pace = (self._reported - self._began) / max(1, self._done - self._first)
            left = as_duration(pace * (self._total - self._done))
            line += f"/{self._total}  ETA {left}"
        say(f"{line}  {text}".rstrip())

    def close(self) -> None:
        self._bar.close()


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Format a table: columns two spaces apart, right-aligned except the first."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [text.rjust(width) for text, width in zip(row, widths, strict=True)]
        cells[0] = row[0].ljust(widths[0])
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
