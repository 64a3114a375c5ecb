"""The step function of a search: one model, or several whose probabilities are averaged.

The models share a vocabulary; everything else may differ. `params` has a tree per model.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jformer.model.decoding import Memory, decode_step, precompute_cross_kv
from jformer.model.transformer import Transformer

Models = tuple[Transformer, ...]


def encode_sources(models: Models, params: tuple[Any, ...], source_BS: Array) -> tuple[Memory, ...]:
    """Encode the sources and precompute cross-attention keys and values, for each model."""

    def encode(model: Transformer, params: Any) -> Memory:
        memory_BSD = model.apply({"params": params}, source_BS, method="encode")
        return model.apply({"params": params}, memory_BSD, source_BS, method=precompute_cross_kv)

    return tuple(map(encode, models, params))


def make_step(models: Models, params: tuple[Any, ...]) -> Callable:
    """Return the `step` function that search.py calls for one sentence."""

    def step(memories, caches, tokens_W, t, beam_indices_WT):
        logits, new_caches = [], []
        for model, tree, memory, cache in zip(models, params, memories, caches, strict=True):
            logits_WV, cache = model.apply(
                {"params": tree}, tokens_W, t, beam_indices_WT, cache, memory, method=decode_step
            )
            logits.append(logits_WV)
            new_caches.append(cache)
        return tuple(new_caches), mean_logits(logits)

    return step


def mean_logits(logits: list[Array]) -> Array:
    """Return logits whose softmax is the mean of the models' probabilities."""
    if len(logits) == 1:
        return logits[0]
    log_probs = jnp.stack([jax.nn.log_softmax(each) for each in logits])
    return jax.nn.logsumexp(log_probs, axis=0) - math.log(len(logits))
