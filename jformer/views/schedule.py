"""The learning rate of a config against the step, as in Section 5.3; a picture of Equation 3."""

import io
from pathlib import Path
from typing import Any

import numpy as np

from jformer.config import Config
from jformer.errors import UserError
from jformer.files import check_writable, write_file
from jformer.training.optimizer import learning_rate
from jformer.views.figure import new_figure

POINTS = 2000  # of the line; a run of fewer steps has a point a step


def write_schedule(config: Config, flag: str, name: str) -> None:
    """Draw the learning rate into what --FLAG=NAME is, a PNG or an SVG by its ending."""
    format = Path(name).suffix
    if format not in (".png", ".svg"):
        raise UserError(f"--{flag}={name}: a picture's name must end in .png or .svg")
    check_writable(flag, name)
    picture = io.BytesIO()
    draw_schedule(config).savefig(picture, format=format.removeprefix("."))
    write_file(flag, name, picture.getvalue())


def draw_schedule(config: Config) -> Any:
    """A matplotlib `Figure`: the line from step 1 to train.steps, and the end of warm-up."""
    steps, peak = config.train.steps, config.optimizer.warmup_steps
    # With the peak among them: a line that passes it by would be too low.
    points = np.linspace(1, steps, min(steps, POINTS)).round().astype(np.int32)
    step_nums = np.union1d(points, [min(peak, steps)])
    figure = new_figure(7, 4, dpi=150)
    axes = figure.subplots()
    axes.plot(step_nums, np.asarray(learning_rate(config)(step_nums - 1)), label="learning rate")
    if peak <= steps:
        highest = float(learning_rate(config)(peak - 1))
        label = f"end of warm-up: {highest:.3g} at step {peak:,}"
        axes.axvline(peak, linestyle="--", color="gray", label=label)
    axes.set(
        title=f"{config.name}: {config.optimizer.schedule}",
        xlabel="step",
        ylabel="learning rate",
        xlim=(0, steps),
        ylim=(0, None),
    )
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend()
    return figure
