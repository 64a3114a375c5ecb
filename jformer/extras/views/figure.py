"""The constructor of matplotlib figures, which need the extra `plot`."""

from typing import Any

from jformer.errors import import_extra


def new_figure(width: float, height: float, dpi: int) -> Any:
    """Return an empty `Figure` of `width` x `height` inches with the constrained layout."""
    matplotlib = import_extra("matplotlib.figure", "a picture", "matplotlib")
    return matplotlib.Figure(figsize=(width, height), dpi=dpi, layout="constrained")
