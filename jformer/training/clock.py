"""A clock that divides the time of a run among named activities."""

import contextlib
import time
from collections.abc import Iterator

from jformer.console import as_duration


class Clock:
    """Counts seconds by name: `with clock("evaluation"): ...`, without those of a nested `with`.

    Every second since the clock was made counts once, as `other` outside of any `with`. It is for
    one thread only; a `with` costs microseconds.
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
        """Count the time from now on under `name`, and return the name used before."""
        before, now = self._name, time.perf_counter()
        self._seconds[before] = self._seconds.get(before, 0.0) + now - self._since
        self._name, self._since = name, now
        return before

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds by name up to now, `other` included."""
        self._switch(self._name)
        return dict(self._seconds)

    def report(self) -> str:
        """Return a line with the total time and the shares, largest first and `other` last."""
        seconds = self.seconds
        total = sum(seconds.values())
        order = sorted(seconds, key=lambda name: (name == "other", -seconds[name]))
        shares = percentages([seconds[name] / total for name in order])
        parts = [f"{name} {share} %" for name, share in zip(order, shares, strict=True)]
        return f"time        {as_duration(total)} in all: {', '.join(parts)}"


def percentages(shares: list[float]) -> list[int]:
    """Return whole percentages that sum to 100, rounding up those with the largest remainders."""
    whole = [int(100 * share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: whole[i] - 100 * shares[i])
    for i in by_remainder[: 100 - sum(whole)]:
        whole[i] += 1
    return whole
