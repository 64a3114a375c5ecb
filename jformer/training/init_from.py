"""The first parameters of a run that begins from another: `train.init_from`."""

from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.experimental import multihost_utils

from jformer.config import Config, component_files
from jformer.console import say
from jformer.data.vocabulary import FIRST, Vocabularies, Vocabulary
from jformer.run import load, run_and_checkpoint

EMBEDDINGS = ("embedding", "source_embedding", "output", "output_bias")  # a row per token


def initial_params(config: Config, params: Any, vocabularies: Vocabularies) -> Any:
    """Return `params` with the parameters of `train.init_from` that have the same name and shape.

    Rows of embeddings are matched by their tokens. Raises `UserError` if no parameter matches.
    """
    workdir, checkpoint = run_and_checkpoint(config.train.init_from)
    other = load(workdir, checkpoint, plugins=component_files(config))
    theirs = flatten_dict(jax.device_get(other.params), sep="/")
    # Several processes may hold shards.
    ours = flatten_dict(multihost_utils.process_allgather(params, tiled=True), sep="/")
    new, new_rows = 0, 0
    for name, own in ours.items():
        is_embedding = name in EMBEDDINGS
        first = int(is_embedding)  # the number of rows may differ
        if name not in theirs or theirs[name].shape[first:] != own.shape[first:]:
            new += 1
        elif is_embedding:
            side = "source" if name == "source_embedding" else "target"
            ids_V = ids_in(getattr(other.vocabularies, side), getattr(vocabularies, side))
            known_V = ids_V >= 0
            ours[name] = np.array(own)
            ours[name][known_V] = theirs[name][ids_V[known_V]]
            new_rows += int(np.sum(~known_V))
        else:
            ours[name] = theirs[name]
    if new == len(ours):
        raise config.train.wrong("init_from", "no parameter matches this model")
    say(
        f"init_from   {workdir}, step {other.step}; "
        f"new: {new} of {len(ours)} parameters, {new_rows:,} rows of embeddings"
    )
    return jax.device_put(unflatten_dict(ours, sep="/"), jax.tree.map(lambda x: x.sharding, params))


def ids_in(other: Vocabulary, own: Vocabulary) -> np.ndarray:
    """Return for each id of `own` the id of the same entry in `other`, or -1 if it has none."""
    ids = {entry: token for token, entry in enumerate(other.entries())}
    rest = (-1 if entry is None else ids.get(entry, -1) for entry in own.entries()[FIRST:])
    return np.array([*range(FIRST), *rest])
