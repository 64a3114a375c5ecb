"""Where the time of a run went."""

import contextlib
import time
from collections.abc import Iterator

from jformer.console import as_duration


class Clock:
    """`with clock("evaluation"): ...` counts the seconds inside, but not those of a `with` inside.

    Every second since the clock was made counts once: what has no name is `other`. For one thread;
    a `with` costs microseconds.
    """

    def __init__(self):
        self._seconds: dict[str, float] = {}
        self._name, self._since = "other", time.perf_counter()

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        outer = self._switch(name)
        try:
            yield
        finally:
            self._switch(outer)

    def _switch(self, name: str) -> str:
        """Time counts for `name` from now on; returns the name for which it did."""
        before, now = self._name, time.perf_counter()
        self._seconds[before] = self._seconds.get(before, 0.0) + now - self._since
        self._name, self._since = name, now
        return before

    @property
    def seconds(self) -> dict[str, float]:
        """By name, `other` included, up to now."""
        self._switch(self._name)
        return dict(self._seconds)

    def report(self) -> str:
        """One line: the whole time, and the shares by size with `other` at the end."""
        seconds = self.seconds
        total = sum(seconds.values())
        order = sorted(seconds, key=lambda name: (name == "other", -seconds[name]))
        shares = percentages([seconds[name] / total for name in order])
        parts = [f"{name} {share} %" for name, share in zip(order, shares, strict=True)]
        return f"time        {as_duration(total)} in all: {', '.join(parts)}"


def percentages(shares: list[float]) -> list[int]:
    """Whole numbers that sum to 100: the largest remainders are the ones rounded up."""
    whole = [int(100 * share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: whole[i] - 100 * shares[i])
    for i in by_remainder[: 100 - sum(whole)]:
        whole[i] += 1
    return whole
