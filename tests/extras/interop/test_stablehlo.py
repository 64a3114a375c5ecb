"""Exported programs, run by a process that never imports this package."""

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest

from jformer.config import EOS
from jformer.errors import UserError
from jformer.extras.interop.stablehlo import export
from tests.extras.interop.small import TEXTS, random_run

if importlib.util.find_spec("flatbuffers") is None:
    reason = "the extra `export` has flatbuffers: pip install -e '.[export]'"
    pytest.skip(reason, allow_module_level=True)

ALONE = """
import pathlib, sys
import jax, numpy as np
folder = pathlib.Path(sys.argv[1])
programs = {
    name: jax.export.deserialize(bytearray((folder / f"{name}.stablehlo").read_bytes())).call
    for name in ("encode", "step", "greedy")
}
weights = dict(np.load(folder / "weights.npz"))
inputs = np.load(folder / "inputs.npz")
for n in range(2):
    source_BS, limits_B = inputs[f"source{n}"], inputs[f"limits{n}"]
    zeros_BT = np.zeros((len(source_BS), limits_B.max()), np.int32)
    tokens_BT = programs["greedy"](weights, source_BS, limits_B, zeros_BT)
    np.save(folder / f"tokens{n}.npy", tokens_BT)
# The first tokens once more, by the step alone.
memory = programs["encode"](weights, source_BS)
B, T = zeros_BT.shape
_, H, K, _ = memory["keys_values"][0][0].shape
U = memory["keys_values"][0][1].shape[3]
empty = [np.zeros((B, H, K, 1, T), np.float32), np.zeros((B, H, 1, T, U), np.float32)]
cache = [empty for _ in memory["keys_values"]]
tokens_B, t = np.full(B, 1, np.int32), np.int32(0)
logits_BV, cache = programs["step"](weights, tokens_B, t, cache, memory)
np.save(folder / "first.npy", np.asarray(logits_BV)[:, 2:].argmax(axis=1) + 2)
assert not any(name.startswith(("jformer", "flax")) for name in sys.modules)
"""


@pytest.mark.process
def test_the_programs_translate_alone_as_the_run_does(tmp_path):
    run = random_run(positions="rotary", norm_position="pre")
    export(run, tmp_path, "stablehlo")
    inputs, ids = {}, run.vocabulary.encode(TEXTS)
    parts = [ids[:5], ids[5:16]]  # other sizes of every axis
    for n, part in enumerate(parts):
        width = max(map(len, part)) + 1
        rows = [[*row, EOS] + [0] * (width - len(row) - 1) for row in part]
        inputs[f"source{n}"] = np.array(rows, np.int32)
        extra = run.config.decode.max_extra_length
        inputs[f"limits{n}"] = np.array([len(row) + extra for row in part], np.int32)
    np.savez(tmp_path / "inputs.npz", **inputs)
    subprocess.run([sys.executable, "-c", ALONE, str(tmp_path)], check=True, cwd=tmp_path)
    outputs = [np.load(tmp_path / f"tokens{n}.npy") for n in range(2)]
    texts = [run.vocabulary.decode(row) for tokens_BT in outputs for row in tokens_BT]
    assert texts == run.translate(TEXTS[:16])
    np.testing.assert_array_equal(np.load(tmp_path / "first.npy"), outputs[1][:, 0])
    greedy = json.loads((tmp_path / "signatures.json").read_text())["programs"]["greedy"]
    assert greedy["takes"] == ["int32 (B, S)", "int32 (B)", "int32 (B, T)"]
    assert greedy["returns"] == "int32 (B, T)"


def test_learned_positions_are_named_as_what_it_cannot_hold(tmp_path):
    with pytest.raises(UserError, match=r"config\.model\.positions=learned: .*--format=stablehlo"):
        export(random_run(positions="learned"), tmp_path, "stablehlo")
    assert not list(tmp_path.iterdir())
