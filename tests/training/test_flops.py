"""What MFU is made of: a table of devices, a measured product, and counted operations."""

import dataclasses
from types import SimpleNamespace

import pytest

from configs import base
from jformer.config import freeze
from jformer.training import flops
from jformer.training.flops import multiply_adds, peak_flops, sheet_flops, step_flops

BASE = freeze(base.get_config())


@pytest.mark.parametrize(
    ("kind", "tera"),
    [
        ("NVIDIA A100-SXM4-40GB", 312),
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
        ("NVIDIA L40", "bfloat16"),  # begins like an L4
        ("cpu", "bfloat16"),
    ],
)
def test_what_no_sheet_gives_is_measured(kind, dtype, monkeypatch):
    assert dtype == "float32" or sheet_flops(kind) is None
    monkeypatch.setattr(flops, "measured_flops", lambda device, dtype: 7.0)
    assert peak_flops(SimpleNamespace(device_kind=kind), dtype) == 7.0


def test_two_passes_are_twice_the_work_and_what_is_done_again_to_save_memory_does_not_count():
    def flops_with(section, **changes):
        changed = dataclasses.replace(getattr(BASE, section), **changes)
        return step_flops(dataclasses.replace(BASE, **{section: changed}), 3, 5, 11)

    once = step_flops(BASE, 3, 5, 11)
    assert once == 6 * 3 * sum(multiply_adds(BASE, 5, 11).values())  # forward, and twice backward
    assert flops_with("train", r_drop_alpha=5.0) == 2 * once
    assert flops_with("model", remat="layer", scan_layers=True) == once
