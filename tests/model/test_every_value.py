"""Every value of every model key can be trained, opened and decoded with."""

import dataclasses

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

import jformer
from jformer import components
from jformer.config import ModelConfig
from jformer.extras.cost import abstract_step
from jformer.main import main
from jformer.model.transformer import Transformer
from jformer.training.checks import decode_in_ways
from jformer.training.restore import parameter_shapes
from tests.conftest import small_flags

# A value other than the default of each key that is neither a choice nor a switch.
OTHER = {
    "num_layers": 2,
    "num_decoder_layers": 2,
    "d_model": 48,
    "d_ff": 40,
    "num_heads": 4,
    "d_k": 24,
    "d_v": 24,
    "dropout": 0.2,
    "attention_dropout": 0.2,
    "activation_dropout": 0.2,
}
# Components with options, in addition to all names without.
WITH_OPTIONS = {
    "norm": ["layer_norm(epsilon=0.001)", "sample_layer_norm(epsilon=0.001)"],
    "attention": ["dot_product(scaled=False)"],
    "positions": [
        "learned(max_positions=256)",
        "relative(max_distance=3)",
        "rotary(cross_attention=True)",
    ],
}
# What a value needs from other keys.
NEEDS = {("out_projection", False): {"d_v": 16}}
SMALL = {
    "model.num_layers": 1,
    "model.d_model": 32,
    "model.d_ff": 24,
    "model.num_heads": 2,
    "data.max_length": 16,
    "data.vocabulary_size": 300,
    "train.batch_tokens": 64,
}


def every_value():
    yield "num_layers", 1  # with all defaults
    for field in dataclasses.fields(ModelConfig):
        if isinstance(field.default, bool):
            values = [not field.default]
        elif kind := field.metadata.get("component"):
            names = [name for name in components.BUILT_IN[kind] if name != field.default]
            values = names + WITH_OPTIONS.get(field.name, [])
        elif isinstance(field.default, str):
            values = [word for word in field.metadata["bounds"] if word != field.default]
        else:
            values = [OTHER[field.name]]
        yield from ((field.name, value) for value in values)


@pytest.mark.parametrize(("key", "value"), [*every_value()])
def test_every_value_of_every_model_key_trains_opens_and_decodes(key, value):
    keys = {key: value, **NEEDS.get((key, value), {})}
    model_keys = {f"model.{name}": value for name, value in keys.items()}
    config = jformer.get_config("tiny", **{**SMALL, **model_keys})
    step, arguments = abstract_step(config, rows=2, length=16)
    state, _ = jax.eval_shape(step, *arguments)
    model = Transformer(config.model, config.data.vocabulary_size)
    opened = parameter_shapes(model)
    trained = {name: leaf.shape for name, leaf in flatten_dict(state.params).items()}
    assert trained == {name: leaf.shape for name, leaf in flatten_dict(opened).items()}
    jax.eval_shape(lambda params: decode_in_ways(model, params, np.full((1, 5), 7)), opened)


@pytest.mark.process
@pytest.mark.parametrize(
    "keys",
    [
        {"dtype": "bfloat16", "scan_layers": True, "remat": "dots", "positions": "learned"},
        {"positions": "relative", "norm": "sample_layer_norm", "norm_position": "pre"},
        {"tying": "none", "output_bias": True, "num_decoder_layers": 2, "activation": "gelu"},
    ],
    ids=lambda keys: "-".join(keys),
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
