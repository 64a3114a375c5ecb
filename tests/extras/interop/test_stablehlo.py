"""The recipe for `jax.export` in docs/export.md."""

from pathlib import Path

import jax
import numpy as np
import pytest

from tests.documented import blocks

pytest.importorskip("flatbuffers", reason="needs the extra export")


def test_the_program_of_the_recipe_has_the_logits_of_the_model(tmp_path, monkeypatch):
    [recipe] = [b.text for b in blocks(Path("docs/export.md")) if "jax.export.export" in b.text]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/tiny-phrases-en-de").symlink_to(Path("tests/stored_run/run").absolute())
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(recipe, names)
    stored = jax.export.deserialize(bytearray(Path("logits.stablehlo").read_bytes()))
    weights = dict(np.load("weights.npz"))
    for S, T in ((3, 5), (7, 2)):
        source_BS, target_BT = np.full((2, S), 9, np.int32), np.full((2, T), 11, np.int32)
        expected_BTV = names["run"].model.apply(
            {"params": names["run"].params}, source_BS, target_BT
        )
        found_BTV = stored.call(weights, source_BS, target_BT)
        np.testing.assert_allclose(found_BTV, expected_BTV, atol=1e-5)  # other order of sums
