"""The benchmark of a GPU, on a CPU and at sizes that take seconds."""

import json
import subprocess
import sys

import pytest

from experiments.benchmarks import gpu

pytestmark = pytest.mark.process

SIZES = [
    "--platform=cpu", "--configs=tiny", "--tokens=128", "--length=64", "--vocabulary=300",
    "--sentences=4", "--rounds=2", "--steps=2",
]  # fmt: skip


def rows_of(call, folder, *flags):
    """Run the benchmark; return its rows by name, and its tables."""
    command = [sys.executable, "-m", "experiments.benchmarks.gpu", call, *SIZES]
    subprocess.run([*command, f"--output={folder}", *flags], capture_output=True, check=True)
    lines = (folder / "results.jsonl").read_text().splitlines()
    rows = {row["name"]: row for row in map(json.loads, lines)}
    return rows, (folder / "results.md").read_text()


def test_the_first_call_measures_products_the_step_and_its_kernels(tmp_path):
    rows, table = rows_of("first", tmp_path / "new")
    assert {name: row["error"] for name, row in rows.items() if "error" in row} == {}
    assert rows["peak"]["measured_tflops"] > 0
    step = rows["train tiny"]
    assert 0 < step["mfu"] < step["mfu_with_padding"] < 1
    assert len(step["ms_a_step"]) == 2
    assert step["of_roofline"] > 1
    assert 4 < step["loss"] < 9  # near that of a guess among 300 entries
    assert rows["agree"]["gradient_difference"] == 0  # on a CPU both are by XLA
    kernels = rows["profile tiny"]["kernels"]
    assert any("ffn_in" in each["kernel"] and each["roofline_ms"] > 0 for each in kernels)
    assert [each["ms"] for each in kernels] == sorted(
        (each["ms"] for each in kernels), reverse=True
    )
    assert all(f"| {name} |" in table for name in rows)


def test_the_second_call_measures_the_search_and_other_steps(tmp_path):
    rows, _ = rows_of("second", tmp_path, "--only=*[sd]")  # sentences, unpacked
    assert {name: row["error"] for name, row in rows.items() if "error" in row} == {}
    assert rows["decode 4 sentences"]["tokens_per_second"] > 0
    assert rows["train unpacked"]["mfu"] == rows["train unpacked"]["mfu_with_padding"]


def test_a_measurement_that_fails_is_an_error_in_place_of_numbers(monkeypatch):
    flag = {"XLA_FLAGS": "--xla_no_such_flag=1"}
    aborted = gpu.Measurement("", "peak", {"rounds": 1}, flag)
    assert "xla_no_such_flag" in gpu.in_process(aborted, "cpu", left=100)["error"]
    monkeypatch.setattr(gpu, "LONGEST_MEASUREMENT", 0.3)
    slow = gpu.Measurement("", "peak", {"rounds": 1})
    assert "0.3 s" in gpu.in_process(slow, "cpu", left=100)["error"]
