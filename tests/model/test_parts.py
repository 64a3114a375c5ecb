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
from jformer.model.layers import EncoderLayer
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


def test_attention_weights_of_each_query_sum_to_one_and_are_zero_where_masked():
    tokens_BM = jnp.array([[5, 6, 7, 8, 9, 0, 0], [5, 6, 7, 8, 9, 5, 6]])
    mask_B1QM = padding_mask(tokens_BM) & causal_mask(L)  # both at once
    q, k, v = (random(B, 3, L, 4, seed=seed) for seed in range(3))
    weights_BHQM = np.asarray(attend(q, k, v, mask_B1QM)[1])
    np.testing.assert_allclose(weights_BHQM.sum(axis=-1), 1, rtol=1e-6)
    assert np.all(weights_BHQM[~np.broadcast_to(mask_B1QM, weights_BHQM.shape)] == 0)
    assert np.all(weights_BHQM[np.broadcast_to(mask_B1QM, weights_BHQM.shape)] > 0)


def test_sinusoids_in_halves_are_those_of_tensor2tensor():
    table = np.asarray(sinusoids_in_halves(jnp.arange(50), 16))
    for position in (0, 1, 49):
        for i in range(8):
            angle = position * np.exp(-i * np.log(10000) / 7)
            assert table[position, i] == pytest.approx(np.sin(angle), abs=1e-5)
            assert table[position, 8 + i] == pytest.approx(np.cos(angle), abs=1e-5)


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


# Other shapes of model are a few lines over the same parts.


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


def test_a_decoder_alone_does_not_see_what_follows():
    toy, text = DecoderOnly(SMALL, V), tokens(B, L)
    variables = toy.init(jax.random.key(0), text)
    other = text.copy()
    other[:, 4:] = 3
    before, after = (toy.apply(variables, t) for t in (text, other))
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert not np.allclose(before[:, 4:], after[:, 4:])


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
