"""Equation 3 at its corners, and Adam against its own formulas in numpy."""

import jax.numpy as jnp
import numpy as np
import pytest

from jformer.config import OptimizerConfig
from jformer.training.optimizer import learning_rate, make_optimizer


@pytest.mark.parametrize(
    ("step_num", "expected"),
    [
        (1, 512**-0.5 * 4000**-1.5),
        (2000, 512**-0.5 * 2000 * 4000**-1.5),
        (4000, 512**-0.5 * 4000**-0.5),  # the peak, 7.0e-4
        (100_000, 512**-0.5 * 100_000**-0.5),
    ],
)
def test_learning_rate_follows_equation_3(step_num, expected):
    schedule = learning_rate(OptimizerConfig(), d_model=512)
    assert float(schedule(step_num - 1)) == pytest.approx(expected, rel=1e-5)


def test_base_peaks_at_the_computed_rate():
    schedule = learning_rate(OptimizerConfig(), d_model=512)
    rates = [float(schedule(n)) for n in range(3990, 4010)]
    assert np.argmax(rates) == 3999 - 3990
    assert max(rates) == pytest.approx(6.99e-4, rel=1e-3)


def test_the_factor_multiplies_the_rate():
    plain, doubled = (
        learning_rate(OptimizerConfig(learning_rate_factor=f), 64)(10) for f in (1.0, 2.0)
    )
    assert float(doubled) == pytest.approx(2 * float(plain))


def test_updates_are_those_of_adam_written_out():
    config = OptimizerConfig(beta1=0.8, beta2=0.95, epsilon=1e-3, warmup_steps=7)
    optimizer = make_optimizer(config, learning_rate(config, d_model=16))
    rng = np.random.default_rng(0)
    params = jnp.asarray(rng.normal(size=(5, 3)), jnp.float32)
    expected, m, v = np.asarray(params, np.float64), np.zeros((5, 3)), np.zeros((5, 3))
    state = optimizer.init(params)
    for step in range(1, 21):
        gradient = rng.normal(size=(5, 3))
        updates, state = optimizer.update(jnp.asarray(gradient, jnp.float32), state, params)
        params = params + updates
        m = 0.8 * m + 0.2 * gradient
        v = 0.95 * v + 0.05 * gradient**2
        rate = 16**-0.5 * min(step**-0.5, step * 7**-1.5)
        expected -= rate * (m / (1 - 0.8**step)) / (np.sqrt(v / (1 - 0.95**step)) + 1e-3)
        np.testing.assert_allclose(params, expected, rtol=1e-4, atol=1e-5)
