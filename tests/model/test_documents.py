"""The models of the documents, as their configs have them, against twins with the same weights."""

import dataclasses

import jax
import numpy as np
import pytest

from configs import annotated, kyubyong
from jformer.config import freeze
from jformer.decoding.ensemble import encode_sources
from jformer.model.transformer import Transformer
from tests.conftest import decode_step_of, init_caches, random_params

B, S, T, V, V_SOURCE, D, F, H = 2, 5, 7, 19, 23, 10, 13, 5
SOURCE_BS = np.random.default_rng(1).integers(3, V, (B, S)).astype(np.int32)
SOURCE_BS[0, 3:] = 0
TARGET_BT = np.random.default_rng(2).integers(3, V, (B, T)).astype(np.int32)
TARGET_BT[1, 5:] = 0


def small(document):
    """A small model of the document's config with random weights."""
    sizes = {"num_layers": 1, "d_model": D, "d_ff": F, "num_heads": H, "dtype": "float32"}
    model_config = dataclasses.replace(freeze(document.get_config()).model, **sizes)
    model = Transformer(model_config, V, None if model_config.tying == "all" else V_SOURCE)
    return model, random_params(model)


def doubles(params):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), params)


MASKED = -(2.0**32) + 1


def kyubyong_logits(params, source_BS, target_BT):
    """Kyubyong's model in numpy, with the heads on the axis of the batch and masks that are added.

    Its norms and residuals are inside its attention and its feed-forward network.
    """
    weights_VD = np.concatenate([np.zeros((1, D)), params["embedding"][1:]])

    def ln(x, norm):
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return norm["scale"] * (x - mean) / (variance + 1e-8) ** 0.5 + norm["bias"]

    def dense(x, leaf):
        return x @ leaf["kernel"].reshape(D, -1) + leaf["bias"].reshape(-1)

    def attend(queries, memory, is_padding, layer, name, causal=False):
        Q, K, V = (
            np.concatenate(np.split(dense(x, layer[name][part]), H, axis=2), axis=0)
            for x, part in ((queries, "query"), (memory, "key"), (memory, "value"))
        )
        logits = Q @ K.swapaxes(1, 2) / (D / H) ** 0.5
        logits += np.tile(is_padding, (H, 1))[:, None] * MASKED
        if causal:
            logits = np.where(np.tril(np.ones(logits.shape)) == 0, MASKED, logits)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        mixed = weights / weights.sum(-1, keepdims=True) @ V
        joined = np.concatenate(np.split(mixed, H, axis=0), axis=2)
        return ln(joined + queries, layer[f"{name}_residual"]["norm"])

    def ff(x, layer):
        network = layer["feed_forward"]
        inner = np.maximum(dense(x, network["ffn_in"]), 0)
        outer = inner @ network["ffn_out"]["kernel"] + network["ffn_out"]["bias"]
        return ln(outer + x, layer["feed_forward_residual"]["norm"])

    def embed(tokens):
        angles = np.arange(tokens.shape[1])[:, None] / 10000 ** ((np.arange(D) // 2 * 2) / D)
        table = np.where(np.arange(D) % 2, np.cos(angles), np.sin(angles))
        x = weights_VD[tokens] * D**0.5
        return x + np.where(x == 0, x, table)

    x = embed(source_BS)
    layer = params["encoder_0"]
    memory = ff(attend(x, x, source_BS == 0, layer, "self_attention"), layer)
    x, layer = embed(target_BT), params["decoder_0"]
    x = attend(x, x, target_BT == 0, layer, "self_attention", causal=True)
    x = ff(attend(x, memory, source_BS == 0, layer, "cross_attention"), layer)
    return x @ weights_VD.T


def test_kyubyongs_transformer_gives_the_logits_of_its_twin_in_numpy():
    model, params = small(kyubyong)
    expected_BTV = kyubyong_logits(doubles(params), SOURCE_BS, TARGET_BT)
    logits_BTV = jax.jit(model.apply)({"params": params}, SOURCE_BS, TARGET_BT)
    seen_BT = TARGET_BT != 0
    # float32 against float64
    np.testing.assert_allclose(logits_BTV[seen_BT], expected_BTV[seen_BT], atol=1e-4)
    assert np.all(logits_BTV[..., 0] == 0)  # padding's


@pytest.mark.parametrize("document", [annotated, kyubyong])
def test_cached_steps_give_the_logits_of_the_whole_decoder(document):
    model, params = small(document)
    variables = {"params": params}
    target_BT = np.where(TARGET_BT == 0, 5, TARGET_BT)
    (memory,) = jax.jit(encode_sources, static_argnums=0)((model,), (params,), SOURCE_BS)
    cache, step = init_caches(model, B, 1, T), decode_step_of(model)
    places_B1T = np.zeros((B, 1, T), np.int32)
    stepped = []
    for t in range(T):
        tokens_B1 = target_BT[:, t : t + 1]
        logits_B1V, cache = step(variables, tokens_B1, np.int32(t), places_B1T, cache, memory)
        stepped.append(logits_B1V[:, 0])
    expected_BTV = jax.jit(model.apply)(variables, SOURCE_BS, target_BT)
    np.testing.assert_allclose(np.stack(stepped, axis=1), expected_BTV, atol=1e-5)
