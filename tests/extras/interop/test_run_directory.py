"""A run exported as a run directory opens, translates and initialises other runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jformer
from jformer.main import main

STORED = "tests/stored_run/run"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_serves_the_parameters_of_the_run_in_its_dtype(tmp_path, dtype):
    flags = [f"--workdir={STORED}", f"--output={tmp_path / 'small'}", f"--dtype={dtype}"]
    assert main(["jformer", "export", "--format=jformer", *flags]) == 0
    run, small = jformer.load(STORED), jformer.load(tmp_path / "small")
    expected = jax.tree.map(lambda x: x.astype(dtype).astype(jnp.float32), run.params)
    assert jax.tree.all(jax.tree.map(np.array_equal, small.params, expected))
    assert small.step == run.step
    assert small.translate(["1 2 3"]) == run.translate(["1 2 3"])
    data = small.config.data
    assert "/" not in data.train + data.validation + data.test + data.directory + data.cache
    files = [path for path in (tmp_path / "small").rglob("*") if path.is_file()]
    assert not any("optimizer_state" in str(path) for path in files)
    assert not any(str(tmp_path).encode() in path.read_bytes() for path in files)
