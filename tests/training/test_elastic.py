"""A run that goes on with other devices, and splits its state in another way, is the same run."""

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

# Widths that 8, 3 and 2 divide. At this rate nine steps move parameters by 1e-2.
KEYS = {
    "model.num_layers": 1, "model.d_model": 24, "model.d_ff": 48, "model.num_heads": 2,
    "model.dropout": 0.3, "model.dtype": "float32", "data.vocabulary_size": 300,
    "data.num_buckets": 1, "optimizer.schedule": "constant", "optimizer.learning_rate": 1e-3,
    "optimizer.warmup_steps": 1, "train.batch_tokens": 256, "train.ema_decay": 0.9,
    "train.steps": 9, "train.log_every": 3, "train.checkpoint_every": 2,
}  # fmt: skip
# A call may end at the first line of its log, three steps later.
TRAIN = """
import json, sys, jformer
pairs = [("1 2 3 " * (n % 7 + 1), "one two three " * (n % 7 + 1)) for n in range(200)]
config = jformer.get_config("tiny:given", **json.loads(sys.argv[2]))
jformer.train(config, pairs, pairs[:4], sys.argv[1], lambda *_: sys.argv[3] == "stop")
"""
TURNS = [(8, {"fsdp": -1}), (3, {"fsdp": -1}), (8, {"model": 2})]


def train(workdir, devices, axes, then):
    keys = KEYS | {f"parallel.{name}": size for name, size in axes.items()}
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", TRAIN, str(workdir), json.dumps(keys), then]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert f" {devices} x cpu" in result.stderr, result.stderr


def test_a_run_on_eight_three_and_eight_devices_is_that_of_one_device(tmp_path):
    for devices, axes in TURNS:
        train(tmp_path / "elastic", devices, axes, "stop")
    train(tmp_path / "one", 1, {}, "go on")
    runs = []
    for workdir in (tmp_path / "elastic", tmp_path / "one"):
        lines = [line for line in read_metrics(workdir) if line["split"] == "train"]
        assert [line["step"] for line in lines] == [3, 6, 9]
        last, average = (jformer.load(workdir, which) for which in ("last", "average"))
        assert last.step == average.step == 9
        runs.append((last.params, average.params))
    # Float32 sums in another order, divided by Adam's small second moments.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), *runs)
