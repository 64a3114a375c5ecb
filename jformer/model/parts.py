"""Parts that a config names: those of this package, and a user's own, passed to the model.

An own part is a function, or a class of modules, of which each place gets an instance:

    attention   called as `jformer.model.attention.attend`, with the same results
    norm        from x_BLD to the same shape; in the dtype of its parameters, or that of x_BLD
    activation  from hidden_BLF to (B, L, any width), so that a gated one halves it
"""

from collections.abc import Mapping
from typing import Any

from flax.core import FrozenDict

from jformer.errors import UserError

Parts = Mapping[str, Any]  # a user's own parts by name
NONE: Parts = FrozenDict()


def make_part(name: str, ours: Mapping[str, Any], own: Parts) -> Any:
    """Return the function of that name, or an instance of the module class of that name."""
    part = ours.get(name) or own.get(name)
    if part is None:
        raise UserError(f"{name!r} is none of {[*ours, *own]}; pass it to the model in `parts`")
    return part() if isinstance(part, type) else part
