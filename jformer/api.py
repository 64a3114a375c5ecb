"""The functions of `import jformer`: a config, training from Python, and opening a run."""

import os
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flax.traverse_util import unflatten_dict

from jformer.cli import config_from
from jformer.config import Config, check_components, component_files
from jformer.console import say
from jformer.data.pipeline import given_data
from jformer.errors import Stopped, UserError, check_type
from jformer.run import Run, load
from jformer.rundir import default_workdir
from jformer.schema import local_paths, replaced
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

        config = jformer.get_config("tiny:multi30k", **{"model.dropout": 0.3, "train.steps": 500})
        config.train.batch_tokens

    `name` is what follows `--config=` on the command line: `tiny`, `small`, `base`, `big` or the
    path of a config file, and behind a colon the data set, where it is not the config's own:
    `given` stands for the pairs of a call of `train`. A config cannot be changed: call this again.
    `print(config)` shows all keys, and `python -m jformer.main train --help` explains each. Raises
    `UserError` for what is unknown or impossible, and `TypeError` for a name of another type.
    """
    check_type("name", name, str | os.PathLike, "a string or a path")
    config = replaced(Config(), config_from(str(name)).to_dict())
    config = replaced(config, unflatten_dict(keys, sep="."))
    config.check()
    check_components(config)
    return config


def train(
    config: Config,
    pairs: Iterable[tuple[str, str]] | None = None,
    validation: Iterable[tuple[str, str]] | None = None,
    workdir: str | Path = "",
    on_metrics: OnMetrics | None = None,
) -> Run:
    """Train, or go on where an earlier call was stopped, and return the run as `load` does.

        pairs = [("a cat", "eine Katze"), ("a dog", "ein Hund"), ...]
        run = jformer.train(jformer.get_config("tiny:given"), pairs, validation, "runs/mine")
        run.translate(["a cat"])

    `pairs` of source and target are trained on and `validation`, more of them, chooses; without
    both, the corpus that the config names serves. All is kept in the run directory `workdir`, by
    default `runs/` and the names of config and corpus. The same call goes on with a run that was
    stopped, and returns one that is complete. Progress is printed on standard error.

    `on_metrics(step, split, numbers)` is called with each line of metrics.jsonl. Where it returns a
    true value or raises an exception, which is raised here, the training ends after this step, with
    all saved.

    Raises `UserError` or `TypeError` for a mistake, `RunError` where the training cannot go on,
    after Ctrl-C `KeyboardInterrupt` and after another signal `Stopped`, both with all saved. For
    the main thread only.
    """
    check_type("config", config, Config, "one of jformer.get_config")
    check_type("workdir", workdir, str | os.PathLike, "a string or a path")
    for name, given in {"pairs": pairs, "validation": validation}.items():
        check_type(name, given, Iterable | None, "an iterable of (source, target)")
    check_type("on_metrics", on_metrics, Callable | None, "a function")
    if threading.current_thread() is not threading.main_thread():
        raise UserError("jformer.train must be called in the main thread, which hears of Ctrl-C")
    if (pairs is None) != (validation is None):
        raise UserError("jformer.train takes both pairs and validation, or neither")
    data = None
    if pairs is not None and validation is not None:
        data = given_data([*pairs], [*validation])
        config = replaced(config, {"data": {"name": "given"}})
    config.check()
    workdir = Path(local_paths("workdir", str(workdir or default_workdir(config))))
    check_same_config(config, workdir)
    if is_complete(config, workdir):
        if data:
            corpora, splits = data
            check_same_text(text_hashes(config, corpora, splits["validation"]), workdir)
        run = load(workdir, plugins=component_files(config))
        say(describe_complete(config, run.step, workdir))
        return run
    try:
        train_in(config, workdir, data=data, on_metrics=on_metrics)
    except Stopped as stopped:
        state = "all is saved; the same call goes on"
        if stopped.number == signal.SIGINT:
            raise KeyboardInterrupt(state) from stopped
        raise Stopped(stopped.number, state) from stopped
    return load(workdir, plugins=component_files(config))
