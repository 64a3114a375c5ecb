"""Runs written as safetensors and read back."""

import importlib.util

import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from jformer.errors import UserError
from jformer.interop.safetensors import export, read
from tests.interop.small import random_run

if importlib.util.find_spec("safetensors") is None:
    reason = "the extra `export` has safetensors: pip install -e '.[export]'"
    pytest.skip(reason, allow_module_level=True)


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
    with pytest.raises(UserError, match="decoder_0/feed_forward/ffn_in/bias is not as"):
        read(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match="no such file"):
        read(tmp_path)
