"""Shape checks: an array's name ends in its axes, and tracing checks that it has them.

The letters are those of `jformer/__init__.py`. The compiled program pays nothing for the checks.
"""

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

AXES = re.compile(r".+_([1A-Z]+)")


def check_shapes(**arrays: Any) -> None:
    """Raise `ValueError` where an array lacks the axes in its name: `check_shapes(q_BHQK=q)`.

    A letter is one size throughout a call. An axis of size one passes for any letter, as it
    broadcasts; the axis `1` has size one.
    """
    sizes = {"1": 1}
    for name, array in arrays.items():
        axes = name.rpartition("_")[2]
        if array.ndim != len(axes):
            raise ValueError(f"{name} has {len(axes)} axes, got the shape {array.shape}")
        for axis, size in zip(axes, array.shape, strict=True):
            if size == 1 and axis != "1":
                continue
            if sizes.setdefault(axis, size) != size:
                raise ValueError(
                    f"{name}: axis {axis} is {sizes[axis]} elsewhere, got the shape {array.shape}"
                )


def checked(function: Callable) -> Callable:
    """Check the shapes of all arguments whose names end in axes, at each call of `function`."""
    signature = inspect.signature(function)
    named = [name for name in signature.parameters if AXES.fullmatch(name)]

    @functools.wraps(function)
    def with_checks(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        arrays = {name: arguments[name] for name in named if hasattr(arguments.get(name), "ndim")}
        check_shapes(**arrays)
        return function(*args, **kwargs)

    return with_checks
