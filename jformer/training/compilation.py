"""JAX's persistent compilation cache: later processes load programs compiled by earlier ones."""

import jax

from jformer.config import Config, DataConfig
from jformer.data.tokens import cache_folder
from jformer.errors import UserError


def use_compilation_cache(config: Config) -> None:
    """Set JAX's cache folder, unless the user did; call this before the first compilation.

    `auto` disables it on a CPU: some Intel processors reject their own programs (jax#38445). Raises
    `UserError` if JAX cannot start, such as under JAX_PLATFORMS=cuda without a GPU.
    """
    try:
        backend = jax.default_backend()
    except (RuntimeError, AssertionError) as error:  # JAX raises both
        raise UserError(
            f"JAX_PLATFORMS={jax.config.jax_platforms}: JAX cannot start ({error!r}); run "
            f"`jformer doctor` to check the installation"
        ) from error
    wanted = config.compilation_cache
    if wanted == "auto":
        wanted = "off" if backend == "cpu" else "on"
    if wanted == "on" and jax.config.jax_compilation_cache_dir is None:
        folder = cache_folder(DataConfig()) / "xla"
        jax.config.update("jax_compilation_cache_dir", str(folder))
