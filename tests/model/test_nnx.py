"""The model inside a program that is written in NNX, as docs/nnx.md has it."""

import dataclasses

import jax
import numpy as np
from flax import nnx

from jformer.model.transformer import Transformer
from tests.conftest import MODEL, V, random_params


def test_the_model_wrapped_for_nnx_gives_the_same_logits(source_BS, target_BT):
    model = Transformer(dataclasses.replace(MODEL, num_layers=1), V)
    params = random_params(model)

    @nnx.jit
    def wrap():
        return nnx.bridge.ToNNX(model, rngs=nnx.Rngs(0)).lazy_init(source_BS, target_BT)

    wrapped = wrap()
    nnx.update(wrapped, params)
    logits = nnx.jit(lambda wrapped: wrapped(source_BS, target_BT))(wrapped)
    expected = jax.jit(model.apply)({"params": params}, source_BS, target_BT)
    # The same program up to the order in which XLA sums float32.
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
