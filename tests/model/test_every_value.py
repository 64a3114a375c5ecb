"""Every value of every model key can be trained, opened and decoded with."""

import pytest

import jformer
from jformer.main import main
from tests.conftest import small_flags


@pytest.mark.process
@pytest.mark.parametrize(
    "keys",
    [
        {"dtype": "bfloat16", "scan_layers": True, "remat": "dots", "positions": "learned"},
        {
            "positions": "relative",
            "norm": "sample_layer_norm",
            "norm_position": "pre",
            "tying": "none",
            "output_bias": True,
            "num_decoder_layers": 2,
            "activation": "gelu",
        },
    ],
    ids=["scanned", "pre-norm"],
)
def test_a_run_with_other_values_trains_scores_opens_and_translates(
    keys, corpus_directory, tmp_path, capsys
):
    flags = [f"--config.model.{name}={value}" for name, value in keys.items()]
    small = [*small_flags(corpus_directory, tmp_path / "run"), "--config.train.steps=3"]
    assert main(["jformer", *small, *flags, "--config.train.scored=validation"]) == 0
    run = jformer.load(tmp_path / "run")
    assert {name: getattr(run.config.model, name) for name in keys} == keys
    assert len(run.translate(["1 2 3", "4 5 6"])) == 2
