"""The train loop: train steps, and after each the log, validation and checkpoints that are due.

The loop never waits for the newest step: metrics stay on the devices and are fetched two steps
later. Every random draw is a function of the seed and the step, and a checkpoint holds the position
in the data and in the log. So a run that was stopped and resumed ends with the same bits as one
that was not.
"""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import jax

from jformer.data.batches import iterate
from jformer.training import parallel
from jformer.training.checkpoint import Checkpoints
from jformer.training.metrics import MetricsAccumulator, StepMetrics
from jformer.training.monitor import Monitor, Profile
from jformer.training.nonfinite import NonFiniteGuard
from jformer.training.setup import TrainSetup
from jformer.training.step import TrainState
from jformer.training.stopping import SAVE, StopHandler
from jformer.training.validate import Best, validate


def loop(
    setup: TrainSetup,
    state: TrainState,
    position: dict,
    checkpoints: Checkpoints,
    stop: StopHandler,
    monitor: Monitor,
    profiler: Profile,
) -> tuple[TrainState, int]:
    """Train from `state` to the last step, or to the one after which a signal stops the run.

    Returns the state, which is being saved in the background, and the request that ended it: more
    than SAVE for a signal. What `on_metrics` raised is the monitor's `failure`.
    """
    train, last, clock = setup.config.train, setup.config.train.steps, monitor.clock
    metrics, best = MetricsAccumulator(position["window"]), Best(**position["best"])
    guard = NonFiniteGuard(position["skipped"])
    part, parts = parallel.parts_of(setup.mesh)
    request = 0
    batches = iterate(setup.batches, last, position["data"], part=part, parts=parts)

    for step in range(int(state.step) + 1, last + 1):
        due = functools.partial(is_due, step, last)
        profiler.step_begins(step)
        with clock("input"):
            batch, where = next(batches)
            placed, request_X = setup.place(batch, stop.request)
        with monitor.step(batch):
            state, on_device = setup.train_step(state, placed, setup.dropout_key, request_X)
            monitor.step_ended(step, on_device)
            profiler.step_ended(step, on_device)
            new = StepMetrics(step, where["epoch"], where["batch"] - 1, on_device)
            metrics.add(new, monitor.flops_a_token(batch), timed=not monitor.compiles)
            request = follow(metrics.drain(lambda: guard.behind), guard, monitor)
            if due(train.log_every) or due(train.checkpoint_every):
                request = max(request, follow(metrics.drain(), guard, monitor))
        if guard.too_many:
            raise guard.end(state, where, setup) from monitor.failure
        if jax.process_count() == 1:
            request = stop.request  # no other process has to hear of it first

        if due(train.log_every):
            monitor.train_line(step, metrics, float(setup.rate(step - 1)))
            metrics = metrics.next()
        with clock("evaluation"):
            validate(setup, state, step, due, best, checkpoints, monitor)
        ended = 0 < train.patience <= best.worse or monitor.ends_now
        if due(train.checkpoint_every) or request or ended or monitor.failure:
            with clock("checkpoints"):
                follow(metrics.drain(), guard, monitor)
                position = position_after(setup, where, metrics, best, guard, monitor, ended)
                checkpoints.save(state, position, setup.config, setup.vocabularies.hash)
                stop.saved()
        checkpoints.check_errors()
        if ended:
            monitor.line(step, "ended", patience=train.patience, best_step=best.step)
        if request > SAVE or ended or monitor.failure or step == last:
            break
    return state, request


def position_after(
    setup: TrainSetup,
    where: dict[str, int],
    metrics: MetricsAccumulator,
    best: Best,
    guard: NonFiniteGuard,
    monitor: Monitor,
    ended: bool,
) -> dict[str, Any]:
    """Return all that a resumed run needs beside the state; `where` is the position in the data."""
    return {
        "data": where,
        "window": metrics.sums(),
        "best": dataclasses.asdict(best),
        "skipped": guard.row,
        "seconds": monitor.seconds,
        "text": setup.text_hashes,
        "bleu_tokenizer": setup.bleu_tokenizer,
        "ended": ended,
    }


def is_due(step: int, last: int, interval: int) -> bool:
    """Return True at the multiples of an interval and at the last step; never where it is 0."""
    return bool(interval) and (step % interval == 0 or step == last)


def follow(steps: Iterable[StepMetrics], guard: NonFiniteGuard, monitor: Monitor) -> int:
    """Log the skipped ones of some steps; return the highest request of any process at them."""
    request = 0
    for one in steps:
        if guard.note(one):
            monitor.line(one.step, "skipped", epoch=one.epoch, batch=one.batch)
        request = max(request, int(one.metrics["request"]))
    return request
