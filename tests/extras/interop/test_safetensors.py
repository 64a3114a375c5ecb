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


@pytest.mark.parametrize("joint", [True, False])
def test_a_run_comes_back_bit_for_bit(tmp_path, joint):
    run = random_run(joint=joint, tying="output", positions="learned", norm_position="pre")
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
    with pytest.raises(UserError, match=r"model\.safetensors: .*config\.json"):
        read(tmp_path)


def test_a_run_with_own_parts_opens_with_the_plugin_that_the_caller_names(tmp_path):
    run = random_run()
    export(run, tmp_path, "safetensors")
    config = dataclasses.replace(run.config.model, norm="mine.py:Mine")
    write_config(dataclasses.replace(run.config, model=config), tmp_path / "config.json")
    (tmp_path / "mine.py").write_text("from flax.linen import LayerNorm as Mine\n")
    with pytest.raises(UserError, match=r"mine\.py: .*plugins="):
        read(tmp_path)
    assert read(tmp_path, plugins=[tmp_path / "mine.py"]).step == 7


@pytest.mark.parametrize("size", [None, 0, 5000])
def test_a_missing_or_damaged_file_is_one_line(tmp_path, size):
    export(random_run(), tmp_path, "safetensors")
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()[:size]
    path.unlink()
    if size is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"^[^\n]*model\.safetensors[^\n]*$"):
        read(tmp_path)
