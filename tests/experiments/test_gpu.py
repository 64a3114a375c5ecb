"""The benchmark of a GPU, on a CPU and at sizes that take seconds."""

import json
import subprocess
import sys

import pytest

from experiments.benchmarks import gpu
from tests.experiments.test_benchmarks import with_peers

pytestmark = pytest.mark.process

SIZES = [
    "--platform=cpu", "--configs=tiny", "--tokens=128", "--length=64", "--vocabulary=300",
    "--sentences=4", "--rounds=2", "--steps=2",
]  # fmt: skip


def rows_of(folder, only, *flags):
    """Run the benchmark; return its rows by name, and its table."""
    command = [sys.executable, "-m", "experiments.benchmarks.gpu", *SIZES, f"--output={folder}"]
    subprocess.run([*command, f"--only={only}", *flags], capture_output=True, check=True)
    lines = (folder / "results.jsonl").read_text().splitlines()
    rows = {f"{row['group']} {row['name']}": row for row in map(json.loads, lines)}
    return rows, (folder / "results.md").read_text()


def test_products_steps_searches_and_a_resumed_run_are_measured(tmp_path):
    only = "peak*,train*,variants*chunk=0,variants*scheduler*,decode*beam 4*,resume as*"
    rows, table = rows_of(tmp_path / "new", only)
    errors = {name: row["error"] for name, row in rows.items() if "error" in row}
    assert errors == {}
    assert rows["peak cpu"]["measured_tflops"] > 0
    for name in (
        "train tiny 128 tokens",
        "variants tiny train.loss_chunk=0",
        "variants tiny --xla_gpu_enable_latency_hiding_scheduler=true",
    ):
        row = rows[name]
        assert 0 < row["mfu"] < row["mfu_with_padding"] < 1
        assert len(row["ms_a_step"]) == 2
        assert 4 < row["loss"] < 9  # near that of a guess among 300 entries
    assert rows["decode tiny beam 4 places 4"]["tokens_per_second"] > 0
    assert rows["resume as it is"]["equal_again"]
    assert rows["resume as it is"]["equal_resumed"]
    assert all(f"| {row['name']} |" in table for row in rows.values())


@with_peers
def test_the_step_of_a_peer_is_measured_beside_ours(tmp_path):
    rows, _ = rows_of(tmp_path, "peers * torch bf16")
    [row] = rows.values()
    assert row["tokens_per_second"] > 0
    assert len(row["speed_of_ours"]) == 2


def test_what_the_minutes_do_not_suffice_for_is_a_row_that_says_so(tmp_path):
    rows, table = rows_of(tmp_path, "*", "--minutes=0")
    assert {row["error"] for row in rows.values()} == {"skipped: the minutes are over"}
    assert {row["group"] for row in rows.values()} == {
        "peak", "train", "variants", "peers", "decode", "resume",
    }  # fmt: skip
    assert table.count("skipped") == len(rows)
    _, table = rows_of(tmp_path, "peak*", "--minutes=0")
    assert table.count("skipped") == len(rows) + 1  # a second call adds to the first


def test_a_variant_that_fails_is_an_error_in_place_of_numbers(monkeypatch):
    sizes = {"config": "tiny", "tokens": 128, "length": 64, "rounds": 1, "steps": 1}
    unknown = gpu.Measurement("variants", "", 1, {**sizes, "keys": {"model.no_such_key": 1}})
    found = gpu.in_process(unknown, "cpu", left=100)
    assert found == {"error": "UserError: config.model.no_such_key is unknown; --help has them all"}
    flag = {"XLA_FLAGS": "--xla_no_such_flag=1"}
    aborted = gpu.Measurement("peak", "", 1, {"rounds": 1}, flag)
    assert "xla_no_such_flag" in gpu.in_process(aborted, "cpu", left=100)["error"]
    monkeypatch.setattr(gpu, "LONGEST_MEASUREMENT", 0.3)
    slow = gpu.Measurement("peak", "", 1, {"rounds": 1})
    assert gpu.in_process(slow, "cpu", left=100) == {"error": "not done after 0.3 s"}
