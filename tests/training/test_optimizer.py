"""Adam, AdamW and clipping written out in numpy."""

import jax.numpy as jnp
import numpy as np
import pytest

from jformer.config import Config, ModelConfig, OptimizerConfig
from jformer.training.optimizer import make_optimizer
from jformer.training.schedules import learning_rate


def adam_direction(gradients: list[np.ndarray]) -> np.ndarray:
    """The update of Adam with 0.8, 0.95 and 1e-3, from all gradients so far; no learning rate."""
    m = v = np.zeros_like(gradients[0])
    for gradient in gradients:
        m = 0.8 * m + 0.2 * gradient
        v = 0.95 * v + 0.05 * gradient**2
    n = len(gradients)
    return (m / (1 - 0.8**n)) / (np.sqrt(v / (1 - 0.95**n)) + 1e-3)


ADAM = "beta1=0.8, beta2=0.95, epsilon=1e-3"
SHAPES = {"matrix": (5, 3), "vector": (7,)}


def random_tree(rng) -> dict[str, np.ndarray]:
    return {name: rng.normal(size=shape) for name, shape in SHAPES.items()}


def float32(tree):
    return {name: jnp.asarray(leaf, jnp.float32) for name, leaf in tree.items()}


def updated(config: OptimizerConfig, rate, params, gradients_by_step):
    """The parameters after each update, by our optimizer."""
    optimizer = make_optimizer(config, rate)
    params = float32(params)
    state = optimizer.init(params)
    for step, gradients in enumerate(gradients_by_step):
        updates, state = optimizer.update(float32(gradients), state, params, step=step)
        params = {name: params[name] + updates[name] for name in params}
        yield params


def assert_follows(config: OptimizerConfig, rate, expected_update):
    """20 updates are those of `expected_update(name, params, gradients so far)` times the rate."""
    rng = np.random.default_rng(0)
    expected = random_tree(rng)
    steps = [random_tree(rng) for _ in range(20)]
    for step, params in enumerate(updated(config, rate, expected, steps)):
        for name in SHAPES:
            gradients = [gradient[name] for gradient in steps[: step + 1]]
            update = expected_update(name, expected[name], gradients)
            expected[name] = expected[name] - float(rate(step)) * update
            # float32 against float64, over 20 updates
            np.testing.assert_allclose(params[name], expected[name], rtol=1e-4, atol=1e-5)


def test_updates_are_those_of_adam_written_out():
    config = OptimizerConfig(name=f"adam({ADAM})", warmup_steps=7)
    rate = learning_rate(Config(model=ModelConfig(d_model=16), optimizer=config))
    assert_follows(config, rate, lambda name, params, gradients: adam_direction(gradients))


def test_adamw_takes_the_decay_of_matrices_and_of_nothing_else():
    config = OptimizerConfig(name=f"adamw(weight_decay=0.3, {ADAM})")

    def update(name, params, gradients):
        decay = 0.3 * params if name == "matrix" else 0.0
        return adam_direction(gradients) + decay

    assert_follows(config, lambda step: 0.1 / (step + 1), update)


def test_stacked_biases_and_norms_do_not_decay():
    config = OptimizerConfig(name="adamw(weight_decay=0.5)")
    optimizer = make_optimizer(config, lambda step: 0.1)
    layer = {name: jnp.ones((2, 3)) for name in ("bias", "scale", "kernel")}
    params = {"encoder": {"ffn_in": layer}, "embedding": jnp.ones((5, 3))}
    zeros = {"encoder": {"ffn_in": {n: 0 * x for n, x in layer.items()}}}
    zeros["embedding"] = jnp.zeros((5, 3))
    updates, _ = optimizer.update(zeros, optimizer.init(params), params, step=0)
    sums = {name: float(leaf.sum()) for name, leaf in updates["encoder"]["ffn_in"].items()}
    assert sums == {"bias": 0, "scale": 0, "kernel": pytest.approx(-0.1 * 0.5 * 6)}
    assert float(updates["embedding"].sum()) == pytest.approx(-0.1 * 0.5 * 15)


def clipped_updates(gradients, clip_norm: float) -> list[dict]:
    """Adam's after two updates: after one, the length of a gradient has no part in it."""
    config = OptimizerConfig(name=f"adam({ADAM})", clip_norm=clip_norm)
    params = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    return [*updated(config, lambda step: 1.0, params, gradients)]


def test_a_long_gradient_is_scaled_by_the_norm_of_the_whole_tree():
    rng = np.random.default_rng(1)
    steps = [random_tree(rng), {name: 10 * leaf for name, leaf in random_tree(rng).items()}]
    scaled = []
    for tree in steps:
        norm = np.sqrt(sum((leaf**2).sum() for leaf in tree.values()))
        assert norm > 1.5
        scaled.append({name: leaf * 1.5 / norm for name, leaf in tree.items()})
    for name in SHAPES:
        expected = -sum(adam_direction([tree[name] for tree in scaled[:n]]) for n in (1, 2))
        params = clipped_updates(steps, 1.5)[-1][name]
        np.testing.assert_allclose(params, expected, rtol=1e-4, atol=1e-5)  # float32
