"""The whole model against its numpy twin, and what must hold for any parameters."""

import jax
import jax.numpy as jnp
import numpy as np

from jformer.config import ModelConfig
from jformer.model.transformer import Transformer
from tests import reference
from tests.conftest import MODEL, B, V


def test_logits_equal_those_of_plain_numpy_loops(model, params, source_BS, target_BT):
    logits_BTV = model.apply({"params": params}, source_BS, target_BT)
    doubles = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    for b in range(B):
        expected_TV = reference.forward(doubles, MODEL, source_BS[b], target_BT[b])
        # float32 against float64, through 10 sub-layers
        np.testing.assert_allclose(logits_BTV[b], expected_TV, rtol=1e-4, atol=1e-4)


def test_every_parameter_has_its_name_in_the_tree():
    paths = {
        "/".join(key.key for key in path)
        for path, _ in jax.tree_util.tree_leaves_with_path(
            shapes_of(ModelConfig(num_layers=1, d_model=4, num_heads=1))
        )
    }
    attention = ["query/kernel", "key/kernel", "value/kernel", "out/kernel"]
    network = ["ffn_in/kernel", "ffn_in/bias", "ffn_out/kernel", "ffn_out/bias"]
    residual = ["norm/scale", "norm/bias"]
    expected = {"embedding"}
    for layer, attentions in (
        ("encoder_0", ["self_attention"]),
        ("decoder_0", ["self_attention", "cross_attention"]),
    ):
        for name in attentions:
            expected |= {f"{layer}/{name}/{leaf}" for leaf in attention}
            expected |= {f"{layer}/{name}_residual/{leaf}" for leaf in residual}
        expected |= {f"{layer}/feed_forward/{leaf}" for leaf in network}
        expected |= {f"{layer}/feed_forward_residual/{leaf}" for leaf in residual}
    assert paths == expected


def shapes_of(config):
    tokens_11 = jnp.ones((1, 1), jnp.int32)
    model = Transformer(config, V)
    return jax.eval_shape(model.init, jax.random.key(0), tokens_11, tokens_11)["params"]
