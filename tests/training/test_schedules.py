"""Learning rates at their corners in closed form."""

import dataclasses

import numpy as np
import pytest

from jformer.components import BUILT_IN
from jformer.config import Config, OptimizerConfig, TrainConfig
from jformer.errors import UserError
from jformer.training.schedules import depends_on_train_steps, learning_rate

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


# float32 holds 7 digits of the highest rate.
CLOSE = {"rel": 1e-5, "abs": 1e-6 * PEAK}


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "linear", "cosine", "constant"])
def test_warm_up_is_a_line_from_the_start_to_the_peak(schedule):
    expected = [START + (PEAK - START) * number / 40 for number in (1, 2, 20, 39, 40)]
    assert rates_at(config_of(schedule), 1, 2, 20, 39, 40) == pytest.approx(expected, **CLOSE)


@pytest.mark.parametrize(
    ("schedule", "step_num", "expected"),
    [
        ("inverse_sqrt", 160, PEAK / 2),
        ("linear", 41, PEAK - (PEAK - END) / 200),
        ("linear", 239, END + (PEAK - END) / 200),
        ("linear", 241, END),
        ("cosine", 41, END + (PEAK - END) * (1 + np.cos(np.pi / 200)) / 2),
        ("cosine", 90, END + (PEAK - END) * (1 + np.cos(np.pi / 4)) / 2),
        ("cosine", 241, END),
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


def test_a_decay_that_ends_before_the_warm_up_is_refused():
    with pytest.raises(UserError, match=r"config\.optimizer\.warmup_steps=40\b.*\b40\b"):
        learning_rate(config_of("linear", decay_steps=40))
    assert learning_rate(config_of("linear", decay_steps=41))(0) > 0


def test_a_decay_to_the_last_step_and_a_schedule_of_the_users_own_depend_on_the_number_of_steps():
    assert not any(depends_on_train_steps(config_of(name)) for name in SCHEDULES)
    assert depends_on_train_steps(config_of("linear", decay_steps=None))
    assert depends_on_train_steps(Config(optimizer=OptimizerConfig(schedule="own.py:cosine")))
