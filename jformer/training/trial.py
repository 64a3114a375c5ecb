"""A trial of a user's own parts before a run: they are traced, and nothing is computed."""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp

from jformer.config import Config
from jformer.decoding.ensemble import encode_sources, init_cache, make_step
from jformer.errors import UserError
from jformer.extras.cost import abstract_step
from jformer.model.transformer import Transformer
from jformer.plugins import naming_failures_in, tell_changed
from jformer.training.restore import make_model


def try_own_parts(config: Config) -> None:
    """Raise `UserError` if the model cannot be trained, or not decode, with a plugin's parts."""
    tell_changed(config.plugins)
    sections = config.model, config.optimizer
    own = [section.assignment(key) for section in sections for key in section.own_parts()]
    if not own:
        return
    try:
        with contextlib.ExitStack() as stack:
            for file in config.plugin_files:
                stack.enter_context(naming_failures_in(file))
            step, arguments = abstract_step(config, rows=2, length=config.data.max_length)
            state, _ = jax.eval_shape(step, *arguments)
            model = make_model(config, config.data.vocabulary_size)
            jax.eval_shape(lambda params: decode_once(model, params), state.params)
    except UserError as error:
        if str(error).startswith("config."):
            raise  # the key is named
        raise UserError(f"{' and '.join(own)}: {error}") from error
    except Exception as error:
        told = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{' and '.join(own)}: failed in a trial step ({told})") from error


def decode_once(model: Transformer, params: Any) -> Any:
    """Decode the first position of two hypotheses for a sentence."""
    W, T, models = 2, 3, (model,)
    (memory,) = encode_sources(models, (params,), jnp.ones((1, T), jnp.int32))
    of_sentence = jax.tree.map(lambda x: x[0], memory)
    tokens_W, t, beam_indices_WT = jnp.ones(W, jnp.int32), jnp.int32(0), jnp.zeros((W, T), int)
    step = make_step(models, (params,))
    return step((of_sentence,), init_cache(models, W, T), tokens_W, t, beam_indices_WT)
