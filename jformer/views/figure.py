"""matplotlib's figures, which the extra `plot` draws."""

from typing import Any

from jformer.errors import UserError


def new_figure(width: float, height: float, dpi: int) -> Any:
    """An empty `Figure` of `width` x `height` inches, laid out by what is drawn into it."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(
            "a picture needs the package matplotlib: pip install 'jformer[plot]'"
        ) from error
    return Figure(figsize=(width, height), dpi=dpi, layout="constrained")
