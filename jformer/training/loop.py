"""The train loop: steps, and what is due after each.

It never waits for the newest step: metrics stay on the devices and are fetched two steps later.
Every random draw is a function of the seed and the step, and a checkpoint holds the position in the
data and in the log, so a run that was stopped anywhere and started again ends with the same bits as
one that was not.
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

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
            task = prepare(config, corpora, validation, workdir, mesh)
            for name, split in {"validation": validation, **scored}.items():
                if warning := pairs_beyond(name, split, task.vocabularies, config.model):
                    say(warning)
        with Checkpoints(workdir, config.train) as checkpoints, telling_of_memory(config):
            with clock("preparation"):
                state, position = restore_or_init(task, checkpoints)
                write_run_files(
                    config, task.vocabularies, workdir
                )  # what could be a mistake lies behind
                step, seconds = int(state.step), position["seconds"]
                monitor = Monitor(task.config, workdir, step, mesh, clock, seconds)
            say(describe(task, state))
            minutes, closing = config.train.checkpoint_minutes, contextlib.closing
            with closing(monitor), closing(profiler), StopHandler(minutes) as requests:
                ran = loop(task, state, position, checkpoints, requests, monitor, profiler)
                step, asked = ran
                with clock("checkpoints"):
                    checkpoints.finish(step)
                asked = max(asked, requests.now)  # also during the last validation and save
                if asked > SAVE:
                    raise Stopped(asked - SAVE)
    return scored


@contextlib.contextmanager
def telling_of_memory(config: Config) -> Iterator[None]:
    """Raise `RunError` where the memory of the host or of a device does not suffice."""
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
    task: TrainSetup,
    state: TrainState,
    position: dict,
    checkpoints: Checkpoints,
    requests: StopHandler,
    monitor: Monitor,
    profiler: Profile,
) -> tuple[int, int]:
    """Train from `state` to the last step or the one at which a signal asks to stop.

    Returns that step, whose checkpoint is being saved, and what was asked for at it: above SAVE, to
    stop.
    """
    every, last, clock = task.config.train, task.config.train.steps, monitor.clock
    window, best = MetricsAccumulator(position["window"]), Best(**position["best"])
    skipped = NonFiniteGuard(every.max_skipped, position["skipped"])
    part, parts = parallel.parts_of(task.mesh)
    iterator = iterate(task.batches, last, position["data"], part=part, parts=parts)

    for step in range(int(state.step) + 1, last + 1):
        due = functools.partial(is_due, step, last)
        profiler.step_begins(step)
        with clock("input"):
            batch, where = next(iterator), iterator.get_state()
            placed, request_X = task.place(batch, requests.now)
        with monitor.step(batch):
            state, metrics = task.train_step(state, placed, task.dropout_key, request_X)
            monitor.step_ended(step, metrics)
            profiler.step_ended(step, metrics)
            seen = StepMetrics(step, where["epoch"], where["batch"] - 1, metrics)
            window.add(seen, monitor.flops_a_token(batch))
            asked = follow(window.drain(lambda: skipped.behind), skipped, monitor)
            if due(every.log_every) or due(every.checkpoint_every):
                asked = max(asked, follow(window.drain(), skipped, monitor))
        if skipped.too_many:
            raise skipped.end(state, where, task)
        if jax.process_count() == 1:
            asked = requests.now  # no other process has to hear of it first

        if due(every.log_every):
            monitor.train_line(step, window, float(task.rate(step - 1)))
            window = window.next()
        with clock("evaluation"):
            validate(task, state, step, due, best, checkpoints, monitor)
        ended = 0 < every.patience <= best.worse
        if due(every.checkpoint_every) or asked or ended:
            with clock("checkpoints"):
                follow(window.drain(), skipped, monitor)
                position = {
                    "data": where,
                    "window": window.sums(),
                    "best": dataclasses.asdict(best),
                    "skipped": skipped.row,
                    "seconds": monitor.seconds,
                    "text": task.text,
                    "ended": ended,
                }
                checkpoints.save(state, position, task.config, task.vocabularies.hash)
                requests.saved()
        checkpoints.check_errors()
        if ended:
            monitor.line(step, "ended", patience=every.patience, best_step=best.step)
        if asked > SAVE or ended or step == last:
            return step, asked
    return last, 0


def is_due(step: int, last: int, interval: int) -> bool:
    """At the multiples of an interval and at the last step; never where it is 0."""
    return bool(interval) and (step % interval == 0 or step == last)


def follow(steps: Iterable[StepMetrics], skipped: NonFiniteGuard, monitor: Monitor) -> int:
    """Count the skipped ones, each a line of the log; what any process asked for at these steps."""
    asked = 0
    for seen in steps:
        if skipped.note(seen):
            monitor.line(seen.step, "skipped", epoch=seen.epoch, batch=seen.batch)
        asked = max(asked, int(seen.metrics["request"]))
    return asked
