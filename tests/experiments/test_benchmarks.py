"""The benchmarks beside other projects and of scaling, on work that takes seconds."""

import importlib.util
import json
import math
import re
import statistics
import subprocess
import sys
import time

import pytest

from experiments.benchmarks.scaling import fit
from experiments.benchmarks.turns import take_turns

pytestmark = pytest.mark.process
with_peers = pytest.mark.skipif(
    importlib.util.find_spec("ctranslate2") is None,
    reason="the extra `parity` has the peers: pip install -e '.[parity]'",
)
STORED = "tests/stored_run"


def benchmark(name, *flags):
    """Return the cells of the printed table, by the name of the contender."""
    command = [sys.executable, "-m", f"experiments.benchmarks.{name}", *flags, "--rounds=2"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [re.split(r" *\| *", line)[1:-1] for line in result.stdout.splitlines() if "|" in line]
    return {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows[2:]}


@with_peers
def test_the_train_step_is_timed_beside_those_of_pytorch_and_marian(tmp_path):
    flags = "--config=tiny", "--vocabulary=500", "--rows=4", "--length=8", "--steps=2"
    files = tmp_path / "train.json", tmp_path / "train.html"
    rows = benchmark(
        "train",
        *flags,
        "--contenders=torch,marian bf16",
        f"--json={files[0]}",
        f"--chart={files[1]}",
    )
    assert list(rows) == ["jformer", "torch", "marian bf16"]
    assert rows["jformer"]["speed, jformer = 1"] == "1.00 (1.00 to 1.00)"
    assert all(float(row["ms a step"]) > 0 and float(row["peak"][:4]) < 1 for row in rows.values())
    results = {result["name"]: result for result in json.loads(files[0].read_text())["results"]}
    assert all(len(result["seconds"]) == 2 for result in results.values())
    # The losses of all are near that of a guess among 500 entries, which the sum is for ours.
    assert 4 < results["torch"]["answer"] < 9
    assert 4 < results["marian bf16"]["answer"] < 9
    assert "plotly" in files[1].read_text()


@with_peers
def test_marian_and_ctranslate2_with_our_weights_find_our_translations():
    rows = benchmark(
        "decode", f"--workdir={STORED}/run", f"--input={STORED}/test.en",
        f"--references={STORED}/test.de", "--beam=1", "--alpha=0",
        "--contenders=marian,ctranslate2",
    )  # fmt: skip
    assert list(rows) == ["jformer", "ctranslate2", "marian"]
    assert {row["outputs as ours"] for row in rows.values()} == {"100.0%"}
    assert len({row["BLEU"] for row in rows.values()}) == 1


def sleeper(seconds):
    return lambda: time.sleep(seconds)


def broken():
    raise ValueError("no such model\nsee the manual")


def test_contenders_take_turns_and_one_that_fails_is_named_with_the_reason():
    fast, failed, slow = take_turns(
        {"fast": (sleeper, (0.1,)), "failed": (broken, ()), "slow": (sleeper, (0.3,))}, rounds=2
    )
    assert slow.ratios(fast) == pytest.approx([1 / 3, 1 / 3], rel=0.3)
    assert failed.error == "ValueError: no such model"
    assert failed.seconds == []
    assert slow.memory > 10**7  # a Python process


SMALL = """
from configs import tiny

def get_config():
    config = tiny.get_config()
    config.model.update({"num_layers": 1, "d_model": 16, "d_ff": 16})
    config.data.vocabulary_size = 300
    return config
"""


def test_a_step_is_timed_over_one_size_at_a_time(tmp_path):
    config, measured, chart = (tmp_path / name for name in ("small.py", "s.json", "s.html"))
    config.write_text(SMALL)
    command = [sys.executable, "-m", "experiments.benchmarks.scaling", f"--config={config}"]
    flags = "--axes=batch_tokens,length,d_model", "--rounds=2"
    files = f"--json={measured}", f"--chart={chart}"
    shown = subprocess.run([*command, *flags, *files], capture_output=True, text=True, check=True)
    data = json.loads(measured.read_text())
    points = {(point["axis"], point["size"]): point for point in data["points"]}
    assert [*points] == [
        *(("batch_tokens", size) for size in (1024, 2048, 4096, 8192)),
        *(("length", size) for size in (32, 64, 128, 256)),
        *(("d_model", size) for size in (16, 32, 64)),
    ]
    for point in points.values():
        assert len(point["seconds"]) == 2
        assert point["first"] > 2 * min(point["seconds"])  # it compiles
    # Eight times the rows are eight times the work, and rows of another length as many tokens.
    flops = {name: point["flops"] for name, point in points.items()}
    assert flops["batch_tokens", 8192] == 8 * flops["batch_tokens", 1024]
    attention = 3 * 2 * 1024 * 2 * 16 * 3  # of three attentions, with another position of each row
    assert flops["length", 256] - flops["length", 32] == (256 - 32) * attention
    assert points["batch_tokens", 1024] == {
        **points["length", 32],
        "axis": "batch_tokens",
        "size": 1024,
    }
    growth = [statistics.median(points["d_model", size]["seconds"]) for size in (16, 64)]
    exponent = math.log(growth[1] / growth[0], 4)
    assert data["fits"]["d_model"]["exponent"] == pytest.approx(exponent)
    rows = [line.split(" | ") for line in shown.stdout.splitlines() if line.startswith("| d_model")]
    assert rows[-1][3] == f"{exponent:.2f}"
    assert "plotly" in chart.read_text()


def test_a_line_is_fitted_to_times_and_an_exponent_between_the_ends():
    line = fit([1, 2, 4, 8], [5 + 3 * size for size in (1, 2, 4, 8)])
    assert (line.a, line.b) == (pytest.approx(5), pytest.approx(3))
    assert line.farthest == pytest.approx(0, abs=1e-9)
    square = fit([1, 2, 4], [7, 28, 112])
    assert square.exponent == pytest.approx(2)
    # By hand: the means are 7/3 and 49, and deviations from them make a slope of 168 / (14/3).
    assert square.b == pytest.approx(36)
    assert square.a == pytest.approx(49 - 36 * 7 / 3)
    assert square.farthest == pytest.approx((7 + 35 - 36) / 7)


def test_an_axis_that_there_is_not_is_named():
    command = [sys.executable, "-m", "experiments.benchmarks.scaling", "--axes=length,depth"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "--axes: no depth; there are batch_tokens, length, d_model, vocabulary" in ended.stderr
