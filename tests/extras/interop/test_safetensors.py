"""Runs written as safetensors and read back."""

import dataclasses
import importlib.util

import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from jformer.config import write_config
from jformer.errors import UserError
from jformer.extras.interop.safetensors import export, read
from tests.extras.interop.small import random_run

if importlib.util.find_spec("safetensors") is None:
    reason = "the extra `export` has safetensors: pip install -e '.[export]'"
    pytest.skip(reason, allow_module_level=True)
from safetensors.numpy import save_file


@pytest.mark.parametrize("joint", [True, False])
def test_a_run_comes_back_bit_for_bit(tmp_path, joint):
    run = random_run(joint=joint, tying="output", positions="relative", norm_position="pre")
    export(run, tmp_path, "safetensors")
    back = read(tmp_path)
    ours, theirs = (flatten_dict(each.params, sep="/") for each in (run, back))
    assert set(ours) == set(theirs)
    for name, array in ours.items():
        assert np.asarray(array).tobytes() == np.asarray(theirs[name]).tobytes()
    assert (back.config, back.step) == (run.config, run.step)
    assert back.vocabularies.hash == run.vocabularies.hash


def test_weights_of_another_model_are_an_error(tmp_path):
    export(random_run(), tmp_path, "safetensors")
    weights = (tmp_path / "model.safetensors").read_bytes()
    export(random_run(d_ff=37), tmp_path, "safetensors")
    (tmp_path / "model.safetensors").write_bytes(weights)
    with pytest.raises(UserError, match="decoder_0/feed_forward/ffn_in/bias"):
        read(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors"):
        read(tmp_path)


def folder_with(tmp_path, model="", weights=None, metadata=None):
    """A folder of `export` with a norm of the author's own, or with other weights."""
    run = random_run()
    export(run, tmp_path, "safetensors")
    if model:
        config = dataclasses.replace(run.config.model, norm=model)
        config = dataclasses.replace(run.config, model=config)
        write_config(config, tmp_path / "config.json")
    if weights:
        arrays = {name: np.asarray(x) for name, x in flatten_dict(run.params, sep="/").items()}
        save_file({**arrays, **weights(arrays)}, tmp_path / "model.safetensors", metadata)
    return tmp_path


def test_a_run_with_own_parts_opens_with_the_plugin_that_the_caller_names(tmp_path):
    folder = folder_with(tmp_path, model="mine.py:Mine")
    (tmp_path / "mine.py").write_text("from flax.linen import LayerNorm as Mine\n")
    with pytest.raises(UserError, match=r"config\.model\.norm=mine\.py:Mine.*plugins="):
        read(folder)
    assert read(folder, plugins=[tmp_path / "mine.py"]).step == 7


@pytest.mark.parametrize("content", [b"", slice(0, 5000)], ids=["empty", "cut"])
def test_a_damaged_file_is_one_line(tmp_path, content):
    path = folder_with(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[content] if isinstance(content, slice) else content)
    with pytest.raises(UserError, match=r"^[^\n]*model\.safetensors[^\n]*$"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("change", "metadata", "named"),
    [
        (lambda x: x.astype(np.float16), {"step": "7"}, "embedding"),
        (lambda x: x, None, "step"),
    ],
    ids=["half precision", "without a step"],
)
def test_weights_that_export_has_not_written_are_one_line(tmp_path, change, metadata, named):
    name = "embedding"
    folder_with(tmp_path, weights=lambda arrays: {name: change(arrays[name])}, metadata=metadata)
    with pytest.raises(UserError, match=rf"model\.safetensors: .*{named}"):
        read(tmp_path)
