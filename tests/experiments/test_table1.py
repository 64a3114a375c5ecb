"""The four layers of Table 1 against loops, and what is said of their cost."""

import math
import re
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from experiments import table1
from experiments.table1 import LAYERS, NEAR, TAPS

N, D = 7, 5
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D)).astype(np.float32)
WEIGHTS = {
    name: RNG.normal(size=shape).astype(np.float32)
    for name, shape in {"in_DD": (D, D), "own_DD": (D, D), "taps_KDD": (TAPS, D, D)}.items()
}


def mixture(query, near):
    logits = [float(query @ other) / math.sqrt(D) for other in near]
    total = sum(math.exp(z) for z in logits)
    return sum(math.exp(z) / total * other for z, other in zip(logits, near, strict=True))


def by_loops(name):
    if name == "self-attention":
        return [mixture(X[t], X) for t in range(N)]
    if name.startswith("restricted"):
        return [mixture(X[t], [X[(t - back) % N] for back in range(NEAR)]) for t in range(N)]
    if name == "recurrent":
        h, rows = np.zeros(D), []
        for t in range(N):
            h = np.tanh(X[t] @ WEIGHTS["in_DD"] + h @ WEIGHTS["own_DD"])
            rows.append(h)
        return rows
    padded = np.pad(X, ((1, 1), (0, 0)))
    return [
        sum(padded[t + tap] @ WEIGHTS["taps_KDD"][tap] for tap in range(TAPS)) for t in range(N)
    ]


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_what_its_name_says(name):
    found = LAYERS[name][0](jnp.asarray(X), WEIGHTS)
    np.testing.assert_allclose(found, by_loops(name), atol=1e-4)  # float32 against float64


@pytest.mark.process
def test_the_table_has_time_and_memory_beside_the_papers_exponents(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["table1", "--lengths=256,512", "--widths=8,16", "--rounds=1"])
    table1.main()
    by_length, by_width = capsys.readouterr().out.strip().split("\n\n")
    rows = {re.split(r"  +", line)[0]: re.split(r"  +", line)[1:] for line in by_length.split("\n")}
    assert rows["layer"] == ["n=256", "n=512", "exponent", "Table 1"]
    assert rows["self-attention, ms"][3:] == ["2", "sequential O(1), path O(1)"]
    # What is laid out in memory is the (n, n) weights, without noise.
    assert float(rows["self-attention, MB"][2]) == pytest.approx(2, abs=0.1)
    assert float(rows["recurrent, MB"][2]) == pytest.approx(1, abs=0.1)
    assert len(by_width.split("\n")) == 1 + 2 * len(LAYERS)
