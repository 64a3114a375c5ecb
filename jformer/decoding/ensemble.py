"""A model as the step function of search.py, or several whose probabilities are averaged.

The models share a vocabulary; all else may differ. `params` has a tree for each of `models`.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from jformer.model.transformer import Transformer

Models = tuple[Transformer, ...]


def encode_sources(models: Models, params: tuple[Any, ...], source_BS):
    """What the steps read of the sources."""

    def read_by(model, params):
        memory_BSD = model.apply({"params": params}, source_BS, method="encode")
        return model.apply({"params": params}, memory_BSD, source_BS, method="precompute_cross_kv")

    return tuple(map(read_by, models, params))


def init_cache(models: Models, W: int, T: int):
    """Of one sentence."""
    return tuple(jax.tree.map(lambda x: x[0], model.init_cache(1, W, T)) for model in models)


def make_step(models: Models, params: tuple[Any, ...]):
    """The step of one sentence, from those of the models, which have an axis B."""

    def step(memories, caches, tokens_W, t, beam_indices_WT):
        def step_by(model, params, memory, cache):
            memory, cache = jax.tree.map(lambda x: x[None], (memory, cache))
            logits_1WV, cache = model.apply(
                {"params": params},
                tokens_W[None],
                t,
                beam_indices_WT[None],
                cache,
                memory,
                method="decode_step",
            )
            return logits_1WV[0], jax.tree.map(lambda x: x[0], cache)

        logits, caches = zip(*map(step_by, models, params, memories, caches), strict=True)
        return caches, mean_logits(logits)

    return step


def mean_logits(logits):
    """Logits of the mean of the models' probabilities."""
    if len(logits) == 1:
        return logits[0]
    log_probs = jnp.stack([jax.nn.log_softmax(each) for each in logits])
    return jax.nn.logsumexp(log_probs, axis=0) - math.log(len(logits))
