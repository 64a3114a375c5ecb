"""The plot of one run's learning curves."""

from typing import Any

from jformer.extras.views.figure import new_figure
from jformer.extras.views.report import RunSummary


def draw_curves(seen: RunSummary) -> Any:
    """Return a matplotlib `Figure` of the training NLL (with dropout) and the validation NLL."""
    figure = new_figure(7, 3.5, dpi=100)
    axes = figure.subplots()
    for split in ("train", "validation"):
        curve = seen.curve(split, "nll")
        axes.plot([step for step, _ in curve], [nll for _, nll in curve], label=split)
    axes.set(xlabel="step (updates of the parameters)", ylabel="NLL, nats a token", ylim=(0, None))
    axes.legend()
    return figure
