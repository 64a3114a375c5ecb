"""The functions of `import jformer`: a config, training from Python, and opening a run."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jformer.cli import config_from
from jformer.config import Config, component_files, freeze
from jformer.data.datasets import open_data
from jformer.errors import UserError
from jformer.run import Run, load
from jformer.rundir import default_workdir
from jformer.schema import local_paths, replaced
from jformer.training.loop import OnMetrics
from jformer.training.loop import train as train_in

__all__ = ["get_config", "load", "train"]


def get_config(name: str | Path = "base", /, **keys: Any) -> Config:
    """Return a config by the name or the path of its file, with some keys set.

        config = jformer.get_config("tiny:multi30k", **{"model.dropout": 0.3, "train.steps": 500})
        config.train.batch_tokens

    `name` is what follows `--config=` on the command line: `tiny`, `small`, `base`, `big` or the
    path of a config file, optionally followed by a colon and a data set. The data set `given` means
    the pairs passed to `train`. A config is immutable: to change a key, call this again.
    `print(config)` shows all keys, and `python -m jformer.main train --help` explains each. Raises
    `UserError` for unknown names and invalid values.
    """
    return freeze(config_from(str(name)), keys)


def train(
    config: Config,
    pairs: Iterable[tuple[str, str]] | None = None,
    validation: Iterable[tuple[str, str]] | None = None,
    workdir: str | Path = "",
    on_metrics: OnMetrics | None = None,
) -> Run:
    """Train a run, or resume a stopped one, and return it as `load` does.

        pairs = [("a cat", "eine Katze"), ("a dog", "ein Hund"), ...]
        run = jformer.train(jformer.get_config("tiny:given"), pairs, validation, "runs/mine")
        run.translate(["a cat"])

    `pairs` of source and target are the training data, and `validation` pairs select the parameters
    to serve. Without both, the corpus that the config names is used. The default `workdir` is
    `runs/` plus the names of config and corpus. Repeat the call to resume a stopped run; a complete
    run is returned without training. Progress is printed on standard error.

    `on_metrics(step, split, numbers, run)` is called for each line of metrics.jsonl, with its
    numbers and the current `Run`. Steps never decrease, and a checkpoint that is due at this step
    is complete. If it returns a true value, the run is saved and training ends after this step.

    Raises `UserError` for a user error, `RunError` if training cannot continue, and `Stopped` after
    Ctrl-C or another signal and a save. Call this from the main thread, because signal handlers
    require it.
    """
    if (pairs is None) != (validation is None):
        raise UserError("jformer.train requires both pairs and validation, or neither")
    data = None
    if pairs is not None and validation is not None:
        config = replaced(config, {"data": {"name": "given"}})
        data = open_data(config, {"train": [*pairs], "validation": [*validation]})
    config.check()
    workdir = Path(local_paths("workdir", str(workdir or default_workdir(config))))
    train_in(config, workdir, data=data, on_metrics=on_metrics)
    return load(workdir, plugins=component_files(config))
