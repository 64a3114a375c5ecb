"""Values of the model's keys that are not the default, through a whole run."""

import pytest

import jformer
from tests.conftest import SMALL, number_words

KEYS = {
    "dtype": "bfloat16", "scan_layers": True, "remat": "dots", "positions": "rotary",
    "norm": "sample_layer_norm", "norm_position": "pre", "tying": "none", "output_bias": True,
    "num_decoder_layers": 2, "activation": "gelu",
}  # fmt: skip


@pytest.mark.process
def test_a_run_with_other_values_trains_opens_translates_and_scores(tmp_path):
    split = number_words(100, 200)
    pairs = list(zip(split.sources, split.targets, strict=True))
    keys = SMALL | {f"model.{name}": value for name, value in KEYS.items()} | {"train.steps": 3}
    jformer.train(jformer.get_config("tiny:given", **keys), pairs, pairs[:9], tmp_path)
    run = jformer.load(tmp_path)
    assert {name: getattr(run.config.model, name) for name in KEYS} == KEYS
    assert len(run.translate(["1 2 3", "4 5 6"])) == 2
    assert run.score(["1 2 3"], ["one two three"])[0].log_prob < 0
