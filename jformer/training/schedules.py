"""The learning rate as a function of the step: Equation 3 (Section 5.3) or another schedule.

Updates are counted from 0, the paper's step_num from 1: step_num = updates + 1. Config keys and
schedules count in step_num.
"""

import jax.numpy as jnp
import optax

from jformer.components import find, parse
from jformer.config import Config


def learning_rate(config: Config) -> optax.Schedule:
    """Return the schedule of the config as a function of the number of previous updates."""
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
    """Decay linearly to the rate `end` at step `decay_steps` (default: the last step)."""
    peak = config.optimizer.learning_rate
    steps = steps_of_decay(config, decay_steps)
    return warm_up(config, start, optax.schedules.linear_schedule(peak, end, steps))


def cosine(
    config: Config, *, start: float = 0.0, end: float = 0.0, decay_steps: int | None = None
) -> optax.Schedule:
    """Decay by half a cosine to the rate `end` at step `decay_steps` (default: the last step)."""
    peak = config.optimizer.learning_rate
    steps = steps_of_decay(config, decay_steps)
    return warm_up(config, start, optax.schedules.cosine_decay_schedule(peak, steps, end / peak))


def constant(config: Config, *, start: float = 0.0) -> optax.Schedule:
    """Stay at the peak after the warm-up."""
    peak = config.optimizer.learning_rate
    return warm_up(config, start, optax.schedules.constant_schedule(peak))


def warm_up(config: Config, start: float, decay: optax.Schedule) -> optax.Schedule:
    """Return a linear warm-up from `start` to the peak, then `decay` of the steps after it."""
    optimizer = config.optimizer
    rise = optax.schedules.linear_schedule(start, optimizer.learning_rate, optimizer.warmup_steps)
    return optax.schedules.join_schedules([rise, decay], [optimizer.warmup_steps])


def steps_of_decay(config: Config, decay_steps: int | None) -> int:
    """Return the number of steps from the warm-up to the end of the decay."""
    last, optimizer = decay_steps or config.train.steps, config.optimizer
    if last <= optimizer.warmup_steps:
        raise optimizer.wrong("warmup_steps", f"must be below {last}, the last step of the decay")
    return last - optimizer.warmup_steps


def depends_on_train_steps(config: Config) -> bool:
    """Return whether changing `train.steps` may change the learning rates of earlier steps."""
    schedule = parse(config.optimizer.schedule)
    if schedule.file:
        return True  # the user's own may read any key
    return schedule.name in ("linear", "cosine") and not schedule.options.get("decay_steps")
