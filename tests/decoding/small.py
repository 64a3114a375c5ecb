"""A small Transformer that no training has touched, and its next token by the whole decoder."""

import dataclasses
import functools

import jax
import numpy as np

from jformer.config import BOS, EOS, PAD, ModelConfig
from jformer.decoding.pool import Decoder
from jformer.model.transformer import Transformer

V = 23
MODEL = ModelConfig(num_layers=1, d_model=12, d_ff=19, num_heads=2, d_k=4, d_v=7)
MAX_LENGTH = 100


@functools.cache
def make(config=MODEL, seed=0):
    """A model whose choices are clear, and whose outputs end early, late or never."""
    model, tokens_11 = Transformer(config, V), np.ones((1, 1), np.int32)
    params = jax.jit(model.init)(jax.random.key(seed), tokens_11, tokens_11)["params"]
    # Sharper than an untrained model's near ties, which rounding would decide.
    params = jax.tree.map(lambda x: 2 * x, params)
    return model, {**params, "embedding": params["embedding"].at[EOS].multiply(0.4)}


def decoder_of(config, slots, *members):
    models, params = zip(*(members or [make()]), strict=True)
    return Decoder(models, params, dataclasses.replace(config, batch_size=slots), MAX_LENGTH)


def log_probs_by(members, source):
    """As `log_probs_after` of machines.py, by whole forward passes; the mean of probabilities."""

    def log_probs_after(histories):
        source_BS = np.full((4, 32), PAD, np.int32)
        source_BS[:, : len(source) + 1] = [*source, EOS]
        target_BT = np.full((4, 64), PAD, np.int32)
        for row, tokens in zip(target_BT, histories, strict=False):
            row[: len(tokens) + 1] = [BOS, *tokens]
        at = len(histories[0])
        shares = [
            np.asarray(probabilities(model, params, source_BS, target_BT), np.float64)
            for model, params in members
        ]
        return np.log(np.mean(shares, axis=0))[: len(histories), at]

    return log_probs_after


@functools.partial(jax.jit, static_argnums=0)
def probabilities(model, params, source_BS, target_BT):
    return jax.nn.softmax(model.apply({"params": params}, source_BS, target_BT))
