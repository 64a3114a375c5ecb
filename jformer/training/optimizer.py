"""Adam (Section 5.3) or a variant, and the learning rate, as an optax chain.

Updates are counted from 0, the paper's step_num from 1: step_num = updates + 1. Config keys count
in step_num. The caller passes the number of train steps done before as `step` to
`optimizer.update`, so a skipped update does not shift the schedule.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jformer.components import find
from jformer.config import Config, OptimizerConfig
from jformer.errors import UserError


def learning_rate(config: Config) -> optax.Schedule:
    """Return the schedule of the config as a function of the number of updates before."""
    text = config.optimizer.schedule
    schedule = find("config.optimizer.schedule", "schedule", text)(config)
    return lambda updates_done: schedule(updates_done + 1)


def equation_3(config: Config, *, factor: float = 1.0) -> optax.Schedule:
    """Return Equation 3, times `factor`, as a function of step_num."""
    factor *= config.model.d_model**-0.5
    warmup_steps = config.optimizer.warmup_steps

    def schedule(step_num):
        step_num = jnp.asarray(step_num, jnp.float32)
        return factor * jnp.minimum(step_num**-0.5, step_num * warmup_steps**-1.5)

    return schedule


def inverse_sqrt(config: Config, *, start: float = 0.0) -> optax.Schedule:
    """Decay by the inverse square root of the step, which optax lacks."""
    peak, warmup_steps = config.optimizer.learning_rate, config.optimizer.warmup_steps
    return warm_up(config, start, lambda n: peak * jnp.sqrt(warmup_steps / (n + warmup_steps)))


def linear(
    config: Config, *, start: float = 0.0, end: float = 0.0, decay_steps: int | None = None
) -> optax.Schedule:
    """Decay linearly to the rate `end` at step `decay_steps`, by default the last."""
    check_rates(config, end=end)
    steps = steps_of_decay(config, decay_steps)
    peak = config.optimizer.learning_rate
    return warm_up(config, start, optax.schedules.linear_schedule(peak, end, steps))


def cosine(
    config: Config, *, start: float = 0.0, end: float = 0.0, decay_steps: int | None = None
) -> optax.Schedule:
    """Decay by half a cosine to the rate `end` at step `decay_steps`, by default the last."""
    check_rates(config, end=end)
    steps = steps_of_decay(config, decay_steps)
    peak = config.optimizer.learning_rate
    decay = optax.schedules.cosine_decay_schedule(peak, steps, alpha=end / peak)
    return warm_up(config, start, decay)


def constant(config: Config, *, start: float = 0.0) -> optax.Schedule:
    """Stay at the peak after the warm-up."""
    peak = config.optimizer.learning_rate
    return warm_up(config, start, optax.schedules.constant_schedule(peak))


def check_rates(config: Config, **rates: float) -> None:
    """Raise `UserError` unless the rates are between 0 and the peak."""
    for name, rate in rates.items():
        if not 0 <= rate <= config.optimizer.learning_rate:
            peak = config.optimizer.assignment("learning_rate")
            raise config.optimizer.wrong("schedule", f"{name}={rate} must be from 0 to {peak}")


def warm_up(config: Config, start: float, decay: optax.Schedule) -> optax.Schedule:
    """Return a linear warm-up from `start` to the peak, then `decay` of the steps after it."""
    optimizer = config.optimizer
    check_rates(config, start=start)
    rise = optax.schedules.linear_schedule(start, optimizer.learning_rate, optimizer.warmup_steps)
    return optax.schedules.join_schedules([rise, decay], [optimizer.warmup_steps])


def steps_of_decay(config: Config, decay_steps: int | None) -> int:
    """Return the number of steps from the warm-up to the end of the decay."""
    end = config.train.steps if decay_steps is None else decay_steps
    warmup_steps = config.optimizer.warmup_steps
    if end <= warmup_steps:
        raise config.optimizer.wrong(
            "warmup_steps", f"must be below {end}, the step at which the decay ends"
        )
    return end - warmup_steps


def depends_on_train_steps(config: Config) -> bool:
    """Return whether another `train.steps` would be another schedule for the steps up to it."""
    steps = config.train.steps
    longer = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=2 * steps))
    # The programs are compared, not rates, which would start a GPU in the parent of a sweep.
    programs = [jax.make_jaxpr(learning_rate(each))(0) for each in (config, longer)]
    return len({f"{program} {program.consts}" for program in programs}) > 1


def make_optimizer(
    config: OptimizerConfig, rate: optax.Schedule
) -> optax.GradientTransformationExtraArgs:
    """Return the optimizer of the config, with `update(grads, state, params, step=...)`.

    The component returns what takes the place of `optax.scale_by_adam`. Clipping comes before it,
    the learning rate after it.
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
    """Multiply by -rate(step). Unlike optax's own this has no state: optax counts its calls."""

    def update(updates, state, params=None, *, step, **others):
        factor = -rate(step)
        return jax.tree.map(lambda u: jnp.asarray(factor, u.dtype) * u, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
