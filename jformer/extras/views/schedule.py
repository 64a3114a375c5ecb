"""The plot of a config's learning rate against the step (Section 5.3, Equation 3)."""

import io
from pathlib import Path
from typing import Any

import numpy as np

from jformer.config import Config
from jformer.errors import UserError
from jformer.extras.views.figure import new_figure
from jformer.files import check_writable, write_file
from jformer.training.schedules import learning_rate

POINTS = 2000  # points of the line; a run of fewer steps has one per step


def write_schedule(config: Config, name: str) -> None:
    """Draw the learning rate into the file of --plot=NAME, a .png or a .svg."""
    format = Path(name).suffix
    if format not in (".png", ".svg"):
        raise UserError(f"--plot={name}: a picture's name must end in .png or .svg")
    check_writable("plot", name)
    picture = io.BytesIO()
    draw_schedule(config).savefig(picture, format=format.removeprefix("."))
    write_file("plot", name, picture.getvalue())


def draw_schedule(config: Config) -> Any:
    """Return a matplotlib `Figure` of steps 1 to train.steps, with the end of warm-up marked."""
    steps, peak = config.train.steps, config.optimizer.warmup_steps
    # The peak is one of the points: a line that skipped it would be too low.
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
