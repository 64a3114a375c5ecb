"""The benchmark of a GPU, on a CPU and at sizes that take seconds."""

import argparse
import json

import jax
import pytest

from experiments.benchmarks import gpu, gpu_work

pytestmark = pytest.mark.process

SIZES = argparse.Namespace(
    platform="cpu", configs="tiny", tokens="128", length=64, vocabulary=300, sentences="4",
    rounds=2, steps=2, minutes=5,
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _compilation_cache_is_restored():
    before = jax.config.jax_enable_compilation_cache
    yield
    jax.config.update("jax_enable_compilation_cache", before)


def measure(measurements):
    """Measure in this process; return the rows by name."""
    rows = [
        {"name": each.name, "function": each.function}
        | gpu_work.answer(each.function, each.arguments)
        for each in measurements
    ]
    assert [row for row in rows if "error" in row] == []
    assert all(f"| {row['name']} |" in gpu.tables(rows) for row in rows)
    return {row["name"]: row for row in rows}


def test_the_first_call_measures_products_the_step_and_its_kernels():
    rows = measure(gpu.first(SIZES))
    assert rows["peak"]["measured_tflops"] > 0
    step = rows["train tiny"]
    assert 0 < step["mfu"] < step["mfu_with_padding"] < 1
    assert len(step["ms_a_step"]) == 2
    assert step["of_roofline"] > 1
    assert 4 < step["loss"] < 9  # near that of a guess among 300 entries
    assert rows["agree"]["gradient_difference"] == 0  # on a CPU both are by XLA
    kernels = rows["profile tiny"]["kernels"]
    assert any("ffn_in" in each["kernel"] and each["memory_ms"] > 0 for each in kernels)
    times = [each["ms"] for each in kernels]
    assert times == sorted(times, reverse=True)


def test_the_second_call_measures_the_search_and_other_steps():
    chosen = ("decode 4 sentences", "train unpacked")
    rows = measure(each for each in gpu.second(SIZES) if each.name in chosen)
    assert rows["decode 4 sentences"]["tokens_per_second"] > 0
    assert rows["train unpacked"]["mfu"] == rows["train unpacked"]["mfu_with_padding"]


def test_each_measurement_is_a_row_that_is_written_at_once(tmp_path):
    gpu.measure_all(
        [gpu.Measurement("peak", "peak", {"rounds": 1})],
        argparse.Namespace(**vars(SIZES), output=tmp_path),
    )
    [row] = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert row["measured_tflops"] > 0
    assert "| peak |" in (tmp_path / "results.md").read_text()


def test_a_measurement_that_fails_is_an_error_in_place_of_numbers(monkeypatch):
    flag = {"XLA_FLAGS": "--xla_no_such_flag=1"}
    aborted = gpu.Measurement("", "peak", {"rounds": 1}, flag)
    assert "xla_no_such_flag" in gpu.in_process(aborted, "cpu", left=100)["error"]
    monkeypatch.setattr(gpu, "LONGEST_MEASUREMENT", 0.3)
    slow = gpu.Measurement("", "peak", {"rounds": 1})
    assert "0.3 s" in gpu.in_process(slow, "cpu", left=100)["error"]
