"""Adam (Section 5.3) or a variant, times the learning rate of schedules.py, as an optax chain.

The caller passes the number of previous train steps as `step` to `optimizer.update`, so a skipped
update does not shift the schedule.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jformer.components import find
from jformer.config import OptimizerConfig
from jformer.errors import UserError


def make_optimizer(
    config: OptimizerConfig, rate: optax.Schedule
) -> optax.GradientTransformationExtraArgs:
    """Return the optimizer of the config, with `update(grads, state, params, step=...)`.

    The component returns a transformation in place of `optax.scale_by_adam`. Clipping precedes it,
    and the learning rate follows it.
    """
    parts = [find("config.optimizer.name", "optimizer", config.name)()]
    if config.clip_norm:
        parts.insert(0, optax.clip_by_global_norm(config.clip_norm))
    return optax.chain(*parts, scale_by_rate(rate))


def adam(
    *, beta1: float = 0.9, beta2: float = 0.98, epsilon: float = 1e-9
) -> optax.GradientTransformation:
    """Adam with the constants of Section 5.3."""
    check_constants(beta1, beta2, epsilon)
    return optax.scale_by_adam(beta1, beta2, epsilon)


def adamw(
    *, weight_decay: float = 0.0, beta1: float = 0.9, beta2: float = 0.98, epsilon: float = 1e-9
) -> optax.GradientTransformation:
    """Adam whose matrices decay by `weight_decay` times the learning rate."""
    check_constants(beta1, beta2, epsilon, weight_decay)
    adam = optax.scale_by_adam(beta1, beta2, epsilon)
    return optax.chain(adam, optax.add_decayed_weights(weight_decay, decay_mask))


def check_constants(beta1: float, beta2: float, epsilon: float, weight_decay: float = 0.0) -> None:
    """Raise `UserError` for constants of Adam that are out of range."""
    valid = {
        f"beta1={beta1} must be from 0 to below 1": 0 <= beta1 < 1,
        f"beta2={beta2} must be from 0 to below 1": 0 <= beta2 < 1,
        f"epsilon={epsilon} must be > 0": epsilon > 0,
        f"weight_decay={weight_decay} must be >= 0": weight_decay >= 0,
    }
    for message, is_valid in valid.items():
        if not is_valid:
            raise UserError(f"config.optimizer.name: {message}")


def decay_mask(params: Any) -> Any:
    """Return True for each parameter that decays: all but biases and the scales of norms."""

    def decays(path, leaf):
        name = jax.tree_util.keystr(path[-1:], simple=True)
        # By name as well: the biases of stacked layers are matrices.
        return leaf.ndim >= 2 and name not in ("bias", "scale")

    return jax.tree_util.tree_map_with_path(decays, params)


def scale_by_rate(rate: optax.Schedule) -> optax.GradientTransformationExtraArgs:
    """Multiply by -rate(step). Unlike optax's version, this is stateless: optax counts calls."""

    def update(updates, state, params=None, *, step, **others):
        factor = -rate(step)
        return jax.tree.map(lambda u: jnp.asarray(factor, u.dtype) * u, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
