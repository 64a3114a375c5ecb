"""A check of the user's own components before a run, on a model of one layer.

It runs a train step on a short batch. It also runs a few tokens through the cached decode step, and
through a pass with padding: the logits must equal those from a full pass. A component that is wrong
in decoding would corrupt every output.
"""

import contextlib
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jformer.components import naming_failures_in, parse, split_list
from jformer.config import BOS, EOS, PAD, Config, component_files
from jformer.decoding.ensemble import encode_sources, init_cache, make_step
from jformer.errors import UserError
from jformer.evaluation.metrics import Validation, score_by
from jformer.model.transformer import Transformer
from jformer.schema import walk_components
from jformer.training.optimizer import make_optimizer
from jformer.training.schedules import learning_rate
from jformer.training.step import create_state, make_train_step

KINDS = (
    "attention",
    "norm",
    "activation",
    "positions",
    "optimizer",
    "schedule",
    "loss",
    "metric",
)
PADDING = 3
ROWS, LENGTH, VOCABULARY = 2, 7, 32
TOLERANCE = 1e-3  # relative to the largest logit, in float32


def check_own_components(config: Config) -> None:
    """Raise `UserError` if a component of the user's own fails in training or in decoding."""
    own = [
        f"{key}={text}"
        for key, kind, text in walk_components(config)
        if kind in KINDS and parse(text).file
    ]
    if not own:
        make_optimizer(config.optimizer, learning_rate(config))  # raises for a wrong option
        return
    try:
        with contextlib.ExitStack() as stack:
            for file in component_files(config):
                stack.enter_context(naming_failures_in(file))
            learning_rate(config)(0)
            try_components(small(config))
    except UserError as error:
        raise UserError(f"{' and '.join(own)}: {error}") from error
    except Exception as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{' and '.join(own)}: fails in a train step ({message:.300})") from error


def small(config: Config) -> Config:
    """Return the config with one layer in float32, without options that only save memory."""
    model = dataclasses.replace(
        config.model,
        num_layers=1,
        num_decoder_layers=None,
        dtype="float32",
        attention_kernel="xla",
        remat="none",
        scan_layers=False,
    )
    train = dataclasses.replace(config.train, accumulate=1)
    return dataclasses.replace(config, model=model, train=train)


def try_components(config: Config) -> None:
    """Run one train step, and compare the cached decode step with a full pass."""
    model = Transformer(config.model, VOCABULARY)
    optimizer = make_optimizer(config.optimizer, learning_rate(config))
    state = create_state(model, optimizer, jax.random.key(0))
    ids_BL = np.random.default_rng(0).integers(EOS + 1, VOCABULARY, (ROWS, LENGTH)).astype(np.int32)
    target_BT = np.concatenate([np.full((ROWS, 1), BOS, np.int32), ids_BL[:, :-1]], axis=1)
    batch = {"source_BS": ids_BL, "target_BT": target_BT, "labels_BT": ids_BL}
    step = jax.jit(make_train_step(model, optimizer, config.train))
    state, metrics = step(state, batch, jax.random.key(0))
    if int(metrics["skipped"]):
        raise UserError("the loss or its gradient is not finite in the first train step")
    for text in split_list(config.train.metrics):
        if parse(text).file:
            score_by(text, Validation(["1 2"], ["3"], ["3 4"], state.params, config))
    if parse(config.model.norm).file:
        return  # a norm over the batch, such as BatchNorm, depends on all positions of a pass
    whole_TV, *others = jax.jit(decode_in_ways, static_argnums=0)(model, state.params, ids_BL[:1])
    names = ("the cached decode step", "a pass with padding in the source")
    for name, other_TV in zip(names, others, strict=True):
        difference = float(jnp.max(jnp.abs(whole_TV - other_TV)))
        if not difference <= TOLERANCE * float(jnp.max(jnp.abs(whole_TV))):
            raise UserError(
                f"{name} differs from a full pass by {difference:.2g} in a logit. An attention "
                f"component must use its arguments for the mask and the distances"
            )


def decode_in_ways(model: Transformer, params: Any, ids_1L: Array) -> tuple[Array, Array, Array]:
    """Return the logits (T, V) of a target in three ways that must agree.

    The first comes from a full pass, the second from the cached step position by position for two
    beams, and the third from a pass with padding in the source.
    """
    target_1T = jnp.concatenate([jnp.full((1, 1), BOS, jnp.int32), ids_1L[:, :-1]], axis=1)
    whole_1TV = model.apply({"params": params}, ids_1L, target_1T)
    padded_1S = jnp.pad(ids_1L, ((0, 0), (0, PADDING)), constant_values=PAD)
    padded_1TV = model.apply({"params": params}, padded_1S, target_1T)
    models, W, T = (model,), 2, target_1T.shape[1]
    memory = jax.tree.map(lambda x: x[0], encode_sources(models, (params,), ids_1L))
    cache, step = init_cache(models, W, T), make_step(models, (params,))
    beam_indices_WT = jnp.tile(jnp.arange(W)[:, None], (1, T))
    logits = []
    for t in range(T):
        tokens_W = jnp.full(W, target_1T[0, t])
        cache, logits_WV = step(memory, cache, tokens_W, jnp.int32(t), beam_indices_WT)
        logits.append(logits_WV[0])
    return whole_1TV[0], jnp.stack(logits), padded_1TV[0]
