"""The benchmarks beside other projects, on work that takes seconds."""

import importlib.util
import json
import re
import subprocess
import sys
import time

import pytest

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
