"""A run that resumes on other devices, and splits its state in another way, is the same run."""

import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

import jformer
from jformer.rundir import read_metrics

pytestmark = pytest.mark.process

# Widths that 8, 3 and 2 divide. At this rate six steps move parameters by 1e-2.
KEYS = {
    "model.num_layers": 1, "model.d_model": 24, "model.d_ff": 48, "model.num_heads": 2,
    "model.dropout": 0.3, "model.dtype": "float32", "data.vocabulary_size": 300,
    "data.num_buckets": 1, "optimizer.schedule": "constant", "optimizer.learning_rate": 1e-3,
    "optimizer.warmup_steps": 1, "train.batch_tokens": 256, "train.ema_decay": 0.9,
    "train.steps": 6, "train.log_every": 3, "train.checkpoint_every": 2,
}  # fmt: skip
PAIRS = [("1 2 3 " * (n % 7 + 1), "one two three " * (n % 7 + 1)) for n in range(200)]
TURNS = [(8, {"fsdp": -1}), (6, {"fsdp": -1, "model": 2})]


def train(workdir, keys, stop=False):
    config = jformer.get_config("tiny:given", **KEYS, **keys)
    jformer.train(config, PAIRS, PAIRS[:4], workdir, lambda *_: stop)


def train_on_devices(workdir, devices, axes):
    """In a process of its own, because JAX settles the number of devices when it starts."""
    keys = {f"parallel.{name}": size for name, size in axes.items()}
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.training.test_elastic", str(workdir), json.dumps(keys)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert f" {devices} x cpu" in result.stderr, result.stderr


def test_a_run_on_eight_and_six_devices_is_that_of_one_device(tmp_path):
    for devices, axes in TURNS:
        train_on_devices(tmp_path / "elastic", devices, axes)
    train(tmp_path / "one", {})
    runs = []
    for workdir in (tmp_path / "elastic", tmp_path / "one"):
        lines = [line for line in read_metrics(workdir) if line["split"] == "train"]
        assert [line["step"] for line in lines] == [3, 6]
        last, average = (jformer.load(workdir, which) for which in ("last", "average"))
        assert last.step == average.step == 6
        runs.append((last.params, average.params))
    # Float32 sums in another order, divided by Adam's small second moments.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), *runs)


if __name__ == "__main__":
    # A call ends at the first line of its log, three steps later.
    train(sys.argv[1], json.loads(sys.argv[2]), stop=True)
