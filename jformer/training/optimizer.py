"""Adam (Section 5.3) or a variant, and the learning rate, as an optax chain.

Updates are counted from 0, the paper's step_num from 1: step_num = updates + 1. Config keys count
in step_num. The caller passes the number of train steps done before as `step` to
`optimizer.update`, so a skipped update does not shift the schedule.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jformer.config import Config, OptimizerConfig
from jformer.extras.muon import muon
from jformer.plugins import find_parts


def learning_rate(config: Config) -> optax.Schedule:
    """Return the schedule of the config, which peaks at step_num = warmup_steps."""
    optimizer = config.optimizer
    if optimizer.schedule == "equation_3":
        factor = optimizer.learning_rate_factor * config.model.d_model**-0.5
        schedule = equation_3(factor, optimizer.warmup_steps)
    else:
        schedule = warm_up_and_decay(optimizer, optimizer.decay_steps or config.train.steps)
    return lambda updates_done: schedule(updates_done + 1)


def equation_3(factor: float, warmup_steps: int) -> optax.Schedule:
    """Return Equation 3 as a function of step_num, with `factor` in place of d_model^-0.5."""

    def schedule(step_num):
        step_num = jnp.asarray(step_num, jnp.float32)
        return factor * jnp.minimum(step_num**-0.5, step_num * warmup_steps**-1.5)

    return schedule


def warm_up_and_decay(config: OptimizerConfig, decay_steps: int) -> optax.Schedule:
    """Return a linear warm-up to the peak, then a decay, as a function of step_num."""
    start, peak, end = (
        config.learning_rate_factor * rate
        for rate in (config.start_learning_rate, config.learning_rate, config.end_learning_rate)
    )
    warmup_steps = config.warmup_steps
    match config.schedule:
        case "inverse_sqrt":  # which optax lacks

            def decay(steps):
                return peak * jnp.sqrt(warmup_steps / (steps + warmup_steps))

        case "linear":
            decay = optax.schedules.linear_schedule(peak, end, decay_steps - warmup_steps)
        case "cosine":
            steps = decay_steps - warmup_steps
            decay = optax.schedules.cosine_decay_schedule(peak, steps, alpha=end / peak)
        case "constant":
            decay = optax.schedules.constant_schedule(peak)
    warm_up = optax.schedules.linear_schedule(start, peak, warmup_steps)
    return optax.schedules.join_schedules([warm_up, decay], [warmup_steps])


def make_optimizer(
    config: OptimizerConfig, rate: optax.Schedule, plugins: str = ""
) -> optax.GradientTransformationExtraArgs:
    """Return the optimizer of the config, with `update(grads, state, params, step=...)`.

    A plugin has a function from `config` to what takes the place of `optax.scale_by_adam`: clipping
    comes before it, weight decay and the learning rate after it.
    """
    makers = {**OPTIMIZERS, **find_parts(config, plugins)}
    parts = [makers[config.name](config)]
    if config.clip_norm:
        parts.insert(0, optax.clip_by_global_norm(config.clip_norm))
    if config.name != "adam":
        parts.append(optax.add_decayed_weights(config.weight_decay, decay_mask))
    return optax.chain(*parts, scale_by_rate(rate))


def adam(config: OptimizerConfig) -> optax.GradientTransformation:
    return optax.scale_by_adam(config.beta1, config.beta2, config.epsilon)


def scaled(inner: optax.GradientTransformation, factor: float) -> optax.GradientTransformation:
    """Multiply the updates of `inner`, whose state stays as it is: `optax.chain` would nest it."""

    def update(updates, state, params=None):
        updates, state = inner.update(updates, state, params)
        return jax.tree.map(lambda u: factor * u, updates), state

    return optax.GradientTransformation(inner.init, update)


OPTIMIZERS: dict[str, Callable[[OptimizerConfig], optax.GradientTransformation]] = {
    "adam": adam,
    "adamw": adam,
    "muon": lambda config: muon(config.momentum, scaled(adam(config), config.adam_factor)),
}


def decay_mask(params: Any) -> Any:
    """Return True for each parameter that decays: all but biases and the scales of norms."""

    def decays(path, leaf):
        name = jax.tree_util.keystr(path[-1:], simple=True)
        # By name as well: the biases of stacked layers are matrices.
        return leaf.ndim >= 2 and name not in ("bias", "scale")

    return jax.tree_util.tree_map_with_path(decays, params)


def scale_by_rate(rate: optax.Schedule) -> optax.GradientTransformationExtraArgs:
    """Multiply by -rate(step). Unlike optax's own this has no state: optax counts its calls."""

    def update(updates, state, params=None, *, step, **others):
        factor = -rate(step)
        return jax.tree.map(lambda u: jnp.asarray(factor, u.dtype) * u, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
