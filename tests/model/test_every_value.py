"""Values of the model's keys that are not the default, through a whole run."""

import pytest

import jformer
from jformer.schema import replaced
from tests.conftest import number_words, small_config

KEYS = {
    "dtype": "bfloat16", "scan_layers": True, "remat": "dots", "positions": "relative",
    "norm": "sample_layer_norm", "norm_position": "pre", "tying": "none", "output_bias": True,
    "num_decoder_layers": 2, "activation": "gelu",
}  # fmt: skip


@pytest.mark.process
def test_a_run_with_other_values_trains_opens_translates_and_scores(tmp_path):
    split = number_words(100, 200)
    pairs = list(zip(split.sources, split.targets, strict=True))
    config = replaced(small_config(steps=3), {"model": KEYS, "data": {"name": "given"}})
    jformer.train(config, pairs, pairs[:9], tmp_path)
    run = jformer.load(tmp_path)
    assert {name: getattr(run.config.model, name) for name in KEYS} == KEYS
    assert len(run.translate(["1 2 3", "4 5 6"])) == 2
    assert run.score(["1 2 3"], ["one two three"])[0].log_prob < 0
