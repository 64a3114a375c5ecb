"""Costs before anything runs, against XLA and formulas; programs for devices that are not here."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from configs import tiny
from jformer.config import freeze
from jformer.extras.summary import forward_costs, step_bytes
from jformer.model.transformer import Transformer
from jformer.training.restore import abstract_params
from tests.conftest import small_config

pytestmark = pytest.mark.process

TINY = freeze(tiny.get_config("phrases"))


@pytest.mark.parametrize(
    "changes",
    [{}, {"positions": "relative", "num_decoder_layers": 2, "attention_bias": True}],
    ids=["plain", "relative"],
)
def test_flops_agree_with_xlas_count_of_the_compiled_forward_pass(changes):
    config = dataclasses.replace(TINY, model=dataclasses.replace(TINY.model, **changes))
    S, T = 48, 32
    model = Transformer(config.model, config.data.vocabulary_size)
    tokens = [jax.ShapeDtypeStruct((1, length), jnp.int32) for length in (S, T)]
    forward = jax.jit(lambda params, *tokens: model.apply({"params": params}, *tokens))
    compiled = forward.lower(abstract_params(model), *tokens).compile()
    flops = 2 * sum(products for _, _, products in forward_costs(config, S, T))
    assert flops == pytest.approx(compiled.cost_analysis()["flops"], rel=0.02)


def test_a_batch_in_parts_takes_less_memory():
    config = small_config()
    in_parts = dataclasses.replace(config, train=dataclasses.replace(config.train, accumulate=8))
    whole, parts = (step_bytes(c, 2048, 32) for c in (config, in_parts))
    assert parts < whole / 2
