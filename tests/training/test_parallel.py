"""How a step is spread over devices and parts changes nothing but the speed.

All begin with the same parameters and see the same five batches. Tolerances are those of float32
sums in another order, divided by Adam's small second moments: 1e-5 of the loss, 1e-5 of a parameter
after five steps of rate 0.01.
"""

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

from jformer.config import ModelConfig, ParallelConfig
from jformer.errors import UserError
from jformer.training import parallel
from tests.training.devices import MORE_WAYS, WAYS, with_

pytestmark = pytest.mark.process


def run_on_eight_devices(ways, path):
    """What each way of training came to, from one process with eight devices."""
    program = Path(__file__).with_name("devices.py")
    result = subprocess.run(
        [sys.executable, program, ways, path],
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "8", "JAX_PLATFORMS": "cpu", "PYTHONPATH": "."},
        capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    with path.open("rb") as file:
        return pickle.load(file)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return run_on_eight_devices("WAYS", tmp_path_factory.mktemp("devices") / "results")


@pytest.fixture(scope="module")
def more_results(tmp_path_factory):
    return run_on_eight_devices("MORE_WAYS", tmp_path_factory.mktemp("devices") / "results")


def assert_same(result, expected):
    np.testing.assert_allclose(result["losses"], expected["losses"], rtol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
        result["params"], expected["params"],
    )  # fmt: skip


@pytest.mark.optimized
@pytest.mark.parametrize("way", [w for w in WAYS if "dropout" not in w and "muon" not in w])
def test_without_dropout_every_way_trains_as_one_device_does(results, way):
    assert_same(results[way], results["one"])


@pytest.mark.optimized
def test_under_jit_dropout_too_is_that_of_one_device(results):
    assert_same(results["dropout, fsdp=4, model=2"], results["dropout"])
    assert_same(results["dropout, r_drop, data=8"], results["dropout, r_drop"])
    assert results["dropout, r_drop"]["losses"] != results["dropout"]["losses"]


@pytest.mark.optimized
def test_muons_matrices_may_lie_on_several_devices(results):
    assert_same(results["muon, fsdp=4, model=2"], results["muon"])
    assert results["muon"]["losses"] != results["one"]["losses"]


@pytest.mark.slow
@pytest.mark.parametrize("way", [way for way in MORE_WAYS if way != "dropout, pmap"])
def test_more_ways_train_as_one_device_does(more_results, way):
    """Rematerialisation and scanned layers among them."""
    plain = next((name for name in ("two layers", "dropout") if name in way), "one")
    assert_same(more_results[way], more_results[plain])


@pytest.mark.slow
def test_under_pmap_each_device_drops_other_units(more_results):
    losses, expected = (more_results[way]["losses"] for way in ("dropout, pmap", "dropout"))
    assert losses != pytest.approx(expected, rel=1e-5)
    assert losses == pytest.approx(expected, rel=0.1)


@pytest.mark.optimized
def test_the_moving_average_is_the_same_on_eight_devices_and_in_parts(results):
    one, eight = results["accumulate=4, ema"]["ema"], results["fsdp=8, ema"]["ema"]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), one, eight)


@pytest.mark.optimized
def test_the_losses_fall(results):
    losses = results["one"]["losses"]
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.optimized
def test_what_a_process_asks_for_comes_back_with_the_metrics(results):
    for way in ("one", "fsdp=8, ema", "pmap, accumulate=2"):
        assert results[way]["requests"] == [0, 1, 2, 3, 4]


@pytest.mark.optimized
def test_fsdp_and_model_split_parameters_and_the_optimizers_state(results):
    """Of the kernel (16, 24), D is split by fsdp and F by model; data splits nothing."""
    for way in ("one", "data=8", "pmap, accumulate=2"):
        assert results[way]["split"] == 0
        assert results[way]["ffn_in"] == (16, 24)
    assert results["fsdp=8, ema"]["split"] > 40  # leaves, with their moments and averages
    assert results["fsdp=8, ema"]["ffn_in"] == (2, 24)
    assert results["data=2, fsdp=2, model=2"]["ffn_in"] == (8, 12)


@pytest.mark.optimized
def test_under_fsdp_devices_put_together_parameters_and_no_activations(results):
    """A batch has 16 rows of 12 tokens, of which each device must keep its two to itself."""
    sent = results["fsdp=8, ema"]["sent"]
    assert any("f32[16,24]" in shapes for shapes in sent)  # a kernel, put together
    assert not any(re.search(r"f32\[(2|16),12,", shapes) for shapes in sent), sent


@pytest.mark.parametrize(
    ("axes", "devices", "sizes"),
    [
        ({}, 8, (8, 1, 1)),
        ({"fsdp": -1}, 8, (1, 8, 1)),
        ({"fsdp": 2, "model": 2}, 8, (2, 2, 2)),
        ({"fsdp": 2, "model": -1}, 6, (1, 2, 3)),
    ],
)
def test_data_parallelism_takes_the_devices_that_the_other_axes_leave(axes, devices, sizes):
    assert tuple(parallel.mesh_sizes(ParallelConfig(**axes), devices).values()) == sizes


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"model": 3}, r"config\.parallel.*fsdp=1.*model=3.*\b1 device"),
        ({"fsdp": 2}, r"config\.parallel.*fsdp=2.*model=1.*\b1 device"),
    ],
)
def test_devices_that_do_not_make_a_mesh_are_an_error(axes, message):
    with pytest.raises(UserError, match=message):
        parallel.make_mesh(with_(**axes), jax.devices()[:1])


@pytest.mark.parametrize(
    ("model", "axes", "message"),
    [
        ({"num_heads": 3, "d_k": 5, "d_v": 5}, {"model": 2}, "num_heads=3"),
        ({"d_ff": 23}, {"model": 2}, "d_ff=23"),
        ({"d_model": 18, "num_heads": 2}, {"fsdp": 4}, "d_model=18"),
    ],
)
def test_widths_that_the_devices_do_not_divide_are_an_error(model, axes, message):
    devices = [SimpleNamespace(process_index=0, id=i) for i in range(max(axes.values()))]
    with pytest.raises(UserError, match=rf"config\.model\.{message}\b"):
        parallel.make_mesh(with_(of_model=model, **axes), devices)


def specs_of(shapes, monkeypatch):
    """How two devices of FSDP and four of tensor parallelism split parameters of these shapes."""
    mesh = SimpleNamespace(shape={"data": 1, "fsdp": 2, "model": 4})
    leaves = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()}
    monkeypatch.setattr(parallel, "NamedSharding", lambda mesh, spec: spec)
    return parallel.state_shardings(unflatten_dict(leaves, sep="/"), mesh)


def test_biases_are_split_as_the_kernels_beside_them(monkeypatch):
    specs = specs_of(
        {"query/bias": (8, 6), "value/bias": (8, 5), "output_bias": (32,)}, monkeypatch
    )
    assert tuple(specs["query"]["bias"]) == ("model", None)
    assert tuple(specs["value"]["bias"]) == ("model", None)
    assert tuple(specs["output_bias"]) == ("model",)


def test_a_vocabulary_that_the_devices_do_not_divide_stays_whole(monkeypatch):
    specs = specs_of({"embedding": (31, 16), "output": (32, 16)}, monkeypatch)
    assert tuple(specs["embedding"]) == (None, "fsdp")
    assert tuple(specs["output"]) == ("model", "fsdp")


def test_auto_is_float32_on_a_cpu():
    assert ModelConfig().compute_dtype == "float32"
    assert ModelConfig(dtype="bfloat16").compute_dtype == "bfloat16"
