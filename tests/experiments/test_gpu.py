"""The script for a GPU, on a CPU and at sizes that take seconds."""

import json
import sys

import pytest

from experiments.benchmarks import gpu

pytestmark = pytest.mark.process


def measure(monkeypatch, folder, *flags):
    """Return what the script has written to results.md."""
    small = "--platform=cpu", "--config=tiny", "--rows=2", "--length=64"
    keys = "--keys=data.vocabulary_size=300,model.num_layers=1,model.d_model=32,model.d_ff=32"
    monkeypatch.setattr(sys, "argv", ["gpu", f"--output={folder}", *small, keys, *flags])
    gpu.main()
    return (folder / "results.md").read_text()


def test_the_most_important_measurements_come_first(monkeypatch, tmp_path):
    text = measure(monkeypatch, tmp_path, "--minutes=0")
    names = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert names[:3] == ["peak", "train tiny", "variants tiny cudnn xla"]


@pytest.mark.slow
def test_the_step_is_measured_on_packed_rows_with_both_kernels_of_attention(monkeypatch, tmp_path):
    text = measure(monkeypatch, tmp_path, "--only=variants*cudnn*")
    assert "## variants tiny cudnn xla" in text
    (path,) = tmp_path.glob("*.json")
    product, cudnn, xla = json.loads(path.read_text())["results"]
    assert not product["error"]
    assert len(product["seconds"]) == len(xla["seconds"]) == 3
    assert cudnn["answer"] == xla["answer"]  # on a CPU, XLA computes both
    assert 4 < xla["answer"] < 9  # near the loss of a guess among 300 entries


def test_a_measurement_that_fails_is_an_error_in_the_results(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "LONGEST", 0.3)
    assert "0.3 s" in measure(monkeypatch, tmp_path, "--only=peak")
    monkeypatch.setattr(gpu, "LONGEST", 100)
    text = measure(monkeypatch, tmp_path, "--only=peak", "--keys=model.d_modl=8")
    assert "did you mean" in text
