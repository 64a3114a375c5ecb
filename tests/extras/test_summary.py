"""Costs of a config, against XLA and formulas, and the time of its steps on this machine."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest

from configs import tiny
from jformer.config import freeze
from jformer.extras.cost import forward_costs, step_bytes
from jformer.main import main
from jformer.model.transformer import Transformer
from jformer.run import parameter_shapes
from tests.conftest import small_config, small_flags

pytestmark = pytest.mark.process

TINY = freeze(tiny.get_config("phrases"))


@pytest.mark.parametrize(
    "changes",
    [{}, {"num_decoder_layers": 2, "attention_bias": True}],
    ids=["plain", "other"],
)
def test_flops_agree_with_xlas_count_of_the_compiled_forward_pass(changes):
    config = dataclasses.replace(TINY, model=dataclasses.replace(TINY.model, **changes))
    S, T = 48, 32
    model = Transformer(config.model, config.data.vocabulary_size)
    tokens = [jax.ShapeDtypeStruct((1, length), jnp.int32) for length in (S, T)]
    forward = jax.jit(lambda params, *tokens: model.apply({"params": params}, *tokens))
    compiled = forward.lower(parameter_shapes(model), *tokens).compile()
    flops = 2 * sum(products for _, _, products in forward_costs(config, S, T))
    assert flops == pytest.approx(compiled.cost_analysis()["flops"], rel=0.02)


def test_a_batch_in_parts_takes_less_memory():
    config = small_config()
    in_parts = dataclasses.replace(config, train=dataclasses.replace(config.train, accumulate=8))
    whole, parts = (step_bytes(c, 2048, 32) for c in (config, in_parts))
    assert parts < whole / 2


def test_the_time_of_all_steps_is_estimated_from_steps_on_this_machine(
    corpus_directory, tmp_path, capsys
):
    flags = [*small_flags(corpus_directory, tmp_path), "--config.train.steps=36000000"]
    flags = [flag for flag in flags if not flag.startswith("--workdir=")]
    assert main(["jformer", "summary", *flags, "--measure"]) == 0
    [line] = [x for x in capsys.readouterr().out.splitlines() if x.startswith("measured: ")]
    milliseconds = float(re.search(r"([\d.]+) ms per step", line)[1])
    hours = int(re.search(r"36,000,000 steps .* take (\d+):\d\d:", line)[1])
    assert hours == pytest.approx(10 * milliseconds, rel=0.01, abs=1)
