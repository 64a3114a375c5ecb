"""Metrics of train steps, summed between two lines of the log."""

import collections
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from jformer.training.loss import perplexity

SUMMED = ("loss", "nll", "tokens", "gradient_norm", "skipped")


class StepMetrics(NamedTuple):
    """The metrics of a step, on the devices or fetched from them, and which batch it had."""

    step: int
    epoch: int
    batch: int
    metrics: dict[str, Any]


class MetricsAccumulator:
    """Accumulates step metrics, fetched a few steps late so that the devices never wait.

    Fetching also keeps the host from running ahead: batches do not pile up on the devices.
    """

    def __init__(self, sums: dict[str, float]):
        self._sums = {**dict.fromkeys((*SUMMED, "steps", "flops_in_all"), 0.0), **sums}
        self._timed_tokens = self._timed_flops = 0.0
        self._pending: collections.deque[tuple[StepMetrics, float, bool]] = collections.deque()

    def add(self, step: StepMetrics, flops_a_token: float, timed: bool = True) -> None:
        """Add a step; unless it is `timed`, the speed leaves it out, as one that compiles."""
        self._pending.append((step, flops_a_token, timed))

    def drain(self, behind: Callable[[], int] = lambda: 0) -> Iterator[StepMetrics]:
        """Fetch and yield the metrics of steps until at most `behind()` are not fetched."""
        while len(self._pending) > behind():
            step, flops_a_token, timed = self._pending.popleft()
            step = step._replace(metrics=jax.device_get(step.metrics))
            for name in SUMMED:
                self._sums[name] += float(step.metrics[name])
            self._sums["steps"] += 1
            tokens = float(step.metrics["tokens"])
            self._sums["flops_in_all"] += flops_a_token * tokens
            self._timed_tokens += timed * tokens
            self._timed_flops += timed * flops_a_token * tokens
            yield step

    def sums(self) -> dict[str, float]:
        return dict(self._sums)

    def next(self) -> "MetricsAccumulator":
        """Return an empty accumulator, which keeps only the FLOPs of the whole run."""
        return MetricsAccumulator({"flops_in_all": self._sums["flops_in_all"]})

    def means(self, seconds: float, peak: float) -> dict[str, float]:
        """Return means per token, the perplexity, and the speed over the `seconds` of timed steps.

        `mfu` is the model FLOPs utilization: the share of `peak` FLOP/s spent on tokens. Padding
        and rematerialisation do not count. `flops` is the sum since the run began.
        """
        sums = self._sums
        tokens, updates = max(sums["tokens"], 1), max(sums["steps"] - sums["skipped"], 1)
        return {
            "loss": sums["loss"] / tokens,
            "nll": sums["nll"] / tokens,
            "perplexity": perplexity(sums["nll"], tokens),
            "gradient_norm": sums["gradient_norm"] / updates,
            "skipped": sums["skipped"],
            "tokens_per_second": self._timed_tokens / seconds,
            "mfu": self._timed_flops / seconds / peak,
            "flops": sums["flops_in_all"],
        }
