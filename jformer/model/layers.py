"""Residuals and norms (5.4), the feed-forward network (3.3), encoder and decoder layer (3.1).

Each layer takes makers of the two parts that an experiment may want to swap without editing the
package: `make_attend` makes what has the arguments of Equation 1, a function or a module, and
`make_norm` a module in place of LayerNorm.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

from jformer.config import ModelConfig
from jformer.model.attention import MultiHeadAttention, default_attention, kernel_init
from jformer.model.dropout import Dropout

# GELU as it was defined, x times the normal distribution function (Hendrycks and Gimpel 2016).
ACTIVATIONS: dict[str, Callable] = {
    "relu": nn.relu,
    "gelu": functools.partial(nn.gelu, approximate=False),
}


def by_sentences(x_BLD):
    """Where devices share out the axes: between sub-layers each has whole sentences of its own.

    Without it XLA may share out D instead, which the parameters are split by, and send activations
    about. Nothing happens unless the caller has given rules for the letters.
    """
    return nn.with_logical_constraint(x_BLD, ("B", None, None))


class Residual(nn.Module):
    """LayerNorm(x + Dropout(Sublayer(x))), Sections 3.1 and 5.4; post-norm.

    Pre-norm is x + Dropout(Sublayer(LayerNorm(x))), and a norm more at the end of each stack.
    """

    config: ModelConfig
    make_norm: Callable[[], nn.Module] = nn.LayerNorm

    def setup(self):
        self.dropout = Dropout(self.config.dropout)
        self.norm = self.make_norm()

    def __call__(self, x_BLD, sublayer, train):
        # A norm answers in the dtype of its parameters, float32.
        if self.config.norm_position == "pre":
            normed_BLD = self.norm(x_BLD).astype(x_BLD.dtype)
            return by_sentences(x_BLD + self.dropout(sublayer(normed_BLD), train))
        sum_BLD = x_BLD + self.dropout(sublayer(x_BLD), train)
        return by_sentences(self.norm(sum_BLD).astype(x_BLD.dtype))


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2 at each position, Equation 2."""

    config: ModelConfig

    def setup(self):
        config, first, last = self.config, kernel_init(self.config), kernel_init(self.config, True)
        dtype = config.compute_dtype
        self.ffn_in = nn.Dense(config.d_ff, kernel_init=first, dtype=dtype)
        self.ffn_out = nn.Dense(config.d_model, kernel_init=last, dtype=dtype)
        self.activation_dropout = Dropout(config.activation_dropout)

    def __call__(self, x_BLD, train):
        hidden_BLF = ACTIVATIONS[self.config.activation](self.ffn_in(x_BLD))
        return self.ffn_out(self.activation_dropout(hidden_BLF, train))


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network.

    With a causal mask it is the layer of a decoder that has no encoder.
    """

    config: ModelConfig
    make_attend: Callable[[], Callable] = default_attention
    make_norm: Callable[[], nn.Module] = nn.LayerNorm

    def setup(self):
        config = self.config
        self.self_attention = MultiHeadAttention(config, config.positions, self.make_attend)
        self.self_attention_residual = Residual(config, self.make_norm)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config, self.make_norm)

    def __call__(self, x_BSD, mask_B1SS, train=False):
        x_BSD = self.self_attention_residual(
            x_BSD, lambda x_BSD: self.self_attention(x_BSD, x_BSD, mask_B1SS, train), train
        )
        return self.feed_forward_residual(
            x_BSD, lambda x_BSD: self.feed_forward(x_BSD, train), train
        )


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the encoder's output, then the feed-forward network."""

    config: ModelConfig
    make_attend: Callable[[], Callable] = default_attention
    make_norm: Callable[[], nn.Module] = nn.LayerNorm

    def setup(self):
        config = self.config
        self.self_attention = MultiHeadAttention(config, config.positions, self.make_attend)
        self.self_attention_residual = Residual(config, self.make_norm)
        self.cross_attention = MultiHeadAttention(config, make_attend=self.make_attend)
        self.cross_attention_residual = Residual(config, self.make_norm)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config, self.make_norm)

    def __call__(self, x_BTD, mask_11TT, memory_BSD, memory_mask_B11S, train=False):
        def self_attention(x_BTD):
            return self.self_attention(x_BTD, x_BTD, mask_11TT, train)

        def cross_attention(x_BTD):
            return self.cross_attention(x_BTD, memory_BSD, memory_mask_B11S, train)

        x_BTD = self.self_attention_residual(x_BTD, self_attention, train)
        x_BTD = self.cross_attention_residual(x_BTD, cross_attention, train)
        return self.feed_forward_residual(
            x_BTD, lambda x_BTD: self.feed_forward(x_BTD, train), train
        )

    def decode_step(self, x_BWD, t, cache_BHWTK, mask_B1WX, memory_BHSK, memory_mask_B11S):
        """Position t of W hypotheses a sentence; returns it and the cache with position t filled.

        `cache_BHWTK` and `memory_BHSK` are pairs of keys and values. The hypotheses of a sentence
        are the queries of one attention to all X = W T places of its cache, where the mask shows
        each its own history, and of one attention to its memory: neither is copied for each.
        """
        W, T = cache_BHWTK[0].shape[2:4]
        positions_W, positions_X, train = jnp.full(W, t), jnp.tile(jnp.arange(T), W), False

        def self_attention(x_BWD):
            nonlocal cache_BHWTK
            cache_BHWTK = jax.tree.map(
                lambda old, new_BHWK: jax.lax.dynamic_update_slice_in_dim(
                    old, new_BHWK[:, :, :, None], t, axis=3
                ),
                cache_BHWTK,
                self.self_attention.project_kv(x_BWD, positions_W),
            )
            k_BHXK, v_BHXU = (x.reshape(*x.shape[:2], W * T, -1) for x in cache_BHWTK)
            return self.self_attention.attend_cached(
                x_BWD, positions_W, k_BHXK, v_BHXU, mask_B1WX, train, positions_X
            )

        def cross_attention(x_BWD):
            k_BHSK, v_BHSU = memory_BHSK
            return self.cross_attention.attend_cached(
                x_BWD, positions_W, k_BHSK, v_BHSU, memory_mask_B11S, train
            )

        x_BWD = self.self_attention_residual(x_BWD, self_attention, train)
        x_BWD = self.cross_attention_residual(x_BWD, cross_attention, train)
        x_BWD = self.feed_forward_residual(
            x_BWD, lambda x_BWD: self.feed_forward(x_BWD, train), train
        )
        return x_BWD, cache_BHWTK
