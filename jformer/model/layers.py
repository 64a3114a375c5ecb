"""Dropout and residuals (5.4), the feed-forward network (3.3), encoder and decoder layer (3.1)."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from jformer.config import ModelConfig
from jformer.model.attention import MultiHeadAttention, residual_init


def hash_bits(key, shape):
    """Uniform uint32, each a function of the key and of the element's index alone.

    Two rounds of the 32-bit mixer "lowbias32" (Chris Wellons, 2018), keyed before each. It fuses
    into whatever uses the bits, where JAX's own generator costs a fifth of a train step on a CPU.
    """
    bits = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    for word in jax.random.key_data(key):
        bits = bits ^ word
        bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
        bits = (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)
        bits = bits ^ (bits >> 16)
    return bits


class Dropout(nn.Module):
    """Zero each element with probability `rate` and scale the rest so that the mean stays."""

    rate: float

    @nn.compact
    def __call__(self, x, train):
        if not train or self.rate == 0:
            return x
        keep = hash_bits(self.make_rng("dropout"), x.shape) >= jnp.uint32(int(self.rate * 2**32))
        return jnp.where(keep, x / (1 - self.rate), 0)


class Residual(nn.Module):
    """LayerNorm(x + Dropout(Sublayer(x))), Sections 3.1 and 5.4."""

    config: ModelConfig

    def setup(self):
        self.dropout = Dropout(self.config.dropout)
        self.norm = nn.LayerNorm()

    def __call__(self, x_BLD, sublayer, train):
        return self.norm(x_BLD + self.dropout(sublayer(x_BLD), train))


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2 at each position, Equation 2."""

    config: ModelConfig

    def setup(self):
        xavier = nn.initializers.xavier_uniform()
        smaller = residual_init(self.config.num_layers)
        self.ffn_in = nn.Dense(self.config.d_ff, kernel_init=xavier)
        self.ffn_out = nn.Dense(self.config.d_model, kernel_init=smaller)

    def __call__(self, x_BLD):
        return self.ffn_out(nn.relu(self.ffn_in(x_BLD)))


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network."""

    config: ModelConfig

    def setup(self):
        self.self_attention = MultiHeadAttention(self.config)
        self.self_attention_residual = Residual(self.config)
        self.feed_forward = FeedForward(self.config)
        self.feed_forward_residual = Residual(self.config)

    def __call__(self, x_BSD, mask_B11S, train):
        x_BSD = self.self_attention_residual(
            x_BSD, lambda x_BSD: self.self_attention(x_BSD, x_BSD, mask_B11S), train
        )
        return self.feed_forward_residual(x_BSD, self.feed_forward, train)


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the encoder's output, then the feed-forward network."""

    config: ModelConfig

    def setup(self):
        self.self_attention = MultiHeadAttention(self.config)
        self.self_attention_residual = Residual(self.config)
        self.cross_attention = MultiHeadAttention(self.config)
        self.cross_attention_residual = Residual(self.config)
        self.feed_forward = FeedForward(self.config)
        self.feed_forward_residual = Residual(self.config)

    def __call__(self, x_BTD, mask_11TT, memory_BSD, memory_mask_B11S, train):
        x_BTD = self.self_attention_residual(
            x_BTD, lambda x_BTD: self.self_attention(x_BTD, x_BTD, mask_11TT), train
        )
        x_BTD = self.cross_attention_residual(
            x_BTD, lambda x_BTD: self.cross_attention(x_BTD, memory_BSD, memory_mask_B11S), train
        )
        return self.feed_forward_residual(x_BTD, self.feed_forward, train)

    def step(self, x_BWD, t, cache_BWTHK, memory_BSHK, memory_mask_B11S):
        """One position of W hypotheses a sentence; returns it and the cache with position t filled.

        `cache_BWTHK` and `memory_BSHK` are pairs of keys and values. The hypotheses of a sentence
        are the queries of one attention to its memory, so the memory is not copied for each.
        """

        def self_attention(x_BWD):
            nonlocal cache_BWTHK
            new_BW1HK = self.self_attention.keys_values(x_BWD[:, :, None, :])
            cache_BWTHK = jax.tree.map(
                lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, t, axis=2),
                cache_BWTHK,
                new_BW1HK,
            )
            B, W, T = cache_BWTHK[0].shape[:3]
            k, v = (x.reshape(B * W, T, *x.shape[3:]) for x in cache_BWTHK)
            visible_111T = (jnp.arange(T) <= t)[None, None, None, :]
            return self.self_attention.read(
                x_BWD.reshape(B * W, 1, -1), k, v, visible_111T
            ).reshape(x_BWD.shape)

        k_BSHK, v_BSHU = memory_BSHK
        x_BWD = self.self_attention_residual(x_BWD, self_attention, train=False)
        x_BWD = self.cross_attention_residual(
            x_BWD,
            lambda x_BWD: self.cross_attention.read(x_BWD, k_BSHK, v_BSHU, memory_mask_B11S),
            train=False,
        )
        return self.feed_forward_residual(x_BWD, self.feed_forward, train=False), cache_BWTHK
