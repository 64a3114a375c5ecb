"""The constructor of matplotlib figures, which need the extra `plot`."""

from typing import Any

from jformer.errors import UserError


def new_figure(width: float, height: float, dpi: int) -> Any:
    """Return an empty `Figure` of `width` x `height` inches with the constrained layout."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(
            "a picture needs the package matplotlib: pip install 'jformer[plot]'"
        ) from error
    return Figure(figsize=(width, height), dpi=dpi, layout="constrained")
