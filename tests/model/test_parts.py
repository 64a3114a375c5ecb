"""The parts by themselves: equivalences that readers of the paper ask for, and parts swapped."""

import dataclasses
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jformer import components
from jformer.config import ModelConfig
from jformer.decoding.attention import attention_weights
from jformer.extras.halves import sinusoids_in_halves
from jformer.model.attention import MultiHeadAttention, attend, causal_mask, padding_mask
from jformer.model.layers import EncoderLayer, FeedForward
from jformer.model.positions import sinusoids
from jformer.model.transformer import Transformer
from jformer.training.loss import loss_sums
from tests.conftest import random_params

SMALL = ModelConfig(num_layers=1, d_model=12, d_ff=17, num_heads=3, dropout=0.0)
B, L, V = 2, 7, 19
ALL_11LL = jnp.ones((1, 1, L, L), bool)
FILES = Path(__file__).parents[2] / "experiments" / "components"
ADDITIVE = f"{FILES / 'additive_attention.py'}:AdditiveAttention"
BATCH_NORM = f"{FILES / 'batch_norm.py'}:BatchNorm"


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def tokens(*shape, seed=0):
    return np.random.default_rng(seed).integers(3, V, shape).astype(np.int32)


def test_a_matrix_for_each_head_is_one_matrix_for_all():
    """Section 3.2.2 writes W_i^Q and so on; here one kernel (D, H, K) holds them side by side."""
    x_BLD = random(B, L, 12)
    attention = MultiHeadAttention(SMALL)
    variables = attention.init(jax.random.key(0), x_BLD, x_BLD, ALL_11LL)
    kernels = {name: leaf["kernel"] for name, leaf in variables["params"].items()}
    heads = []
    for h in range(3):
        q, k, v = ((x_BLD @ kernels[name][:, h])[:, None] for name in ("query", "key", "value"))
        heads.append(attend(q, k, v, ALL_11LL)[0][:, 0])
    output_matrix = kernels["out"].reshape(-1, 12)  # W^O: h d_v rows
    expected = jnp.concatenate(heads, axis=-1) @ output_matrix
    np.testing.assert_allclose(
        attention.apply(variables, x_BLD, x_BLD, ALL_11LL), expected, atol=1e-5
    )


def test_heads_on_the_batch_axis_are_heads_on_their_own():
    """Kyubyong's split: heads concatenated on the batch axis, attended to, and split again."""
    q, k, v = (random(B, 3, L, 4, seed=seed) for seed in range(3))
    stacked = [np.concatenate(np.split(x, 3, axis=1)) for x in (q, k, v)]  # (3 B, 1, L, K)
    mixed = attend(*stacked, ALL_11LL)[0]
    expected = np.concatenate(np.split(np.asarray(mixed), 3), axis=1)
    np.testing.assert_allclose(attend(q, k, v, ALL_11LL)[0], expected, atol=1e-6)


def test_the_feed_forward_network_is_two_convolutions_of_width_one():
    x_BLD = random(B, L, 12)
    network = FeedForward(SMALL)
    variables = network.init(jax.random.key(0), x_BLD, False)
    inner, outer = (variables["params"][name] for name in ("ffn_in", "ffn_out"))

    def convolve(x, layer):
        kernel = layer["kernel"][None]  # one tap
        dims = ("NWC", "WIO", "NWC")
        return (
            jax.lax.conv_general_dilated(x, kernel, (1,), "VALID", dimension_numbers=dims)
            + layer["bias"][None, None]
        )

    expected = convolve(nn.relu(convolve(x_BLD, inner)), outer)
    np.testing.assert_allclose(network.apply(variables, x_BLD, False), expected, atol=1e-5)


def test_attention_weights_of_each_query_sum_to_one_and_are_zero_where_masked():
    tokens_BM = jnp.array([[5, 6, 7, 8, 9, 0, 0], [5, 6, 7, 8, 9, 5, 6]])
    mask_B1QM = padding_mask(tokens_BM) & causal_mask(L)  # both at once
    q, k, v = (random(B, 3, L, 4, seed=seed) for seed in range(3))
    weights_BHQM = np.asarray(attend(q, k, v, mask_B1QM)[1])
    np.testing.assert_allclose(weights_BHQM.sum(axis=-1), 1, rtol=1e-6)
    assert np.all(weights_BHQM[~np.broadcast_to(mask_B1QM, weights_BHQM.shape)] == 0)
    assert np.all(weights_BHQM[np.broadcast_to(mask_B1QM, weights_BHQM.shape)] > 0)


def test_a_mask_fills_what_it_forbids_before_the_softmax():
    """As masked_fill: of the logits 1, 2, 3 the second is out, and e : e^3 share the weight."""
    q = jnp.ones((1, 1, 1, 1))
    k = jnp.array([1.0, 2.0, 3.0]).reshape(1, 1, 3, 1)
    mask = jnp.array([True, False, True])[None, None, None]
    weights = attend(q, k, k, mask)[1].ravel()
    e = np.e
    np.testing.assert_allclose(weights, [e / (e + e**3), 0, e**3 / (e + e**3)], rtol=1e-6)


def test_the_product_of_query_and_key_is_a_similarity():
    """Of three words each answers with what it resembles: softmax(Q K^T / sqrt(2)) V."""
    words = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]], np.float32)
    x = words[None, None]
    mixed, weights = attend(x, x, x, jnp.ones((1, 1, 1, 3), bool))
    scores = np.exp(np.array([[1, 0.8, 0], [0.8, 1, 0.6], [0, 0.6, 1]]) / 2**0.5)
    expected = scores / scores.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(weights[0, 0], expected, rtol=1e-5)
    np.testing.assert_allclose(mixed[0, 0], expected @ words, rtol=1e-5)


def test_unscaled_products_of_wide_keys_saturate_the_softmax():
    """Why Section 3.2.1 divides: the largest of 50 weights is near one."""
    q, k = random(1, 1, 50, 512), random(1, 1, 50, 512, seed=1)
    mask = jnp.ones((1, 1, 1, 50), bool)
    scaled = attend(q, k, k, mask)[1].max(axis=-1)
    unscaled = attend(q, k, k, mask, scaled=False)[1].max(axis=-1)
    assert np.median(scaled) < 0.3
    assert np.median(unscaled) > 0.9


def test_sinusoids_in_halves_are_those_of_tensor2tensor():
    table = np.asarray(sinusoids_in_halves(jnp.arange(50), 16))
    for position in (0, 1, 49):
        for i in range(8):
            angle = position * np.exp(-i * np.log(10000) / 7)
            assert table[position, i] == pytest.approx(np.sin(angle), abs=1e-5)
            assert table[position, 8 + i] == pytest.approx(np.cos(angle), abs=1e-5)


def test_wavelengths_run_from_2_pi_to_10000_times_2_pi():
    """The first pair of columns turns once in 2 pi positions, the last in 9600 times that."""
    first, last = 2 * np.pi, 2 * np.pi * 10000 ** (510 / 512)
    table = sinusoids(jnp.array([0.0, first, last, last / 2]), 512)
    np.testing.assert_allclose(table[1, :2], table[0, :2], atol=1e-5)
    # 10^4.8 radians in float32 are exact to some thousandths
    np.testing.assert_allclose(table[2, -2:], table[0, -2:], atol=1e-2)
    np.testing.assert_allclose(table[3, -1], -1, atol=1e-4)
    assert last / first > 9600
    assert np.max(np.abs(table)) <= 1


# Parts that the package does not have, under names of these tests or from files.


@pytest.fixture
def own_parts(monkeypatch):
    register_own_parts(monkeypatch)


def register_own_parts(monkeypatch):
    own = "tests.model.test_parts"
    monkeypatch.setitem(components.BUILT_IN["attention"], "once", f"{own}:attend_once")
    monkeypatch.setitem(components.BUILT_IN["norm"], "sample", f"{own}:SampleNorm")


def with_part(**names):
    for text in names.values():
        if file := components.parse(text).file:
            components.allow(file)
    return dataclasses.replace(SMALL, **names)


def attend_once(q_BHQK, *rest):
    """A function in place of Equation 1: each query takes the key it likes best."""
    return attend(q_BHQK * 1e4, *rest)


class SampleNorm(nn.Module):
    """The Annotated Transformer's: the sample deviation (n - 1), epsilon added to it."""

    @nn.compact
    def __call__(self, x):
        D = x.shape[-1]
        shape = (1,) * (x.ndim - 1) + (D,)
        a_2 = self.param("a_2", nn.initializers.ones, shape)
        b_2 = self.param("b_2", nn.initializers.zeros, shape)
        deviation = jnp.std(x, axis=-1, keepdims=True, ddof=1)
        return a_2 * (x - x.mean(axis=-1, keepdims=True)) / (deviation + 1e-6) + b_2


def test_another_attention_takes_the_place_of_equation_1(own_parts):
    source, target = tokens(B, L), tokens(B, L, seed=1)
    usual = Transformer(SMALL, V)
    variables = usual.init(jax.random.key(0), source, target)
    hard = Transformer(with_part(attention="once"), V)
    assert not np.allclose(
        usual.apply(variables, source, target), hard.apply(variables, source, target)
    )
    weights = attention_weights(hard, variables["params"], source, target)
    assert np.mean(np.max(weights["encoder_0/self_attention"], axis=-1)) > 0.99


def test_additive_attention_trains_in_place_of_the_product():
    source, target = tokens(B, L), tokens(B, L, seed=1)
    model = Transformer(with_part(attention=ADDITIVE), V)
    params = random_params(model)
    total = jax.grad(lambda p: jnp.sum(model.apply({"params": p}, source, target) ** 2))
    gradient = jax.jit(total)(params)
    leaves = jax.tree_util.tree_leaves_with_path(gradient)
    trained = ["/".join(key.key for key in path[:2]) for path, g in leaves if path[-1].key == "v"]
    # Each attention of each layer has its own.
    assert trained == [
        "decoder_0/cross_attention", "decoder_0/self_attention", "encoder_0/self_attention",
    ]  # fmt: skip
    assert all(np.all(np.abs(g) > 0) for path, g in leaves if path[-1].key == "v")


def test_another_norm_takes_the_place_of_layer_norm(own_parts):
    x_BLD = 3 + 2 * random(B, L, 12)
    layer = EncoderLayer(with_part(norm="sample"))
    variables = layer.init(jax.random.key(0), x_BLD, ALL_11LL)
    out = layer.apply(variables, x_BLD, ALL_11LL)
    np.testing.assert_allclose(np.std(out, axis=-1, ddof=1), 1, rtol=1e-4)
    usual = EncoderLayer(SMALL)
    usual_out = usual.apply(usual.init(jax.random.key(0), x_BLD, ALL_11LL), x_BLD, ALL_11LL)
    np.testing.assert_allclose(np.std(usual_out, axis=-1), 1, rtol=1e-4)


def test_a_batch_norm_in_its_place_depends_on_the_rest_of_the_batch_as_layer_norm_does_not():
    x_BLD = random(8, L, 12)

    def first_sentence(norm, rows, stored=False):
        layer = EncoderLayer(with_part(norm=norm))
        variables = layer.init(jax.random.key(0), x_BLD, ALL_11LL)
        params = {"params": variables["params"]}
        if stored:
            params |= layer.apply(params, x_BLD, ALL_11LL, mutable="batch_stats")[1]
        return layer.apply(params, x_BLD[:rows], ALL_11LL)[0]

    assert not np.allclose(first_sentence(BATCH_NORM, 2), first_sentence(BATCH_NORM, 8))
    for norm, stored in ((BATCH_NORM, True), ("layer_norm", False)):
        two, eight = (first_sentence(norm, rows, stored) for rows in (2, 8))
        np.testing.assert_allclose(two, eight, atol=1e-5)


def test_attention_weights_can_be_had_from_every_layer_and_head():
    source, target = tokens(B, 5), tokens(B, L, seed=1)
    model = Transformer(dataclasses.replace(SMALL, num_layers=2), V)
    params = random_params(model)
    weights = attention_weights(model, params, source, target)
    assert {name: leaf.shape for name, leaf in weights.items()} == {
        **{f"encoder_{n}/self_attention": (B, 3, 5, 5) for n in range(2)},
        **{f"decoder_{n}/self_attention": (B, 3, L, L) for n in range(2)},
        **{f"decoder_{n}/cross_attention": (B, 3, L, 5) for n in range(2)},
    }
    for leaf in weights.values():
        np.testing.assert_allclose(np.sum(leaf, axis=-1), 1, rtol=1e-5)
    assert np.all(np.triu(weights["decoder_1/self_attention"][0, 0], k=1) == 0)


def test_weights_that_nobody_asks_for_are_not_kept():
    source = tokens(B, 5)
    model = Transformer(SMALL, V)
    variables = jax.jit(model.init)(jax.random.key(0), source, source)
    assert set(variables) == {"params"}
    compiled = jax.jit(model.apply).lower(variables, source, source).compile()
    outputs = jax.tree.leaves(compiled.out_info)
    assert [leaf.shape for leaf in outputs] == [(B, 5, V)]


# Other shapes of model are a few lines over the same parts.


class EncoderOnly(nn.Module):
    """Embed, encode, a linear map and a log-softmax, as torch's nn.TransformerEncoder is shown."""

    config: ModelConfig
    vocabulary_size: int

    @nn.compact
    def __call__(self, tokens_BL):
        x_BLD = nn.Embed(self.vocabulary_size, self.config.d_model)(tokens_BL)
        for _ in range(self.config.num_layers):
            x_BLD = EncoderLayer(self.config)(x_BLD, padding_mask(tokens_BL))
        return nn.log_softmax(nn.Dense(self.vocabulary_size)(x_BLD))


class DecoderOnly(nn.Module):
    """A language model: encoder layers under a causal mask."""

    config: ModelConfig
    vocabulary_size: int

    @nn.compact
    def __call__(self, tokens_BL):
        length = tokens_BL.shape[1]
        x_BLD = nn.Embed(self.vocabulary_size, self.config.d_model)(tokens_BL)
        x_BLD += sinusoids(jnp.arange(length), self.config.d_model)[None]
        for _ in range(self.config.num_layers):
            x_BLD = EncoderLayer(self.config)(x_BLD, causal_mask(length))
        return nn.Dense(self.vocabulary_size)(x_BLD)


@pytest.mark.process
def test_an_encoder_alone_classifies_five_tokens_of_a_thousand():
    toy = EncoderOnly(ModelConfig(num_layers=6, d_model=256, d_ff=1024, num_heads=4), 1000)
    tokens_15 = jnp.array([[1, 2, 3, 4, 5]])
    logits_15V, variables = toy.init_with_output(jax.random.key(0), tokens_15)
    assert logits_15V.shape == (1, 5, 1000)
    np.testing.assert_allclose(jnp.exp(logits_15V).sum(axis=-1), 1, rtol=1e-5)
    # Each answer depends on every other token, before and after, and none on padding.
    changed_15V = toy.apply(variables, tokens_15.at[0, 2].set(9))
    assert np.all(np.abs(changed_15V - logits_15V).max(axis=-1) > 1e-3)
    padded_17V = toy.apply(variables, jnp.pad(tokens_15, ((0, 0), (0, 2))))
    np.testing.assert_allclose(padded_17V[:, :5], logits_15V, atol=1e-5)
    assert sum(name.startswith("EncoderLayer_") for name in variables["params"]) == 6


def test_a_decoder_alone_does_not_see_what_follows():
    toy, text = DecoderOnly(SMALL, V), tokens(B, L)
    variables = toy.init(jax.random.key(0), text)
    other = text.copy()
    other[:, 4:] = 3
    before, after = (toy.apply(variables, t) for t in (text, other))
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert not np.allclose(before[:, 4:], after[:, 4:])


def test_the_smallest_transformer_has_one_layer_on_each_side():
    model = Transformer(ModelConfig(num_layers=1, d_model=2, d_ff=1, num_heads=1), 4)
    token_11 = np.array([[3]])
    logits, variables = model.init_with_output(jax.random.key(0), token_11, token_11)
    assert logits.shape == (1, 1, 4)
    assert np.all(np.isfinite(logits))
    assert set(variables["params"]) == {"embedding", "encoder_0", "decoder_0"}


def test_a_row_of_zeros_for_padding_stays_zero_where_its_update_is_masked():
    """Kyubyong's zero_pad as two lines of optax, and not as the key `zero_padding`."""
    model = Transformer(SMALL, V)
    source, target = tokens(B, L), tokens(B, L + 1, seed=1)
    source[0, 4:] = target[0, 5:] = 0
    params = random_params(model)
    params["embedding"] = params["embedding"].at[0].set(0)

    def keep_row_zero(updates, _params):
        return {**updates, "embedding": updates["embedding"].at[0].set(0)}

    optimizer = optax.chain(optax.sgd(0.01), optax.stateless(keep_row_zero))

    @jax.jit
    @jax.grad
    def gradient(params):
        logits = model.apply({"params": params}, source, target[:, :-1])
        return loss_sums(logits, target[:, 1:], 0.1)["loss"]

    def train(optimizer, params):
        state = optimizer.init(params)
        for _ in range(3):
            updates, state = optimizer.update(gradient(params), state, params)
            params = optax.apply_updates(params, updates)
        return params["embedding"]

    assert np.all(train(optimizer, params)[0] == 0)
    assert np.all(train(optimizer, params)[5] != params["embedding"][5])
    assert np.all(train(optax.sgd(0.01), params)[0] != 0)  # the tied output moves it otherwise
