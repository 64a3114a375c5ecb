"""Every variant of the model: against the numpy twin, and what must hold for each of them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jformer import components
from jformer.config import ModelConfig
from jformer.model import decoding
from jformer.model.decoding import precompute_cross_kv
from jformer.model.numerics import Dropout
from jformer.model.transformer import Transformer
from tests import reference
from tests.conftest import decode_step_of, init_caches, random_params

# One layer, so that the loops of the twin stay short; test_transformer.py has two.
MODEL = ModelConfig(num_layers=1, d_model=14, d_ff=17, num_heads=3, d_k=4, d_v=5, dropout=0.3)
B, S, T, V, V_SOURCE = 2, 5, 7, 19, 23
# A table that the sentences reach the end of.
SHORT = {"learned": "learned(max_positions=9)"}
BY_POSITION = [
    {"positions": "rotary(cross_attention=True)"},
    *({"positions": SHORT.get(name, name)} for name in components.BUILT_IN["positions"]),
    {"norm_position": "pre", "positions": "sinusoidal"},
]
# Options that have nothing to do with each other share a model: each compilation takes a second.
OTHERS = [
    {"tying": "output", "activation": "gelu", "norm": "layer_norm(epsilon=0.3)"},
    {"tying": "none", "activation": "silu", "output_bias": True, "num_decoder_layers": 2},
    {"attention": "dot_product(scaled=False)", "attention_bias": True, "positions": "alibi"},
    {"out_projection": False, "num_heads": 2, "d_v": 7, "zero_padding": True, "final_norm": "on"},
    {"out_projection": False, "attention_bias": True, "num_heads": 2, "d_v": 7, "tying": "none"},
    {"norm": "sample_layer_norm(epsilon=0.3)", "norm_position": "pre", "final_norm": "off"},
]


def name_of(changes):
    return "-".join(map(str, changes.values()))


def by_position(test):
    return pytest.mark.parametrize("changes", BY_POSITION, ids=name_of)(test)


SOURCE_BS = np.random.default_rng(1).integers(3, V, (B, S)).astype(np.int32)
SOURCE_BS[0, 3:] = 0  # padding, of one sentence only
TARGET_BT = np.random.default_rng(2).integers(3, V, (B, T)).astype(np.int32)


def make(changes):
    return make_once(*changes.items())


@functools.cache
def make_once(*changes):
    """A model and its parameters, random everywhere."""
    config = dataclasses.replace(MODEL, **dict(changes))
    model = Transformer(config, V, V if config.tying == "all" else V_SOURCE)
    return model, {"params": random_params(model)}


@pytest.mark.parametrize("changes", BY_POSITION + OTHERS, ids=name_of)
def test_logits_equal_those_of_plain_numpy_loops(changes):
    model, variables = make(changes)
    logits_BTV = model.apply(variables, SOURCE_BS, TARGET_BT)
    doubles = jax.tree.map(lambda x: np.asarray(x, np.float64), variables["params"])
    expected_TV = reference.forward(doubles, model.config, SOURCE_BS[0], TARGET_BT[0])
    # float32 against float64
    np.testing.assert_allclose(logits_BTV[0], expected_TV, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "wide"),
    [
        *((changes, False) for changes in BY_POSITION),
        (BY_POSITION[0], True),
        (BY_POSITION[1], True),
    ],
    ids=lambda value: name_of(value) if isinstance(value, dict) else ["by mask", "by copy"][value],
)
def test_cached_steps_give_the_logits_of_the_whole_decoder_though_hypotheses_change_places(
    changes, wide, monkeypatch
):
    monkeypatch.setattr(decoding, "MAX_MASKED_BEAMS", 2 if wide else 3)
    model, variables = make(changes)
    memory_BSD = model.apply(variables, SOURCE_BS, method="encode")
    memory = model.apply(variables, memory_BSD, SOURCE_BS, method=precompute_cross_kv)
    W, rng, rows = 3, np.random.default_rng(5), np.arange(B)[:, None]
    cache, step = init_caches(model, B, W, T), decode_step_of(model)
    histories_BWT, beam_indices_BWT = np.zeros((2, B, W, T), np.int32)
    stepped = []
    for t in range(T):
        # As a search does it: the hypothesis at w goes on from a random one, and is then at w.
        parents_BW = rng.integers(0, W, (B, W))
        histories_BWT, beam_indices_BWT = (
            x[rows, parents_BW] for x in (histories_BWT, beam_indices_BWT)
        )
        stepped = [logits_BWV[rows, parents_BW] for logits_BWV in stepped]
        histories_BWT[:, :, t], beam_indices_BWT[:, :, t] = rng.integers(3, V, (B, W)), np.arange(W)
        logits_BWV, cache = step(
            variables, histories_BWT[:, :, t], jnp.int32(t), beam_indices_BWT, cache, memory
        )
        stepped.append(np.asarray(logits_BWV))
    for w in range(W):
        expected_BTV = model.apply(variables, SOURCE_BS, histories_BWT[:, w])
        np.testing.assert_allclose(
            np.stack([logits_BWV[:, w] for logits_BWV in stepped], axis=1), expected_BTV, atol=1e-5
        )


@by_position
def test_no_logit_depends_on_a_later_target_token_or_on_padding(changes):
    model, variables = make(changes)
    changed_BT = TARGET_BT.copy()
    changed_BT[:, 4:] = 3 + (TARGET_BT[:, 4:] - 2) % (V - 3)
    before, after = (model.apply(variables, SOURCE_BS, t) for t in (TARGET_BT, changed_BT))
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert not np.allclose(before[:, 4:], after[:, 4:])
    padded = [np.pad(tokens, ((0, 0), (0, 2))) for tokens in (SOURCE_BS, TARGET_BT)]
    wide = model.apply(variables, *padded)[:, :T]
    np.testing.assert_allclose(before, wide, atol=1e-5)  # sums of other lengths, in float32


@pytest.mark.parametrize("initializer", ["scaled_xavier", "xavier", "normal"])
def test_kernels_begin_with_the_deviation_of_their_initializer(initializer):
    """Xavier's is sqrt(2 / (fan_in + fan_out)); the last of a branch has 1 / sqrt(2 N) of it."""
    config = ModelConfig(num_layers=2, d_model=128, d_ff=512, num_heads=4, initializer=initializer)
    init = jax.jit(Transformer(config, V).init)
    key = jax.random.key(0, impl="rbg")  # compiles in half the time
    params = init(key, SOURCE_BS, TARGET_BT)["params"]
    layer, other = params["decoder_1"], params["decoder_0"]
    assert not np.allclose(*(each["feed_forward"]["ffn_in"]["kernel"] for each in (layer, other)))
    square, wide = (0.02, 0.02) if initializer == "normal" else ((2 / 256) ** 0.5, (2 / 640) ** 0.5)
    last = 0.5 if initializer == "scaled_xavier" else 1
    expected = {
        ("self_attention", "query"): square, ("self_attention", "key"): square,
        ("self_attention", "value"): square, ("self_attention", "out"): square * last,
        ("feed_forward", "ffn_in"): wide, ("feed_forward", "ffn_out"): wide * last,
    }  # fmt: skip
    for (block, name), deviation in expected.items():
        # 16,384 draws or more: the deviation's own error is below 1 %
        assert np.std(layer[block][name]["kernel"]) == pytest.approx(deviation, rel=0.03), name
    if initializer != "normal":  # words, which are multiplied by sqrt(d_model), have variance 1
        assert np.std(params["embedding"] * 128**0.5) == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_dropout_stands_where_the_paper_has_it_and_where_a_key_puts_it(norm_position):
    """On the sums of embeddings and positions, and on the output of each sub-layer before it is
    added; by keys of their own on attention weights and on the inner layer."""
    places = {}

    def watch(call, arguments, options, context):
        out = call(*arguments, **options)
        if isinstance(context.module, Dropout) and context.module.rate:
            places["/".join(context.module.path)] = context.module.rate, arguments[0]
        outputs["/".join(context.module.path), context.method_name] = out
        return out

    def train(**changes):
        places.clear()
        model, variables = make({"norm_position": norm_position} | changes)
        with nn.intercept_methods(watch):
            model.apply(
                variables, SOURCE_BS, TARGET_BT, train=True, rngs={"dropout": jax.random.key(0)}
            )
        return {name: rate for name, (rate, _) in places.items()}

    outputs = {}
    blocks = [
        "encoder_0/self_attention", "encoder_0/feed_forward", "decoder_0/self_attention",
        "decoder_0/cross_attention", "decoder_0/feed_forward",
    ]  # fmt: skip
    papers = {"embedding_dropout": 0.3} | {f"{block}_residual/dropout": 0.3 for block in blocks}
    assert train() == papers
    for block in blocks:
        dropped = places[f"{block}_residual/dropout"][1]
        np.testing.assert_array_equal(dropped, outputs[block, "__call__"])
    assert train(attention_dropout=0.2, activation_dropout=0.4) == papers | {
        f"{block}/weights_dropout": 0.2 for block in blocks if "attention" in block
    } | {f"{block}/activation_dropout": 0.4 for block in blocks if "feed" in block}
    assert train(residual_dropout=False) == {"embedding_dropout": 0.3}
    train(attention_dropout=0.2, activation_dropout=0.4)
    weights = places["decoder_0/cross_attention/weights_dropout"][1]
    np.testing.assert_allclose(np.sum(weights, axis=-1), 1, rtol=1e-5)
    assert np.min(places["decoder_0/feed_forward/activation_dropout"][1]) == 0  # after ReLU
