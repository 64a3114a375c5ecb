"""The number of devices changes nothing but the speed."""

import os
import subprocess
import sys
from pathlib import Path


def test_eight_devices_train_as_one_does_with_dropout():
    program = Path(__file__).with_name("eight_devices.py")
    result = subprocess.run(
        [sys.executable, program],
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "8", "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
