"""The parts of the model by themselves, and one swapped for another."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jformer import components
from jformer.config import ModelConfig
from jformer.model.transformer import Transformer
from tests.conftest import random_params

SMALL = ModelConfig(num_layers=1, d_model=12, d_ff=17, num_heads=3, dropout=0.0)
B, L, V = 2, 7, 19
FILES = Path(__file__).parents[2] / "experiments" / "components"
ADDITIVE = f"{FILES / 'additive_attention.py'}:AdditiveAttention"


def tokens(*shape, seed=0):
    return np.random.default_rng(seed).integers(3, V, shape).astype(np.int32)


def test_additive_attention_trains_in_place_of_the_product():
    source, target = tokens(B, L), tokens(B, L, seed=1)
    components.allow(components.parse(ADDITIVE).file)
    model = Transformer(dataclasses.replace(SMALL, attention=ADDITIVE), V)
    params = random_params(model)
    total = jax.grad(lambda p: jnp.sum(model.apply({"params": p}, source, target) ** 2))
    gradient = jax.jit(total)(params)
    leaves = jax.tree_util.tree_leaves_with_path(gradient)
    trained = ["/".join(key.key for key in path[:2]) for path, g in leaves if path[-1].key == "v"]
    # Each attention of each layer has its own.
    assert trained == [
        "decoder_0/cross_attention", "decoder_0/self_attention", "encoder_0/self_attention",
    ]  # fmt: skip
    assert all(np.all(np.abs(g) > 0) for path, g in leaves if path[-1].key == "v")
