"""Programs are kept in the user's cache folder if the config says so, and where JAX was told."""

import jax
import pytest

from jformer.backend import use_compilation_cache


@pytest.mark.parametrize(
    ("wanted", "backend", "own", "expected"),
    [
        ("on", "cpu", None, "{cache}/jformer/xla"),
        ("auto", "gpu", None, "{cache}/jformer/xla"),
        ("auto", "cpu", None, None),
        ("on", "gpu", "/of/the/user", "/of/the/user"),
    ],
)
def test_programs_are_kept_where_the_config_or_the_user_says(
    tmp_path, monkeypatch, wanted, backend, own, expected
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", own)
    try:
        use_compilation_cache(wanted)
        assert jax.config.jax_compilation_cache_dir == (
            expected and expected.format(cache=tmp_path)
        )
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
