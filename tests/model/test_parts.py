"""The parts of the model by themselves, and one swapped for another."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jformer import components
from jformer.config import ModelConfig
from jformer.extras.halves import sinusoids_in_halves
from jformer.model.attention import attend, causal_mask, padding_mask
from jformer.model.transformer import Transformer
from tests.conftest import random_params

SMALL = ModelConfig(num_layers=1, d_model=12, d_ff=17, num_heads=3, dropout=0.0)
B, L, V = 2, 7, 19
FILES = Path(__file__).parents[2] / "experiments" / "components"
ADDITIVE = f"{FILES / 'additive_attention.py'}:AdditiveAttention"


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def tokens(*shape, seed=0):
    return np.random.default_rng(seed).integers(3, V, shape).astype(np.int32)


def test_attention_weights_of_each_query_sum_to_one_and_are_zero_where_masked():
    tokens_BM = jnp.array([[5, 6, 7, 8, 9, 0, 0], [5, 6, 7, 8, 9, 5, 6]])
    mask_B1QM = padding_mask(tokens_BM) & causal_mask(L)  # both at once
    q, k, v = (random(B, 3, L, 4, seed=seed) for seed in range(3))
    weights_BHQM = np.asarray(attend(q, k, v, mask_B1QM)[1])
    np.testing.assert_allclose(weights_BHQM.sum(axis=-1), 1, rtol=1e-6)
    assert np.all(weights_BHQM[~np.broadcast_to(mask_B1QM, weights_BHQM.shape)] == 0)
    assert np.all(weights_BHQM[np.broadcast_to(mask_B1QM, weights_BHQM.shape)] > 0)


def test_sinusoids_in_halves_are_those_of_tensor2tensor():
    table = np.asarray(sinusoids_in_halves(jnp.arange(50), 16))
    for position in (0, 1, 49):
        for i in range(8):
            angle = position * np.exp(-i * np.log(10000) / 7)
            assert table[position, i] == pytest.approx(np.sin(angle), abs=1e-5)
            assert table[position, 8 + i] == pytest.approx(np.cos(angle), abs=1e-5)


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
