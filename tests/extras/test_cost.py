"""Costs before anything runs, against XLA and formulas; programs for devices that are not here."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import base, tiny
from jformer.config import ModelConfig, freeze
from jformer.extras.cost import (
    forward_costs,
    largest_batch_tokens,
    step_bytes,
)
from jformer.model.transformer import Transformer
from jformer.training.restore import abstract_params
from tests.conftest import small_config

pytestmark = pytest.mark.process

BASE, TINY = freeze(base.get_config()), freeze(tiny.get_config("phrases"))


@pytest.mark.parametrize("config", [BASE, TINY], ids=["base", "tiny"])
def test_flops_agree_with_xlas_count_of_the_compiled_forward_pass(config):
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


def test_a_loss_in_chunks_takes_less_memory():
    """The logits of 2,048 positions are 80 MB, and their gradient as much."""
    config = small_config()
    data = dataclasses.replace(config.data, vocabulary_size=10_000)
    config = dataclasses.replace(config, data=data)
    at_once, in_chunks = (step_bytes(config, 2048, 32, alone) for alone in (False, True))
    saved = at_once - in_chunks
    assert saved > 1.5 * 2048 * 10_000 * 4 * 7 / 8


def test_multiply_adds_are_those_of_the_formulas():
    model = ModelConfig(
        num_layers=3, d_model=10, d_ff=7, num_heads=2, d_k=4, d_v=6, positions="relative",
        norm_position="pre",
    )  # fmt: skip
    config = dataclasses.replace(TINY, model=model)
    S, T, V = 5, 11, config.data.vocabulary_size
    costs = {name: work for name, _, work in forward_costs(config, S, T)}

    def attention(Q, M):
        projections = 10 * 2 * (4 + 6) * Q + 10 * 2 * (4 + 6) * M  # query, out; key, value
        return projections + 2 * Q * M * (4 + 6)

    def relative(L):
        return 2 * L * L * (4 + 6)  # once more for the vectors of distances

    assert costs == {
        "embedding": 0,
        "encoder/self_attention": 3 * (attention(S, S) + relative(S)),
        "encoder/feed_forward": 3 * 2 * 10 * 7 * S,
        "encoder/norm": 0,
        "encoder_norm": 0,
        "decoder/self_attention": 3 * (attention(T, T) + relative(T)),
        "decoder/cross_attention": 3 * attention(T, S),
        "decoder/feed_forward": 3 * 2 * 10 * 7 * T,
        "decoder/norm": 0,
        "decoder_norm": 0,
        "output": T * 10 * V,
    }


def test_attention_without_its_last_projection_costs_that_much_less():
    model = ModelConfig(num_layers=3, d_model=12, d_ff=7, num_heads=2, d_k=4)
    S, T = 5, 11

    def costs(**changes):
        changed = dataclasses.replace(TINY, model=dataclasses.replace(model, **changes))
        return {name: np.array(rest) for name, *rest in forward_costs(changed, S, T)}

    whole, without = costs(), costs(out_projection=False)
    square = 12 * 12
    for name, Q in (
        ("encoder/self_attention", S), ("decoder/self_attention", T), ("decoder/cross_attention", T)
    ):  # fmt: skip
        assert (whole[name] - without[name]).tolist() == [3 * square, 3 * square * Q]
    biased = costs(attention_bias=True)["encoder/self_attention"]
    width = 2 * (4 + 4 + 6) + 12
    assert (biased - whole["encoder/self_attention"]).tolist() == [3 * width, 0]


def test_the_largest_batch_fits_and_a_larger_one_does_not():
    config, length = small_config(), 32
    rows_3, rows_8, rows_16 = (step_bytes(config, n * length, length) for n in (3, 8, 16))
    assert rows_3 < rows_8 < rows_16
    for limit, rows in ((rows_3, 3), (rows_16 - 1, 8)):
        assert largest_batch_tokens(config, length, limit) == rows * length
