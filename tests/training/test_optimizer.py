"""Learning rates at their corners in closed form; Adam, AdamW and clipping written out in numpy."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jformer.components import BUILT_IN
from jformer.config import Config, ModelConfig, OptimizerConfig, TrainConfig
from jformer.errors import UserError
from jformer.training.optimizer import depends_on_train_steps, learning_rate, make_optimizer

SCHEDULES = [*BUILT_IN["schedule"]]
# Warm-up in 40 steps to 0.3; linear and cosine decay to 0.05 by step 240.
START, PEAK, END = 0.01, 0.3, 0.05


def config_of(schedule: str, learning_rate=PEAK, **options) -> Config:
    """The schedule with a value of its own for each option that it has."""
    rate = {}
    if schedule == "equation_3":
        options = {"factor": 2.0, **options}
    else:
        rate = {"learning_rate": learning_rate}
        options = {"start": START, **options}
    if schedule in ("linear", "cosine"):
        options = {"end": END, "decay_steps": 240, **options}
    text = f"{schedule}({', '.join(f'{name}={value}' for name, value in options.items())})"
    config = Config(optimizer=OptimizerConfig(schedule=text, warmup_steps=40, **rate))
    config.check()
    return config


def rates_at(config: Config, *numbers: int) -> list[float]:
    """The rates at step_num, as the paper counts: from 1 on."""
    return [float(learning_rate(config)(number - 1)) for number in numbers]


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
    assert rates_at(Config(), step_num) == [pytest.approx(expected, rel=1e-5)]


def test_base_peaks_at_the_computed_rate():
    rates = rates_at(Config(), *range(3991, 4011))
    assert np.argmax(rates) == 4000 - 3991
    assert max(rates) == pytest.approx(6.99e-4, rel=1e-3)


# float32 holds 7 digits of the highest rate.
CLOSE = {"rel": 1e-5, "abs": 1e-6 * PEAK}


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "linear", "cosine", "constant"])
def test_warm_up_is_a_line_from_the_start_to_the_peak(schedule):
    expected = [START + (PEAK - START) * number / 40 for number in (1, 2, 20, 39, 40)]
    assert rates_at(config_of(schedule), 1, 2, 20, 39, 40) == pytest.approx(expected, **CLOSE)


@pytest.mark.parametrize(
    ("schedule", "step_num", "expected"),
    [
        ("inverse_sqrt", 41, PEAK * (40 / 41) ** 0.5),
        ("inverse_sqrt", 160, PEAK / 2),
        ("inverse_sqrt", 400_000, PEAK / 100),
        ("linear", 41, PEAK - (PEAK - END) / 200),
        ("linear", 90, PEAK - (PEAK - END) / 4),
        ("linear", 140, (PEAK + END) / 2),
        ("linear", 239, END + (PEAK - END) / 200),
        ("linear", 240, END),
        ("linear", 241, END),
        ("linear", 100_000, END),
        ("cosine", 41, END + (PEAK - END) * (1 + np.cos(np.pi / 200)) / 2),
        ("cosine", 90, END + (PEAK - END) * (1 + np.cos(np.pi / 4)) / 2),
        ("cosine", 140, (PEAK + END) / 2),
        ("cosine", 239, END + (PEAK - END) * (1 + np.cos(np.pi * 199 / 200)) / 2),
        ("cosine", 240, END),
        ("cosine", 241, END),
        ("cosine", 100_000, END),
        ("constant", 41, PEAK),
        ("constant", 100_000, PEAK),
    ],
)
def test_the_rate_after_warm_up_is_the_closed_form(schedule, step_num, expected):
    assert rates_at(config_of(schedule), step_num) == [pytest.approx(expected, **CLOSE)]


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_decay_without_a_length_ends_with_the_last_step(schedule):
    config = config_of(schedule, decay_steps=None)
    config = dataclasses.replace(config, train=TrainConfig(steps=100))
    rates = rates_at(config, 99, 100, 101)
    assert rates[0] > END * 1.0001
    assert rates[1:] == pytest.approx([END, END], **CLOSE)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_highest_rate_is_at_the_end_of_warm_up(schedule):
    rates = np.asarray(learning_rate(config_of(schedule))(jnp.arange(300)))
    assert np.argmax(rates) == 40 - 1
    assert (np.diff(rates[:40]) > 0).all()
    assert (np.diff(rates[39:]) <= 0).all()


def test_the_factor_multiplies_every_rate_of_equation_3():
    plain, tripled = (
        learning_rate(config_of("equation_3", factor=factor))(jnp.arange(300))
        for factor in (1.0, 3.0)
    )
    np.testing.assert_allclose(tripled, 3 * plain, rtol=1e-5)  # float32


def test_a_decay_that_ends_before_the_warm_up_is_refused():
    with pytest.raises(UserError, match=r"config\.optimizer\.warmup_steps=40\b.*\b40\b"):
        learning_rate(config_of("linear", decay_steps=40))
    assert learning_rate(config_of("linear", decay_steps=41))(0) > 0


def test_only_a_decay_to_the_last_step_depends_on_the_number_of_steps():
    depending = {s for s in SCHEDULES if depends_on_train_steps(config_of(s))}
    assert depending == set()
    depending = {
        name
        for name in ("linear", "cosine")
        if depends_on_train_steps(config_of(name, decay_steps=None))
    }
    assert depending == {"linear", "cosine"}


def test_inverse_sqrt_from_zero_is_equation_3_of_its_own_peak():
    config = Config(model=ModelConfig(d_model=64), optimizer=OptimizerConfig(warmup_steps=40))
    same = config_of("inverse_sqrt", learning_rate=(64 * 40) ** -0.5, start=0.0)
    one, other = (learning_rate(config)(jnp.arange(300)) for config in (config, same))
    np.testing.assert_allclose(one, other, rtol=1e-5)  # float32


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


def test_a_short_gradient_is_untouched():
    rng = np.random.default_rng(1)
    steps = [random_tree(rng), random_tree(rng)]  # of norm 4.7 at most
    for with_limit, without in zip(
        clipped_updates(steps, 10.0), clipped_updates(steps, 0.0), strict=True
    ):
        for name in SHAPES:
            np.testing.assert_array_equal(with_limit[name], without[name])


def test_the_rate_follows_the_step_and_not_the_number_of_calls():
    optimizer = make_optimizer(OptimizerConfig(name=f"adam({ADAM})"), lambda step: 0.5**step)
    tree = random_tree(np.random.default_rng(2))
    params = gradients = float32(tree)
    state = optimizer.init(params)
    for step in (3, 3, 1, 7):
        updates, state = optimizer.update(gradients, state, params, step=step)
        for name, leaf in tree.items():
            # Of gradients that are all the same, Adam's direction is the same after each of them.
            expected = -(0.5**step) * adam_direction([leaf])
            np.testing.assert_allclose(updates[name], expected, rtol=1e-4)  # float32
