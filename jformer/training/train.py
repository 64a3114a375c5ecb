"""Training in a run directory: lock it, prepare, restore, run the loop, finish the last save."""

import contextlib
import os
from pathlib import Path
from typing import Any

import jax

from jformer.config import Config
from jformer.console import say
from jformer.data.corpora import Corpus, Split
from jformer.data.pipeline import open_data
from jformer.errors import Stopped, explaining_out_of_memory
from jformer.rundir import SERVED, create, locked, write_results
from jformer.training import parallel
from jformer.training.checkpoint import Checkpoints
from jformer.training.checks import check_own_components
from jformer.training.clock import Clock
from jformer.training.compilation import use_compilation_cache
from jformer.training.likelihood import pairs_beyond
from jformer.training.loop import loop
from jformer.training.monitor import Monitor, OnMetrics, Profile
from jformer.training.processes import check_shared, is_first
from jformer.training.restore import describe_parameters
from jformer.training.retention import averaged
from jformer.training.setup import (
    TrainSetup,
    advice_on_memory,
    describe,
    is_complete,
    is_trained,
    prepare,
    restore_or_init,
    write_run_files,
)
from jformer.training.step import TrainState
from jformer.training.stopping import SAVE, StopHandler


def train(
    config: Config,
    workdir: Path,
    profile: str = "",
    data: tuple[list[Corpus], dict[str, Split]] | None = None,
    on_metrics: OnMetrics | None = None,
) -> dict[str, Split]:
    """Train until step `config.train.steps`, from the newest checkpoint if there is one.

    Returns the splits of `config.train.scored`. `profile` is STEP:COUNT; `data` stands for the
    corpora that the config names. Raises `Stopped` where a signal ended the run, with all saved,
    `RunError` where it cannot go on or cannot save the last step, and what `on_metrics` raises.
    """
    say(f"workdir     {workdir}")
    steps, corpus = f"{config.train.steps:,} steps", config.data
    say(f"config      {config.name}, {steps} on {corpus.name}, {corpus.languages}")
    use_compilation_cache(config)
    check_shared(workdir)
    clock, profiler = Clock(), Profile(profile, workdir)
    mesh = parallel.make_mesh(config)
    corpora, splits = data or open_data(config)
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
            check_own_components(config)
            setup = prepare(config, corpora, validation, workdir, mesh)
            for name, split in {"validation": validation, **scored}.items():
                if warning := pairs_beyond(name, split, setup.vocabularies, config.model):
                    say(warning)
        memory = explaining_out_of_memory(advice_on_memory(config.train))
        with Checkpoints(workdir, config.train) as checkpoints, memory:
            with clock("preparation"):
                state, position = restore_or_init(setup, checkpoints)
                # After all that can be a mistake of the user.
                write_run_files(config, setup.vocabularies, workdir)
                step, seconds = int(state.step), position["seconds"]
                undecided = is_trained(config, workdir)  # killed after its last checkpoint
                monitor = Monitor(config, workdir, step, mesh, clock, seconds, on_metrics)
            say(describe(setup, state))
            minutes, closing = config.train.checkpoint_minutes, contextlib.closing
            with closing(monitor), closing(profiler), StopHandler(minutes) as stop:
                request = 0
                if not undecided:
                    ended = loop(setup, state, position, checkpoints, stop, monitor, profiler)
                    state, request = ended
                    step = int(state.step)
                with clock("checkpoints"):
                    checkpoints.finish(step)
                if monitor.failure:
                    monitor.failure.add_note(f"all is saved at step {step}; the same call goes on")
                    raise monitor.failure
                request = max(request, stop.request)  # a signal may come while the last is saved
                if request > SAVE:
                    raise Stopped(request - SAVE)
                with clock("evaluation"):
                    choose_served(setup, state, checkpoints)
    return scored


def choose_served(setup: TrainSetup, state: TrainState, checkpoints: Checkpoints) -> None:
    """Record in results.json whether the average or the last checkpoint is served.

    It is the one with the lower NLL on the validation split. Early in training, the average of
    Section 6.1 is of parameters that differ too much, and far worse than any of them.
    """
    train, step, moving = setup.config.train, int(state.step), state.ema is not None
    steps = [step] if moving else averaged(checkpoints.steps(), True, train)
    served: dict[str, Any] = {"checkpoint": "last", "step": step}
    if moving or steps != [step]:
        like = jax.eval_shape(setup.create, setup.params_key).params  # with their shardings
        average = state.ema if moving else checkpoints.params(steps, like)
        nll = {"average": setup.likelihood(average), "last": setup.likelihood(state.params)}
        served["validation_nll"] = {name: scores["nll"] for name, scores in nll.items()}
        of_average, of_last = served["validation_nll"].values()
        if of_average <= of_last:
            served["checkpoint"] = "average"
        better = "better" if of_average <= of_last else "worse"
        say(
            f"served      {served['checkpoint']}: {describe_parameters(steps, moving)} has "
            f"validation nll {of_average:.3f}, {better} than {of_last:.3f} of the last checkpoint"
        )
    if is_first():
        write_results(setup.workdir, SERVED, served)
