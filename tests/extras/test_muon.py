"""Muon beside its definition written out in numpy, a matrix at a time."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jformer.config import ModelConfig, OptimizerConfig
from jformer.model.transformer import Transformer
from jformer.training.optimizer import make_optimizer
from tests.conftest import random_params

MODEL = ModelConfig(num_layers=2, d_model=12, d_ff=192, num_heads=3, dropout=0.0)


def parameters(d_ff: int = MODEL.d_ff) -> dict:
    return random_params(Transformer(dataclasses.replace(MODEL, d_ff=d_ff), 20, 20))


def random_like(params: dict, seed: int) -> dict:
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), params)


def updates_of(config: OptimizerConfig, params: dict, gradients: list[dict]) -> dict:
    """The last update that the gradients lead to, at a learning rate of 1."""
    optimizer = make_optimizer(config, lambda step: 1.0)
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    for step, gradient in enumerate(gradients):
        updates, state = update(gradient, state, params, step=step)
    return updates


def orthogonal(matrix: np.ndarray) -> np.ndarray:
    """Three steps of the polynomial, by the singular values."""
    u, values, v = np.linalg.svd(matrix, full_matrices=False)
    values = values / np.sqrt((values**2).sum())
    for _ in range(3):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return 0.2 * np.sqrt(max(matrix.shape)) * (u * values) @ v


def blocks_of(d_ff: int) -> list[slice]:
    size = math.gcd(d_ff, 64)
    return [slice(begin, begin + size) for begin in range(0, d_ff, size)]


def expected_update(layer: str, gradients: list[np.ndarray]) -> np.ndarray:
    """Nesterov's momentum of 0.8, then each head or block of hidden units as its own matrix.

    A block has 64 units, or the largest power of 2 below that divides d_ff.
    """
    momentum = np.zeros_like(gradients[0])
    for gradient in gradients:
        momentum = gradient + 0.8 * momentum
    kernel = gradients[-1] + 0.8 * momentum
    result = np.zeros_like(kernel)
    match layer:
        case "query" | "key" | "value":
            pieces = [np.s_[:, head] for head in range(3)]
        case "out":
            pieces = [np.s_[head] for head in range(3)]
        case "ffn_in":
            pieces = [np.s_[:, block] for block in blocks_of(kernel.shape[1])]
        case "ffn_out":
            pieces = [np.s_[block] for block in blocks_of(kernel.shape[0])]
    for piece in pieces:
        result[piece] = orthogonal(kernel[piece])
    return -result


@pytest.mark.parametrize(("d_ff", "factor"), [(192, 1.0), (96, 3.0)])
def test_each_kernel_takes_the_orthogonal_update_of_its_own_momentum_and_the_rest_adams(
    d_ff, factor
):
    params = parameters(d_ff)
    gradients = [random_like(params, seed) for seed in range(3)]
    name = f"muon(momentum=0.8, beta1=0.7, adam_factor={factor})"
    updates = updates_of(OptimizerConfig(name=name), params, gradients)
    by_adam = updates_of(OptimizerConfig(name="adam(beta1=0.7)"), params, gradients)
    layers = set()
    paths, _ = zip(*jax.tree_util.tree_leaves_with_path(updates), strict=True)
    leaves = (jax.tree.leaves(each) for each in (updates, by_adam, *gradients))
    for path, update, adams, *of_leaf in zip(paths, *leaves, strict=True):
        name = [key.key for key in path]
        if name[-1] == "kernel":
            layers.add(name[-2])
            expected = expected_update(name[-2], [np.asarray(g, np.float64) for g in of_leaf])
            np.testing.assert_allclose(update, expected, atol=2e-4, err_msg=str(name))
        else:
            np.testing.assert_allclose(update, factor * adams, rtol=1e-6, err_msg=str(name))
    assert layers == {"query", "key", "value", "out", "ffn_in", "ffn_out"}


def test_all_matrices_decay_and_a_matrix_without_a_gradient_does_nothing_else():
    params = parameters()
    zeros = jax.tree.map(jnp.zeros_like, params)
    decay = updates_of(OptimizerConfig(name="muon(weight_decay=0.5)"), params, [zeros])
    for param, update in zip(jax.tree.leaves(params), jax.tree.leaves(decay), strict=True):
        expected = -0.5 * param if param.ndim > 1 else 0 * param
        np.testing.assert_allclose(update, expected, rtol=1e-6)
