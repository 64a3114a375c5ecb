"""Devices by name, and the account of a program that was compiled for one of them."""

import importlib.util
import os
import subprocess
import sys

import jax
import pytest

import jformer
from jformer.errors import UserError
from jformer.extras import targets
from jformer.main import main
from jformer.model.transformer import Transformer
from jformer.run import parameter_shapes

KEYS = {
    "data.batching": "packed", "data.vocabulary_size": 1000, "model.num_layers": 1,
    "model.dtype": "bfloat16",
}  # fmt: skip
COMPILED = """
import sys, jformer
from jformer.extras import targets
keys = {"data.batching": "packed", "data.vocabulary_size": 1000, "model.num_layers": 1}
config = jformer.get_config("base", **keys)
for name in sys.argv[1:]:
    target = targets.parse_target(name)
    cost = targets.compile_step(config, target, 4096, 256)
    assert 1e6 < cost.state < 1e9 and 1e6 < cost.temporaries < 1e10, cost
    assert 0.05 < 1e3 * cost.compute_seconds < 20, cost
"""


def test_a_name_is_a_device_and_a_number_of_chips():
    target = targets.parse_target("v5e-8")
    assert (target.device.kind, target.chips) == ("TPU v5e", 8)
    assert target.device.speed == 197e12
    assert targets.parse_target("h100").chips == 1
    assert targets.parse_target("h100-64").chips == 64


@pytest.mark.parametrize(
    ("name", "hint"), [("h10", "mean h100?"), ("v5e-3", "1, 4, 8"), ("h100-x", "as h100-8")]
)
def test_another_name_is_an_error_with_a_hint(name, hint):
    with pytest.raises(UserError, match=f"--target={name}: ") as raised:
        targets.parse_target(name)
    assert hint in str(raised.value)


@pytest.mark.parametrize(("temporaries", "fits"), [(60e9, True), (80e9, False)])
def test_a_step_that_does_not_fit_is_named(monkeypatch, temporaries, fits):
    target = targets.parse_target("h100-8")
    cost = targets.Cost(target, 1e9, temporaries, 989e9, 335e6)
    monkeypatch.setattr(targets, "compile_step", lambda *_: cost)
    text = targets.describe(jformer.get_config("base"), target)
    assert ("does not fit" in text) != fits
    assert "at least 1.4 ms" in text  # products at 80 % of the peak, and 335 MB


@pytest.mark.parametrize("name", ["a100", "h100", "v5e"])
def test_the_train_step_is_lowered_for_each_device(name):
    """With the kernels that it has: of cuDNN by default on Hopper."""
    target = targets.parse_target(name)
    with targets.compiling(target):
        config = jformer.get_config("base", **KEYS)
        lowered = targets.lower_step(config, target, jax.devices()[:1], 2, 256)
    program = lowered.as_text()
    assert ("__cudnn$fmha" in program) == (name in ("h100", "h200"))
    assert "tensor<1000x512xbf16>" in program  # the compute dtype of an accelerator
    assert "stablehlo.case" not in program  # a GPU would wait until the host has read a condition
    # The state is updated in place.
    parameters = len(jax.tree.leaves(parameter_shapes(Transformer(config.model, 1000))))
    assert program.count("tf.aliasing_output") == 2 + 3 * parameters


@pytest.mark.process
@pytest.mark.parametrize(
    ("plugin", "names"),
    [("jax_cuda13_plugin", ["h100", "h200-8", "a100"]), ("libtpu", ["v5e", "v5e-4"])],
)
def test_the_train_step_compiles_for_devices_that_are_not_here(plugin, names):
    if importlib.util.find_spec(plugin) is None:
        pytest.skip(f"needs {plugin}")
    command = [sys.executable, "-c", COMPILED, *names]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "False"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is not None, reason="the plugin is installed"
)
def test_a_missing_plugin_is_one_line_that_names_it_before_any_work(capsys):
    assert main(["jformer", "summary", "--config=tiny", "--target=v5e"]) == 2
    printed = capsys.readouterr()
    assert "jax[tpu]" in printed.err
    assert printed.out == ""
