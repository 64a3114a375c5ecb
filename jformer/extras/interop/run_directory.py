"""Runs as smaller run directories: the parameters of one checkpoint, and no optimizer state.

Such a directory translates, scores and initialises other runs. It cannot resume training.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jformer.config import Config, write_config
from jformer.data.vocabulary import Vocabularies
from jformer.run import Run
from jformer.rundir import CONFIG, locked
from jformer.schema import walk, with_values
from jformer.training.checkpoints import Checkpoints
from jformer.training.loop import NEW
from jformer.training.provenance import metadata
from jformer.training.step import TrainState


def export(run: Run, folder: Path, dtype: str) -> None:
    """Write the parameters that a run serves, rounded to `dtype`, as a run directory."""
    params = jax.tree.map(lambda x: np.asarray(x, jnp.dtype(dtype)), run.params)
    config = without_paths(run.config)
    write_run(folder, config, run.vocabularies, params, run.step)


def without_paths(config: Config) -> Config:
    """Return a config that names files and folders without the folders of this machine."""
    names = {
        key: ",".join(Path(path).name for path in value.split(","))
        for key, field, value in walk(config)
        if field.metadata.get("is_path")
    }
    return with_values(config, names)


def write_run(
    workdir: Path,
    config: Config,
    vocabularies: Vocabularies,
    params: Any,
    step: int,
) -> None:
    """Write a run directory with one checkpoint; config.json, which makes it a run, last."""
    # It serves this checkpoint alone, which is therefore a regular one.
    train = dataclasses.replace(
        config.train, checkpoint_every=step, average_checkpoints=1, ema_decay=0.0
    )
    config = dataclasses.replace(config, train=train)
    with locked(workdir):
        with Checkpoints(workdir, config.train) as checkpoints:
            state = TrainState(np.int32(step), params, None)
            checkpoints.save(state, metadata(config, vocabularies.hash), NEW)
        vocabularies.save(workdir)
        write_config(config, workdir / CONFIG)
