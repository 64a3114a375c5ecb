"""Shape checks: an array's name ends in its axes, which are checked while tracing.

`jformer/__init__.py` lists the letters. The checks cost nothing in a compiled program.
"""

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

AXES = re.compile(r".+_([1A-Z]+)")


def check_shapes(**arrays: Any) -> None:
    """Raise `ValueError` if an array lacks the axes in its name: `check_shapes(q_BHQK=q)`.

    A letter has one size throughout a call. An axis of size one matches any letter, because it
    broadcasts. The axis `1` must have size one.
    """
    sizes = {"1": 1}
    for name, array in arrays.items():
        axes = name.rpartition("_")[2]
        if array.ndim != len(axes):
            raise ValueError(f"{name} has {len(axes)} axes, got shape {array.shape}")
        for axis, size in zip(axes, array.shape, strict=True):
            if size == 1 and axis != "1":
                continue
            if sizes.setdefault(axis, size) != size:
                raise ValueError(
                    f"{name}: axis {axis} is {sizes[axis]} elsewhere, got shape {array.shape}"
                )


def checked(function: Callable) -> Callable:
    """Check the shapes of all arguments whose names end in axes, in each call of `function`."""
    signature = inspect.signature(function)
    named = [name for name in signature.parameters if AXES.fullmatch(name)]

    @functools.wraps(function)
    def with_checks(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        arrays = {name: arguments[name] for name in named if hasattr(arguments.get(name), "ndim")}
        check_shapes(**arrays)
        return function(*args, **kwargs)

    return with_checks
