"""Trained parameters from run directories, to translate and score or to start another run."""

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from jformer.backend import use_compilation_cache
from jformer.config import Config, component_files
from jformer.console import say
from jformer.data.vocabulary import FIRST, Vocabularies, Vocabulary
from jformer.errors import UserError
from jformer.model.transformer import Transformer
from jformer.rundir import BEST, config_to_open, served_checkpoint
from jformer.training.checkpoints import Checkpoints, averaged
from jformer.training.provenance import component_hashes

NAMES = "served, average, last, best, a step, or comma-separated steps"
EMBEDDINGS = ("embedding", "source_embedding", "output", "output_bias")  # a row per token


def parameter_shapes(model: Transformer) -> Any:
    """Return the shapes of the parameters, without computing them or using a device."""
    # Parameters are float32 for any dtype; `auto` would query the device.
    model = model.clone(config=dataclasses.replace(model.config, dtype="float32"))
    tokens_11 = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    return jax.eval_shape(
        lambda tokens_11: model.init(jax.random.key(0), tokens_11, tokens_11), tokens_11
    )["params"]


def abstract_params(model: Transformer) -> Any:
    """Return the shapes of the parameters, placed on one device."""
    one_device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one_device),
        parameter_shapes(model),
    )


@dataclasses.dataclass(frozen=True)
class Restored:
    """A run directory, and its parameters at a checkpoint or the mean of several."""

    workdir: Path
    checkpoint: str  # the name that selected the steps
    config: Config
    vocabularies: Vocabularies
    model: Transformer
    params: Any
    steps: tuple[int, ...]  # whose parameters are averaged

    @property
    def step(self) -> int:
        return self.steps[-1]


def restore(workdir: Path, which: str = "served", plugins: Sequence[str] = ()) -> Restored:
    """Restore the parameters of a checkpoint, or the mean of several, onto one device of any kind.

    `which` is `average` (of the last `train.average_checkpoints` regular steps, Section 6.1, or the
    moving average if the run has one), `last`, `served` (whichever of these two has the better
    validation NLL at the end of training; `last` before the end), `best`, or steps such as
    `1000,2000`. `plugins` are the Python files that its config names. Raises `UserError` that names
    a missing file or checkpoint.
    """
    config = config_to_open(workdir, plugins)
    use_compilation_cache(config.compilation_cache)
    regular = Checkpoints(workdir)
    if which == "served":
        which = served_checkpoint(workdir, max(regular.steps(), default=0)) or "last"
    checkpoints = Checkpoints(workdir, folder=BEST) if which == "best" else regular
    steps = steps_named(which, checkpoints, config, workdir)
    vocabularies = Vocabularies.load(workdir, config.data.joint_vocabulary)
    model = Transformer(config.model, vocabularies.target.size, vocabularies.source.size)
    versions = checkpoints.newest("metadata").get("versions", {})
    for name, content in component_hashes(config).items():
        if versions.get(name, content) != content:
            say(f"{name}: has changed since {workdir} was trained with it; outputs may differ")
    moving = config.train.ema_decay > 0 and which in ("average", "best")
    params = checkpoints.mean(steps, abstract_params(model), "ema" if moving else "params")
    return Restored(workdir, which, config, vocabularies, model, params, tuple(steps))


def steps_named(which: str, checkpoints: Checkpoints, config: Config, workdir: Path) -> list[int]:
    """Return the steps of the checkpoints to average."""
    saved = checkpoints.steps()
    if not saved:
        raise UserError(f"{workdir}: no checkpoint yet for checkpoint={which}; train first")
    # The last moving average is a mean of many steps already.
    if which in ("last", "best") or (which == "average" and config.train.ema_decay > 0):
        return saved[-1:]
    if which == "average":
        ended = saved[-1] >= config.train.steps or checkpoints.newest("position").get("ended")
        return averaged(saved, bool(ended), config.train)
    if re.fullmatch(r"\d+(,\d+)*", which):
        return sorted(int(number) for number in which.split(","))  # their order rounds the mean
    raise UserError(f"checkpoint {which!r} is unknown; must be {NAMES}")


def run_and_checkpoint(init_from: str) -> tuple[Path, str]:
    """Split RUN[@CHECKPOINT], unless RUN@CHECKPOINT exists; CHECKPOINT is `served` by default."""
    if "@" not in init_from or os.path.exists(init_from):
        return Path(init_from), "served"
    workdir, _, which = init_from.rpartition("@")
    return Path(workdir), which or "served"


def initial_params(config: Config, params: Any, vocabularies: Vocabularies) -> Any:
    """Return `params` with the parameters of `train.init_from` that have the same name and shape.

    The rows of embeddings and output are matched by their tokens. Prints which parameters and how
    many rows remain new; raises `UserError` if all parameters do.
    """
    init_from = config.train.init_from
    other = restore(*run_and_checkpoint(init_from), component_files(config))
    other_params = flatten_dict(other.params, sep="/")
    taken, new, rows = flatten_dict(params, sep="/"), [], []
    for name, own in taken.items():
        is_embedding = name in EMBEDDINGS
        first = int(is_embedding)  # the number of rows may differ
        if name not in other_params or other_params[name].shape[first:] != own.shape[first:]:
            new.append(name)
            continue
        values = jax.device_get(other_params[name])
        if not is_embedding:
            taken[name] = jax.device_put(values, own.sharding)
            continue
        side = "source" if name == "source_embedding" else "target"
        ids_V = ids_in(getattr(other.vocabularies, side), getattr(vocabularies, side))
        taken[name] = with_rows(own, values, ids_V)
        if number := int(np.sum(ids_V < 0)):
            rows.append(f"{number:,} of {len(ids_V):,} rows of {name}")
    if len(new) == len(taken):
        raise UserError(f"config.train.init_from={init_from}: no parameter matches this model")
    fit = f"{len(taken) - len(new)} of {len(taken)}"
    say(f"parameters  {fit} taken from {other.workdir}, step {other.step}")
    if new:
        say(f"            new, without a match: {', '.join(new)}")
    if rows:
        say(f"            new, because of new tokens: {', '.join(rows)}")
    return unflatten_dict(taken, sep="/")


def ids_in(other: Vocabulary, own: Vocabulary) -> np.ndarray:
    """Return for each id of `own` the id of the same entry in `other`, or -1 if it has none."""
    ids = {entry: token for token, entry in enumerate(other.entries())}
    rest = (-1 if entry is None else ids.get(entry, -1) for entry in own.entries()[FIRST:])
    return np.array([*range(FIRST), *rest])


def with_rows(own_VD: Any, other_UD: np.ndarray, ids_V: np.ndarray) -> Any:
    """Return `own_VD` with row `ids_V[v]` of the other matrix in row v, if that id is >= 0."""
    rows_VD = jax.device_put(other_UD[ids_V], own_VD.sharding)
    # Under jit, because a process may have only a part of the matrix.
    choose = jax.jit(jnp.where, out_shardings=own_VD.sharding)
    found_V = (ids_V >= 0).reshape(-1, *[1] * (own_VD.ndim - 1))  # a bias lacks the axis D
    return choose(found_V, rows_VD, own_VD)
