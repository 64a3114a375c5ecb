"""Adam (Section 5.3) and the learning rate of Equation 3, as an optax chain."""

import jax.numpy as jnp
import optax

from jformer.config import OptimizerConfig


def learning_rate(config: OptimizerConfig, d_model: int) -> optax.Schedule:
    """Equation 3 as a function of the updates already done; the paper's step_num is one more."""

    def schedule(updates_done):
        step_num = jnp.asarray(updates_done, jnp.float32) + 1
        rate = jnp.minimum(step_num**-0.5, step_num * config.warmup_steps**-1.5)
        return config.learning_rate_factor * d_model**-0.5 * rate

    return schedule


def make_optimizer(config: OptimizerConfig, rate: optax.Schedule) -> optax.GradientTransformation:
    return optax.chain(
        optax.scale_by_adam(config.beta1, config.beta2, config.epsilon),
        optax.scale_by_learning_rate(rate),
    )
