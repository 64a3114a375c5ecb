"""Sums of the metrics since the log's last line."""

import collections
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from jformer.training.loss import perplexity

SUMMED = ("loss", "nll", "tokens", "gradient_norm", "skipped")


class StepMetrics(NamedTuple):
    """A step, the batch that it had, and its metrics: on their way, or as they have come."""

    step: int
    epoch: int
    batch: int
    metrics: dict[str, Any]


class MetricsAccumulator:
    """Fetched from the devices some steps behind the dispatch.

    So the devices stay busy, the progress stays true, and batches do not pile up in their memory.
    """

    def __init__(self, sums: dict[str, float]):
        self._sums = {**dict.fromkeys((*SUMMED, "steps", "flops_in_all"), 0.0), **sums}
        self._before = dict(self._sums)
        self._pending: collections.deque[tuple[StepMetrics, float]] = collections.deque()

    def add(self, step: StepMetrics, flops_a_token: float) -> None:
        self._pending.append((step, flops_a_token))

    def drain(self, behind: Callable[[], int] = lambda: 0) -> Iterator[StepMetrics]:
        """Steps as they come, until no more than `behind()` are on their way."""
        while len(self._pending) > behind():
            step, flops_a_token = self._pending.popleft()
            step = step._replace(metrics=jax.device_get(step.metrics))
            for name in SUMMED:
                self._sums[name] += float(step.metrics[name])
            self._sums["steps"] += 1
            self._sums["flops_in_all"] += flops_a_token * float(step.metrics["tokens"])
            yield step

    def sums(self) -> dict[str, float]:
        return dict(self._sums)

    def next(self) -> "MetricsAccumulator":
        """An empty one, in which only what the whole run has spent goes on."""
        return MetricsAccumulator({"flops_in_all": self._sums["flops_in_all"]})

    def means(self, seconds: float, peak: float) -> dict[str, float]:
        """A token's loss and NLL, their perplexity; speed over the `seconds` that steps took.

        `mfu` is the share of `peak` FLOP/s that positions with a token made use of; work on
        padding, and work done again by rematerialisation, does not count. `flops` is all of such
        work since the run began.
        """
        sums, before = self.sums(), self._before
        tokens, updates = max(sums["tokens"], 1), max(sums["steps"] - sums["skipped"], 1)
        return {
            "loss": sums["loss"] / tokens,
            "nll": sums["nll"] / tokens,
            "perplexity": perplexity({"nll": sums["nll"], "tokens": tokens}),
            "gradient_norm": sums["gradient_norm"] / updates,
            "skipped": sums["skipped"],
            "tokens_per_second": (sums["tokens"] - before["tokens"]) / seconds,
            "mfu": (sums["flops_in_all"] - before["flops_in_all"]) / seconds / peak,
            "flops": sums["flops_in_all"],
        }
