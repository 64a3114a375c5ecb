"""The platform to compile for, which can differ from this machine's own; the compilation cache."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

_override: tuple[str, float] | None = None  # a platform and its compute capability


def target_platform() -> str:
    """Return the platform that programs are compiled for: `cpu`, `gpu` or `tpu`."""
    import jax  # imported late, so that --help and typos respond at once

    return _override[0] if _override else jax.default_backend()


def compute_capability() -> float:
    """Return the CUDA compute capability of the GPU, 9.0 for Hopper, or 0."""
    import jax

    if _override:
        return _override[1]
    text = str(getattr(jax.devices()[0], "compute_capability", ""))
    return float(text) if re.fullmatch(r"\d+\.\d+", text) else 0.0  # AMD has "gfx90a"


@contextlib.contextmanager
def compiling_for(platform: str, capability: float = 0) -> Iterator[None]:
    """Within this context, compile for a device that this machine lacks."""
    global _override
    _override = platform, capability
    try:
        yield
    finally:
        _override = None


def use_compilation_cache(wanted: str) -> None:
    """Set the folder of JAX's compilation cache, unless the user did; call this before compiling.

    `wanted` is `config.compilation_cache`. `auto` disables the cache on a CPU: some Intel
    processors reject their own programs (jax#38445).
    """
    import jax

    enabled = wanted == "on" or (wanted == "auto" and jax.default_backend() != "cpu")
    if enabled and jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "xla"))


def cache_folder() -> Path:
    """Return the folder of this package in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "jformer")
