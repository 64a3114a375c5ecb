"""Adam (Section 5.3) or a variant, times the learning rate of schedules.py, as an optax chain."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jformer.components import find
from jformer.config import OptimizerConfig


def make_optimizer(
    config: OptimizerConfig, rate: optax.Schedule
) -> optax.GradientTransformationExtraArgs:
    """Return the optimizer of the config, with `update(grads, state, params, step=...)`.

    The component returns a transformation in place of `optax.scale_by_adam`.
    """
    parts = [find("config.optimizer.name", "optimizer", config.name)()]
    if config.clip_norm:
        parts.insert(0, optax.clip_by_global_norm(config.clip_norm))
    return optax.chain(*parts, scale_by_rate(rate))


def adam(
    *, beta1: float = 0.9, beta2: float = 0.98, epsilon: float = 1e-9
) -> optax.GradientTransformation:
    """Adam with the constants of Section 5.3."""
    return optax.scale_by_adam(beta1, beta2, epsilon)


def adamw(
    *, weight_decay: float = 0.0, beta1: float = 0.9, beta2: float = 0.98, epsilon: float = 1e-9
) -> optax.GradientTransformation:
    """Adam whose matrices decay by `weight_decay` times the learning rate."""
    adam = optax.scale_by_adam(beta1, beta2, epsilon)
    return optax.chain(adam, optax.add_decayed_weights(weight_decay, decay_mask))


def decay_mask(params: Any) -> Any:
    """Return True for each parameter that decays: all but biases and the scales of norms."""

    def decays(path, leaf):
        name = jax.tree_util.keystr(path[-1:], simple=True)
        # By name as well: the biases of attention heads are matrices.
        return leaf.ndim >= 2 and name not in ("bias", "scale")

    return jax.tree_util.tree_map_with_path(decays, params)


def scale_by_rate(rate: optax.Schedule) -> optax.GradientTransformationExtraArgs:
    """Multiply by -rate(step). Unlike optax's version, this is stateless: optax counts calls."""

    def update(updates, state, params=None, *, step, **others):
        factor = -rate(step)
        return jax.tree.map(lambda u: jnp.asarray(factor, u.dtype) * u, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
