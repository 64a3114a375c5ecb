"""LayerNorm against BatchNorm, in a run of a minute."""

import re
import sys

import pytest

from experiments import layernorm_batchnorm

pytestmark = pytest.mark.slow


def test_only_a_batch_norm_depends_on_what_stands_beside_a_sentence(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(layernorm_batchnorm, "SENTENCES", 6)  # a program for each length
    monkeypatch.setattr(
        sys, "argv", ["", "--batch_tokens=512", "--steps=5", f"--workdir={tmp_path}"]
    )
    layernorm_batchnorm.main()
    heading, layer, batch = capsys.readouterr().out.splitlines()
    layer, batch = (
        dict(
            zip(
                ("norm", "training", "validation", "own", "apart"),
                re.split(r"  +", line)[1:],
                strict=True,
            )
        )
        for line in (layer, batch)
    )
    assert (layer["norm"], batch["norm"]) == ("layer_norm", "BatchNorm")
    # A LayerNorm has no statistics to choose from, and no neighbours.
    assert layer["validation"] == layer["own"]
    assert float(layer["apart"]) == 0
    assert batch["validation"] != batch["own"]
    assert float(batch["apart"]) > 0.01
    assert "alone or not" in heading
