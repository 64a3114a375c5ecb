"""What MFU is made of: a table of devices, and counted operations."""

import dataclasses

import pytest

from configs import base
from jformer.config import freeze
from jformer.training.flops import multiply_adds, sheet_flops, step_flops

BASE = freeze(base.get_config())


@pytest.mark.parametrize(
    ("kind", "dtype", "expected"),
    [
        ("NVIDIA A100-SXM4-40GB", "bfloat16", 312e12),
        ("NVIDIA H200", "float32", None),
        ("NVIDIA L40", "bfloat16", None),  # begins like an L4
        ("cpu", "bfloat16", None),
    ],
)
def test_the_peak_of_a_known_device_is_that_of_its_sheet_for_bfloat16(kind, dtype, expected):
    assert sheet_flops(kind, dtype) == expected


def test_two_passes_are_twice_the_work_and_what_is_done_again_to_save_memory_does_not_count():
    def flops_with(section, **changes):
        changed = dataclasses.replace(getattr(BASE, section), **changes)
        return step_flops(dataclasses.replace(BASE, **{section: changed}), 3, 5, 11)

    once = step_flops(BASE, 3, 5, 11)
    assert once == 6 * 3 * sum(multiply_adds(BASE, 5, 11).values())  # forward, and twice backward
    assert flops_with("train", r_drop_alpha=5.0) == 2 * once
    assert flops_with("model", remat="layer", scan_layers=True) == once
