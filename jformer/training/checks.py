"""A check of the user's own attention and position encoding before a run.

An attention that ignores its mask or its distances learns well and corrupts every output.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jformer.components import parse
from jformer.config import BOS, EOS, PAD, Config
from jformer.decoding.ensemble import encode_sources, init_cache, make_step
from jformer.errors import UserError
from jformer.model.transformer import Transformer

LENGTH, PADDING, VOCABULARY = 7, 3, 32
TOLERANCE = 1e-3  # relative to the largest logit, in float32


def check_decoding(config: Config) -> None:
    """Raise `UserError` unless the cached step with a padded source gives a full pass's logits.

    The model has one layer, and a norm that depends on one position only.
    """
    keys = [key for key in ("attention", "positions") if parse(getattr(config.model, key)).file]
    if not keys:
        return
    own = " and ".join(config.model.assignment(key) for key in keys)
    small = dataclasses.replace(
        config.model, num_layers=1, num_decoder_layers=None, norm="layer_norm", dtype="float32"
    )
    model = Transformer(small, VOCABULARY)
    ids_1L = jnp.arange(EOS + 1, EOS + 1 + LENGTH)[None]
    target_1T = jnp.concatenate([jnp.full((1, 1), BOS), ids_1L[:, :-1]], axis=1)
    params = model.init(jax.random.key(0), ids_1L, target_1T)["params"]
    whole_TV = model.apply({"params": params}, ids_1L, target_1T)[0]
    padded_1S = jnp.pad(ids_1L, ((0, 0), (0, PADDING)), constant_values=PAD)
    cached_TV = jax.jit(decode, static_argnums=0)(model, params, padded_1S, target_1T)
    difference = float(jnp.max(jnp.abs(whole_TV - cached_TV)))
    if not difference <= TOLERANCE * float(jnp.max(jnp.abs(whole_TV))):
        raise UserError(
            f"{own}: the cached decode step with padding in the source differs from a full pass "
            f"by {difference:.2g} in a logit; use the arguments for the mask and the distances"
        )


def decode(model: Transformer, params: Any, source_1S: Array, target_1T: Array) -> Array:
    """Return the logits (T, V) of a target, from the cached step position by position."""
    models, W, T = (model,), 2, target_1T.shape[1]
    memory = jax.tree.map(lambda x: x[0], encode_sources(models, (params,), source_1S))
    cache, step = init_cache(models, W, T), make_step(models, (params,))
    beam_indices_WT = jnp.tile(jnp.arange(W)[:, None], (1, T))
    logits = []
    for t in range(T):
        tokens_W = jnp.full(W, target_1T[0, t])
        cache, logits_WV = step(memory, cache, tokens_W, jnp.int32(t), beam_indices_WT)
        logits.append(logits_WV[0])
    return jnp.stack(logits)
