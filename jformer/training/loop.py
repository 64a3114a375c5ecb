"""The train loop: train steps, and after each the log, validation and checkpoints that are due.

The loop never waits for the newest step: metrics stay on the devices and are fetched two steps
later. Every random draw is a function of the seed and the step, and a checkpoint holds the position
in the data and in the log. So a run that was stopped and resumed ends with the same bits as one
that was not.
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax

from jformer.config import Config
from jformer.console import say
from jformer.data.batches import iterate
from jformer.data.corpora import Split
from jformer.data.pipeline import open_data
from jformer.errors import RunError, Stopped, is_out_of_memory
from jformer.rundir import create, locked
from jformer.training import parallel
from jformer.training.checkpoint import Checkpoints
from jformer.training.clock import Clock
from jformer.training.evaluate import pairs_beyond
from jformer.training.metrics import MetricsAccumulator, StepMetrics
from jformer.training.monitor import Monitor, Profile
from jformer.training.nonfinite import NonFiniteGuard
from jformer.training.processes import is_first
from jformer.training.setup import (
    TrainSetup,
    describe,
    is_complete,
    prepare,
    restore_or_init,
    write_run_files,
)
from jformer.training.step import TrainState
from jformer.training.stopping import SAVE, StopHandler
from jformer.training.validate import Best, validate


def train(config: Config, workdir: Path, profile: str = "") -> dict[str, Split]:
    """Train until step `config.train.steps`, from the newest checkpoint if there is one.

    Returns the splits of `config.train.scored`; `profile` is STEP:COUNT. Raises `Stopped` where a
    signal ended the run, with all saved, and `RunError` where it cannot go on or cannot save the
    last step.
    """
    clock, profiler = Clock(), Profile(profile, workdir)
    mesh = parallel.make_mesh(config)
    corpora, splits = open_data(config)
    validation = splits["validation"]
    wanted = config.train.scored
    scored = {
        name: split
        for name, split in splits.items()
        if wanted == "all" or (name == "validation") == (wanted == "validation")
    }
    if workdir.is_dir() and not os.access(workdir, os.W_OK) and is_complete(config, workdir):
        return scored  # nothing is written there
    create(workdir)
    with locked(workdir) if is_first() else contextlib.nullcontext():
        if is_complete(config, workdir):
            return scored
        with clock("preparation"):
            setup = prepare(config, corpora, validation, workdir, mesh)
            for name, split in {"validation": validation, **scored}.items():
                if warning := pairs_beyond(name, split, setup.vocabularies, config.model):
                    say(warning)
        with Checkpoints(workdir, config.train) as checkpoints, naming_out_of_memory(config):
            with clock("preparation"):
                state, position = restore_or_init(setup, checkpoints)
                write_run_files(
                    config, setup.vocabularies, workdir
                )  # after all that can be a mistake of the user
                step, seconds = int(state.step), position["seconds"]
                monitor = Monitor(setup.config, workdir, step, mesh, clock, seconds)
            say(describe(setup, state))
            minutes, closing = config.train.checkpoint_minutes, contextlib.closing
            with closing(monitor), closing(profiler), StopHandler(minutes) as stop:
                step, request = loop(setup, state, position, checkpoints, stop, monitor, profiler)
                with clock("checkpoints"):
                    checkpoints.finish(step)
                request = max(request, stop.request)  # a signal may come while the last is saved
                if request > SAVE:
                    raise Stopped(request - SAVE)
    return scored


@contextlib.contextmanager
def naming_out_of_memory(config: Config) -> Iterator[None]:
    """Raise `RunError` with the way out where the host or a device runs out of memory."""
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        tokens, parts = config.train.batch_tokens, config.train.accumulate
        raise RunError(
            f"out of memory: a batch has config.train.batch_tokens={tokens:,} positions a side, "
            f"computed in config.train.accumulate={parts} parts. Raise accumulate, which gives the "
            f"same result, or lower batch_tokens; `summary` with the same --config and "
            f"--memory=GIGABYTES says which fit"
        ) from error


def loop(
    setup: TrainSetup,
    state: TrainState,
    position: dict,
    checkpoints: Checkpoints,
    stop: StopHandler,
    monitor: Monitor,
    profiler: Profile,
) -> tuple[int, int]:
    """Train from `state` to the last step, or to the one after which a signal stops the run.

    Returns that step, whose checkpoint is being saved in the background, and the request that
    ended it: more than SAVE for a signal.
    """
    train, last, clock = setup.config.train, setup.config.train.steps, monitor.clock
    metrics, best = MetricsAccumulator(position["window"]), Best(**position["best"])
    guard = NonFiniteGuard(train.max_skipped, position["skipped"])
    part, parts = parallel.parts_of(setup.mesh)
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
            metrics.add(new, monitor.flops_a_token(batch))
            request = follow(metrics.drain(lambda: guard.behind), guard, monitor)
            if due(train.log_every) or due(train.checkpoint_every):
                request = max(request, follow(metrics.drain(), guard, monitor))
        if guard.too_many:
            raise guard.end(state, where, setup)
        if jax.process_count() == 1:
            request = stop.request  # no other process has to hear of it first

        if due(train.log_every):
            monitor.train_line(step, metrics, float(setup.rate(step - 1)))
            metrics = metrics.next()
        with clock("evaluation"):
            validate(setup, state, step, due, best, checkpoints, monitor)
        ended = 0 < train.patience <= best.worse
        if due(train.checkpoint_every) or request or ended:
            with clock("checkpoints"):
                follow(metrics.drain(), guard, monitor)
                position = position_after(setup, where, metrics, best, guard, monitor, ended)
                checkpoints.save(state, position, setup.config, setup.vocabularies.hash)
                stop.saved()
        checkpoints.check_errors()
        if ended:
            monitor.line(step, "ended", patience=train.patience, best_step=best.step)
        if request > SAVE or ended or step == last:
            return step, request
    return last, 0


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
        "text": setup.text,
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
