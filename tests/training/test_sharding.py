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

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh

from jformer.errors import UserError
from jformer.training import sharding
from tests.training.devices import WAYS, with_

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each way of training came to, from one process with eight devices."""
    program, path = Path(__file__).with_name("devices.py"), tmp_path_factory.mktemp("ways") / "all"
    result = subprocess.run(
        [sys.executable, program, path],
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "8", "JAX_PLATFORMS": "cpu", "PYTHONPATH": "."},
        capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return pickle.loads(path.read_bytes())


def one_of(way):
    return f"{way.split(':')[0]}: one"


@pytest.mark.optimized
@pytest.mark.parametrize("way", [way for way in WAYS if way != one_of(way)])
def test_every_way_trains_as_one_device_does(results, way):
    """Parameters and their moving average, with dropout too."""
    result, expected = results[way], results[one_of(way)]
    np.testing.assert_allclose(result["losses"], expected["losses"], rtol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), result["state"], expected["state"]
    )


@pytest.mark.optimized
def test_under_pmap_each_device_drops_other_units(results):
    assert len({*results["draws"]}) == 8


@pytest.mark.optimized
def test_fsdp_and_model_split_parameters_and_the_optimizers_state(results):
    """Of the kernel (16, 24), D is split by fsdp and F by model; data splits nothing."""
    for way in ("plain: one", "dropout, r_drop: data=8", "plain: pmap, accumulate=2"):
        assert results[way]["split"] == 0
        assert results[way]["ffn_in"] == (16, 24)
    assert results["plain: fsdp=8"]["split"] > 40  # leaves, with their moments and averages
    assert results["plain: fsdp=8"]["ffn_in"] == (2, 24)
    assert results["plain: data=2, fsdp=2, model=2, accumulate=2"]["ffn_in"] == (8, 12)


@pytest.mark.optimized
def test_under_fsdp_devices_put_together_parameters_and_no_activations(results):
    """A batch has 16 rows of 12 tokens, of which each device must keep its two to itself."""
    sent = results["plain: fsdp=8"]["sent"]
    assert any("f32[16,24]" in shapes for shapes in sent)  # a kernel, put together
    assert not any(re.search(r"f32\[(2|16),12,", shapes) for shapes in sent), sent


@pytest.mark.parametrize(
    ("axes", "devices", "sizes"),
    [
        ({}, 8, (8, 1, 1)),
        ({"fsdp": -1}, 8, (1, 8, 1)),
        ({"fsdp": 2, "model": 2}, 8, (2, 2, 2)),
        ({"fsdp": 2, "model": -1}, 4, (1, 2, 2)),
    ],
)
def test_data_parallelism_takes_the_devices_that_the_other_axes_leave(axes, devices, sizes):
    assert sharding.mesh_shape(with_(**axes), devices) == sizes


@pytest.mark.parametrize("axes", [{"model": 3}, {"fsdp": 2}, {"fsdp": -1, "model": -1}])
def test_devices_that_make_no_mesh_are_an_error(axes):
    named = "".join(rf".*{name}={size}\b" for name, size in axes.items())
    with pytest.raises(UserError, match=rf"^config\.parallel\b{named}.*\b1 devices"):
        sharding.mesh_shape(with_(**axes), 1)


def test_a_width_that_the_devices_do_not_divide_is_an_error():
    with pytest.raises(UserError, match=r"parallel\.model=2: .*num_heads=3"):
        sharding.mesh_shape(with_(of_model={"num_heads": 3, "d_k": 5, "d_v": 5}, model=2), 2)


def test_biases_are_split_as_their_kernels_and_what_devices_do_not_divide_is_whole():
    shapes = {
        "query": {"bias": (8, 6)}, "value": {"bias": (8, 5)}, "output_bias": (32,),
        "output": (32, 16), "embedding": (31, 16),
    }  # fmt: skip
    is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
    leaves = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, np.float32), shapes, is_leaf=is_shape)
    found = sharding.state_shardings(leaves, AbstractMesh((1, 2, 4), ("data", "fsdp", "model")))
    assert jax.tree.map(lambda leaf: tuple(leaf.spec), found) == {
        "query": {"bias": ("model", None)}, "value": {"bias": ("model", None)},
        "output_bias": ("model",), "output": ("model", "fsdp"), "embedding": (None, "fsdp"),
    }  # fmt: skip
