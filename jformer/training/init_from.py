"""The first parameters of a run that begins from another: `train.init_from`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from jformer.config import Config, component_files
from jformer.console import say
from jformer.data.vocabulary import FIRST, Vocabularies, Vocabulary
from jformer.errors import UserError
from jformer.run import load, run_and_checkpoint

EMBEDDINGS = ("embedding", "source_embedding", "output", "output_bias")  # a row per token


def initial_params(config: Config, params: Any, vocabularies: Vocabularies) -> Any:
    """Return `params` with the parameters of `train.init_from` that have the same name and shape.

    The rows of embeddings and output are matched by their tokens. Prints what remains new; raises
    `UserError` if all parameters do.
    """
    init_from = config.train.init_from
    workdir, checkpoint = run_and_checkpoint(init_from)
    other = load(workdir, checkpoint, plugins=component_files(config))
    theirs, taken = flatten_dict(other.params, sep="/"), flatten_dict(params, sep="/")
    new, new_rows = [], 0
    for name, own in taken.items():
        is_embedding = name in EMBEDDINGS
        first = int(is_embedding)  # the number of rows may differ
        if name not in theirs or theirs[name].shape[first:] != own.shape[first:]:
            new.append(name)
            continue
        values = jax.device_get(theirs[name])
        if not is_embedding:
            taken[name] = jax.device_put(values, own.sharding)
            continue
        side = "source" if name == "source_embedding" else "target"
        ids_V = ids_in(getattr(other.vocabularies, side), getattr(vocabularies, side))
        taken[name] = with_rows(own, values, ids_V)
        new_rows += int(np.sum(ids_V < 0))
    if len(new) == len(taken):
        raise UserError(f"config.train.init_from={init_from}: no parameter matches this model")
    fit = f"{len(taken) - len(new)} of {len(taken)} parameters"
    rest = f"{new_rows:,} rows of new tokens and {', '.join(new) or 'no parameter'}"
    say(f"init_from   {fit} from {workdir}, step {other.step}; new: {rest}")
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
