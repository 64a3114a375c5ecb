"""A benchmark of the train loop's overhead: the log, and checkpoints in the background.

    python -m experiments.benchmarks.train_loop [--config=tiny|base] [--steps=100] [--save_every=20]
                                              [--rounds=5]

Three loops over the same batches of the embedded phrases take turns: steps alone, dispatched two
ahead; the train loop with its metrics, log and progress; and the train loop with a checkpoint every
`save_every` steps. Prints JSON: medians over the rounds of milliseconds per step, and of ratios
within a round.
"""

import argparse
import contextlib
import dataclasses
import importlib
import json
import statistics
import tempfile
import time
from pathlib import Path

import jax

from jformer.config import freeze
from jformer.data.batches import iterate
from jformer.data.pipeline import open_data
from jformer.training import parallel
from jformer.training.checkpoint import Checkpoints
from jformer.training.clock import Clock
from jformer.training.loop import loop
from jformer.training.monitor import Monitor, Profile
from jformer.training.setup import NEW, TrainSetup, prepare
from jformer.training.stopping import StopHandler

NEVER = 10**9


def steps_alone(task: TrainSetup, steps: int) -> float:
    """Return the seconds per step."""
    state = task.create(task.params_key)
    metrics: list = []
    began = time.perf_counter()
    for batch, _ in iterate(task.batches, steps):
        placed, request_X = task.place(batch, 0)
        state, new = task.train_step(state, placed, task.dropout_key, request_X)
        metrics.append(new)
        if len(metrics) > 2:
            jax.block_until_ready(metrics[-3])
    jax.block_until_ready(state)
    return (time.perf_counter() - began) / steps


def train_loop(task: TrainSetup, steps: int, save_every: int) -> tuple[float, float]:
    """Return the seconds per step, and how many of them the loop waited for saves."""
    train = dataclasses.replace(
        task.config.train, steps=steps, log_every=20, checkpoint_every=save_every,
        evaluate_every=NEVER,
    )  # fmt: skip
    config = dataclasses.replace(task.config, train=train)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        workdir = Path(folder)
        task = dataclasses.replace(
            task, config=config, workdir=workdir, likelihood=lambda params: {}
        )
        state, clock = task.create(task.params_key), Clock()
        checkpoints = stack.enter_context(Checkpoints(workdir, train))
        monitor = Monitor(config, workdir, 0, task.mesh, clock, seconds=0.0)
        stack.enter_context(contextlib.closing(monitor))
        began = time.perf_counter()
        with StopHandler(0) as requests:
            loop(task, state, NEW, checkpoints, requests, monitor, Profile("", workdir))
        seconds = time.perf_counter() - began
    return seconds / steps, clock.seconds["checkpoints"] / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="tiny")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--save_every", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    config = freeze(importlib.import_module(f"configs.{options.config}").get_config())
    # One bucket, so one shape: no loop compiles during the measurement.
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, num_buckets=1))
    training, splits = open_data(config)
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        mesh = parallel.make_mesh(config)
        task = prepare(config, training, splits["validation"], Path(folder), mesh)
        steps_alone(task, 3)
        for _ in range(options.rounds):
            alone = steps_alone(task, options.steps)
            logged, last_save = train_loop(task, options.steps, NEVER)
            saved, waiting = train_loop(task, options.steps, options.save_every)
            rounds.append(
                {
                    "alone_ms": 1000 * alone,
                    "loop_ms": 1000 * (logged - last_save),
                    "saving_ms": 1000 * saved,
                    "loop_to_alone": (logged - last_save) / alone,
                    "saving_to_loop": saved / (logged - last_save),
                    "blocked_by_a_save_ms": 1000 * waiting * options.save_every,
                }
            )
    medians = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
    spread = [min(r["loop_to_alone"] for r in rounds), max(r["loop_to_alone"] for r in rounds)]
    print(json.dumps({"config": options.config, **medians, "loop_to_alone_spread": spread}))


if __name__ == "__main__":
    main()
