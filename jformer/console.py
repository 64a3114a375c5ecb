"""The terminal: lines on standard error, progress, and tables."""

import collections
import statistics
import sys
import time
from collections.abc import Sequence

from tqdm import tqdm

SECONDS_SILENT = 10.0  # between two lines of progress in a log
PACE_OF = 200  # number of recent advances whose median is the pace
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
    """A bar on a terminal, otherwise a line every ten seconds or the lines that a caller reports.

    The remaining time is the median pace of recent advances times the remaining work.
    """

    def __init__(self, unit: str, total: int | None, done: int = 0, lines: bool = True):
        self._unit, self._total, self._done, self._lines = unit, total, done, lines
        self._paces: collections.deque[float] = collections.deque(maxlen=PACE_OF)
        self._last = self._reported = time.monotonic()
        hidden = _quiet or not sys.stderr.isatty()
        # The bar's own estimate would differ.
        layout = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]" if total else None
        self._bar = tqdm(
            initial=done, total=total, unit=unit, disable=hidden, bar_format=layout, leave=False
        )

    def advance(self, number: int = 1, compiled: bool = False) -> float:
        """Advance by `number`; return the seconds since the previous advance.

        An advance that `compiled` is excluded from the pace.
        """
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        if number and not compiled:
            self._paces.append(seconds / number)
        self._done += number
        if not self._bar.disable:
            self._bar.set_postfix_str(self.eta(), refresh=False)
            self._bar.update(number)
        elif self._lines and now - self._reported >= SECONDS_SILENT:
            self.report("")
        return seconds

    def eta(self) -> str:
        """Return the remaining time as `ETA 01:23`; empty if it is unknown."""
        if self._total is None or not self._paces:
            return ""
        seconds = statistics.median(self._paces) * (self._total - self._done)
        return f"ETA {as_duration(seconds)}"

    def report(self, text: str, done: int | None = None) -> None:
        """Print a line with the progress, the remaining time and `text`."""
        self._reported = time.monotonic()
        done = self._done if done is None else done
        of_total = "" if self._total is None else f"/{self._total}"
        say("  ".join(filter(None, (f"{self._unit} {done}{of_total}", self.eta(), text))))

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


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Format a table in Markdown; the first row is the heading, the first column left-aligned."""
    heading, *lines = rows
    ruler = [":--", *["--:"] * (len(heading) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [heading, ruler, *lines])
