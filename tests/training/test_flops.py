"""What MFU is made of: a table of devices, a measured product, and counted operations."""

import dataclasses
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from configs import base
from jformer.config import freeze
from jformer.model.transformer import Transformer
from jformer.training import flops
from jformer.training.flops import multiply_adds, peak_flops, sheet_flops, step_flops
from jformer.training.restore import parameter_shapes
from tests import traced

BASE = freeze(base.get_config())


@pytest.mark.parametrize(
    ("kind", "tera"),
    [
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA H200", 989),
        ("TPU v2", 22.5),  # 45 a chip, of two devices
        ("TPU v5 lite", 197),
    ],
)
def test_the_bfloat16_peak_of_a_known_device_is_that_of_its_sheet(kind, tera):
    assert peak_flops(SimpleNamespace(device_kind=kind), "bfloat16") == tera * 1e12


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("NVIDIA H200", "float32"),
        ("Tesla V100-SXM2-16GB", "bfloat16"),
        ("NVIDIA L40", "bfloat16"),  # begins like an L4
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bfloat16"),  # a seventh of an A100
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bfloat16"),
        ("cpu", "bfloat16"),
    ],
)
def test_what_no_sheet_gives_is_measured(kind, dtype, monkeypatch):
    assert dtype == "float32" or sheet_flops(kind) is None
    monkeypatch.setattr(flops, "measured_flops", lambda device, dtype: 7.0)
    assert peak_flops(SimpleNamespace(device_kind=kind), dtype) == 7.0


def test_the_measured_peak_is_near_what_another_product_reaches():
    measured = peak_flops(jax.local_devices()[0], "float32")
    x_NN, product = jnp.ones((1024, 1024)), jax.jit(jnp.matmul)
    seconds = []
    for _ in range(10):
        began = time.perf_counter()
        product(x_NN, x_NN).block_until_ready()
        seconds.append(time.perf_counter() - began)
    # Other processes share the cores: wide enough for that, and not for a factor of 1000.
    assert 0.1 < measured / (2 * 1024**3 / min(seconds)) < 10


@pytest.mark.parametrize(("positions", "decoder"), [("sinusoidal", None), ("relative", 2)])
def test_the_formula_counts_what_the_traced_program_has(positions, decoder):
    model = dataclasses.replace(
        BASE.model, num_layers=3, num_decoder_layers=decoder, positions=positions, d_k=24, d_v=40
    )
    config = dataclasses.replace(BASE, model=model)
    program = Transformer(model, config.data.vocabulary_size)
    tokens = [jax.ShapeDtypeStruct((1, length), jnp.int32) for length in (5, 11)]
    variables = {"params": parameter_shapes(program)}
    assert multiply_adds(config, 5, 11) == traced.multiply_adds(program.apply, variables, *tokens)


def test_two_passes_are_twice_the_work_and_what_is_done_again_to_save_memory_does_not_count():
    def flops_with(section, **changes):
        changed = dataclasses.replace(getattr(BASE, section), **changes)
        return step_flops(dataclasses.replace(BASE, **{section: changed}), 3, 5, 11)

    once = step_flops(BASE, 3, 5, 11)
    assert once == 6 * 3 * sum(multiply_adds(BASE, 5, 11).values())  # forward, and twice backward
    assert flops_with("train", r_drop_alpha=5.0) == 2 * once
    assert flops_with("model", remat="layer", scan_layers=True) == once
