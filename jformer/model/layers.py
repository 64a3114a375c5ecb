"""Residuals and norms (5.4), feed-forward network (3.3), encoder and decoder layers (3.1)."""

from collections.abc import Callable

from flax import linen as nn
from jax import Array

from jformer.components import find
from jformer.config import ModelConfig
from jformer.model.attention import MultiHeadAttention
from jformer.model.linear import Linear
from jformer.model.numerics import Dropout, shard_by_batch
from jformer.model.shapes import checked


def make_norm(config: ModelConfig) -> Callable[[Array], Array]:
    return find("config.model.norm", "norm", config.norm)


def normalize(norm: Callable[[Array], Array] | None, x_BLD: Array) -> Array:
    """Apply a norm, if any, with a result in the dtype of x."""
    return x_BLD if norm is None else norm(x_BLD).astype(x_BLD.dtype)


class Residual(nn.Module):
    """LayerNorm(x + Dropout(Sublayer(x))), Sections 3.1 and 5.4; post-norm.

    Pre-norm is x + Dropout(Sublayer(LayerNorm(x))).
    """

    config: ModelConfig

    def setup(self):
        self.dropout = Dropout(self.config.dropout if self.config.residual_dropout else 0.0)
        self.norm = make_norm(self.config)

    @checked
    def __call__(self, x_BLD: Array, sublayer: Callable[[Array], Array], train: bool) -> Array:
        if self.config.norm_position == "pre":
            normed_BLD = normalize(self.norm, x_BLD)
            return shard_by_batch(x_BLD + self.dropout(sublayer(normed_BLD), train))
        sum_BLD = x_BLD + self.dropout(sublayer(x_BLD), train)
        return shard_by_batch(normalize(self.norm, sum_BLD))


class FeedForward(nn.Module):
    """Equation 2, max(0, x W1 + b1) W2 + b2, at each position."""

    config: ModelConfig

    def setup(self):
        config = self.config
        self.ffn_in = Linear(config, (config.d_ff,))
        self.ffn_out = Linear(config, (config.d_model,), ends_branch=True)
        self.activation = find("config.model.activation", "activation", config.activation)
        self.activation_dropout = Dropout(config.activation_dropout)

    @checked
    def __call__(self, x_BLD: Array, train: bool) -> Array:
        hidden_BLF = self.activation(self.ffn_in(x_BLD))
        return self.ffn_out(self.activation_dropout(hidden_BLF, train))


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network.

    With a causal mask, this is the layer of a decoder-only model.
    """

    config: ModelConfig

    def setup(self):
        config = self.config
        self.self_attention = MultiHeadAttention(config)
        self.self_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    @checked
    def __call__(self, x_BSD: Array, mask_B1SS: Array, train: bool = False) -> Array:
        x_BSD = self.self_attention_residual(
            x_BSD, lambda x: self.self_attention(x, x, mask_B1SS, train), train
        )
        return self.feed_forward_residual(x_BSD, lambda x: self.feed_forward(x, train), train)


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the encoder's output, then the feed-forward network."""

    config: ModelConfig

    def setup(self):
        config = self.config
        self.self_attention = MultiHeadAttention(config, "decoder")
        self.self_attention_residual = Residual(config)
        self.cross_attention = MultiHeadAttention(config, "cross")
        self.cross_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    @checked
    def __call__(
        self,
        x_BTD: Array,
        mask_B1TT: Array,
        memory_BSD: Array,
        memory_mask_B1TS: Array,
        train: bool = False,
        positions: tuple[Array, Array] | None = None,
    ) -> Array:
        """Return the new states. In packed rows, `positions` of targets and sources are needed."""
        x_BTD = self.self_attention_residual(
            x_BTD, lambda x: self.self_attention(x, x, mask_B1TT, train), train
        )
        x_BTD = self.cross_attention_residual(
            x_BTD,
            lambda x: self.cross_attention(x, memory_BSD, memory_mask_B1TS, train, positions),
            train,
        )
        return self.feed_forward_residual(x_BTD, lambda x: self.feed_forward(x, train), train)
