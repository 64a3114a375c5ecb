"""The functions of `import jformer`: a config, training from Python, and opening a run."""

import signal
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flax.traverse_util import unflatten_dict

from jformer.command_line import config_from
from jformer.config import Config, freeze
from jformer.console import say
from jformer.data.pipeline import given_data
from jformer.errors import Stopped, UserError
from jformer.run import Run, load
from jformer.rundir import default_workdir
from jformer.schema import replaced
from jformer.training.monitor import OnMetrics
from jformer.training.setup import (
    check_same_config,
    check_same_text,
    describe_complete,
    is_complete,
    text_hashes,
)
from jformer.training.train import train as train_in

__all__ = ["get_config", "load", "train"]


def get_config(name: str | Path = "base", /, **keys: Any) -> Config:
    """Return a config by the name or the path of its file, with some keys set.

    `get_config("tiny:multi30k", **{"model.dropout": 0.3, "train.steps": 500})`. `name` is what
    follows `--config=` on the command line. Raises `UserError` for what is unknown or impossible.
    """
    config = freeze(config_from(str(name)))
    config = replaced(config, unflatten_dict(keys, sep="."))
    config.check()
    config.check_own_parts()
    return config


def train(
    config: Config,
    pairs: Iterable[tuple[str, str]] | None = None,
    validation: Iterable[tuple[str, str]] | None = None,
    workdir: str | Path = "",
    on_metrics: OnMetrics | None = None,
) -> Run:
    """Train, or go on where an earlier call was stopped, and return the run as `load` does.

    `pairs` of source and target are trained on and `validation` chooses, in place of the corpus
    that the config names. `on_metrics(step, split, numbers)` is called with each line of
    metrics.jsonl; where it returns a true value, the training ends after this step, with all saved,
    and the same call later goes on. `workdir` has the command line's default. Raises `UserError` or
    `TypeError` for a mistake, and after Ctrl-C `KeyboardInterrupt`, after another signal `Stopped`,
    both with all saved. For the main thread only.
    """
    if not isinstance(config, Config):
        raise TypeError(f"config must be one of jformer.get_config, not {type(config).__name__}")
    if on_metrics is not None and not callable(on_metrics):
        raise TypeError(f"on_metrics must be a function, not {type(on_metrics).__name__}")
    if threading.current_thread() is not threading.main_thread():
        raise UserError("jformer.train must be called in the main thread, which hears of Ctrl-C")
    if (pairs is None) != (validation is None):
        raise UserError("jformer.train takes both pairs and validation, or neither")
    data = None
    if pairs is not None and validation is not None:
        data = given_data([*pairs], [*validation])
        config = replaced(config, {"data": {"name": "given"}})
    config.check()
    config.check_own_parts()
    workdir = Path(workdir or default_workdir(config))
    check_same_config(config, workdir)
    if is_complete(config, workdir):
        if data:
            corpora, splits = data
            check_same_text(text_hashes(config, corpora, splits["validation"]), workdir)
        run = load(workdir, plugins=config.plugin_files)
        say(describe_complete(config, run.step, workdir))
        return run
    try:
        train_in(config, workdir, data=data, on_metrics=on_metrics)
    except Stopped as stopped:
        state = "all is saved; the same call goes on"
        if stopped.number == signal.SIGINT:
            raise KeyboardInterrupt(state) from stopped
        raise Stopped(stopped.number, state) from stopped
    return load(workdir, plugins=config.plugin_files)
