"""The kind of device that programs are compiled for, which may be another than the one here."""

import contextlib
import contextvars
from collections.abc import Iterator

_other: contextvars.ContextVar[tuple[str, float] | None] = contextvars.ContextVar(
    "other", default=None
)


def backend() -> str:
    """Return the platform that programs are compiled for: `cpu`, `gpu` or `tpu`."""
    import jax  # only when it is needed: --help and a mistyped key answer at once

    other = _other.get()
    return other[0] if other else jax.default_backend()


def compute_capability() -> float:
    """Return the version of the GPU's architecture by NVIDIA's count, 9.0 for Hopper, or 0."""
    import jax

    if other := _other.get():
        return other[1]
    return float(getattr(jax.devices()[0], "compute_capability", 0))


@contextlib.contextmanager
def compiling_for(platform: str, capability: float = 0) -> Iterator[None]:
    """Make programs for a device that is not here, within this context."""
    token = _other.set((platform, capability))
    try:
        yield
    finally:
        _other.reset(token)
