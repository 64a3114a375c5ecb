"""Residuals and norms (5.4), feed-forward network (3.3), encoder and decoder layers (3.1)."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from jformer.components import find
from jformer.config import ModelConfig
from jformer.errors import UserError
from jformer.model.attention import MultiHeadAttention
from jformer.model.dropout import Dropout
from jformer.model.initializers import kernel_init
from jformer.model.linear import Linear
from jformer.model.shapes import checked


@jax.custom_vjp
def relu(x: Array) -> Array:
    """max(0, x) of Equation 2, with a gradient that depends only on the result.

    Nothing else reads x then, so XLA fuses bias and maximum into the preceding product.
    """
    return jnp.maximum(x, 0)


def relu_and_residual(x: Array) -> tuple[Array, Array]:
    result = relu(x)
    return result, result


def relu_gradient(result: Array, d_result: Array) -> tuple[Array]:
    # Not "> 0": XLA would rewrite max(0, x) > 0 to x > 0, and read x.
    return (jnp.where(result != 0, d_result, 0),)


relu.defvjp(relu_and_residual, relu_gradient)


def gelu(x: Array) -> Array:
    """GELU as defined by Hendrycks and Gimpel (2016, arXiv 1606.08415), not an approximation."""
    return nn.gelu(x, approximate=False)


def silu(x: Array) -> Array:
    return nn.silu(x)


# A mask over all hypotheses' positions costs W squared; with more of them a copy costs less.
WIDEST_MASK = 16


@checked
def shard_by_batch(x_BLD: Array) -> Array:
    """Shard activations over the batch axis only; a no-op without logical axis rules.

    Without it XLA may shard them over D, as the parameters are, and move them between sub-layers.
    """
    return nn.with_logical_constraint(x_BLD, ("B", None, None))


@checked
def shard_by_column(x_BLD: Array) -> Array:
    """Shard activations over D, as a look-up in an embedding matrix sharded over D leaves them."""
    return nn.with_logical_constraint(x_BLD, ("B_data", None, "D"))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_norm(x_BLD: Array, scale_D: Array, bias_D: Array, epsilon: float) -> Array:
    """Layer normalization (Ba et al. 2016, arXiv 1607.06450) in float32; the result is like x.

    The gradient saves only x, and recomputes the statistics of a position together with its own
    sums, in one pass. JAX's own takes two more passes and saves float32 arrays.
    """
    dtype, x_BLD = x_BLD.dtype, x_BLD.astype(jnp.float32)
    centered_BLD = x_BLD - jnp.mean(x_BLD, axis=-1, keepdims=True)
    variance_BL1 = jnp.mean(centered_BLD**2, axis=-1, keepdims=True)
    normed_BLD = centered_BLD * jax.lax.rsqrt(variance_BL1 + epsilon)
    return (normed_BLD * scale_D[None, None] + bias_D[None, None]).astype(dtype)


def layer_norm_and_residuals(
    x_BLD: Array, scale_D: Array, bias_D: Array, epsilon: float
) -> tuple[Array, tuple[Array, Array]]:
    return layer_norm(x_BLD, scale_D, bias_D, epsilon), (x_BLD, scale_D)


def layer_norm_gradient(
    epsilon: float, residuals: tuple[Array, Array], d_result_BLD: Array
) -> tuple[Array, Array, Array]:
    x_BLD, scale_D = residuals
    dtype, x_BLD = x_BLD.dtype, x_BLD.astype(jnp.float32)
    d_result_BLD = d_result_BLD.astype(jnp.float32)
    d_normed_BLD = d_result_BLD * scale_D[None, None]

    def mean(values_BLD):
        return jnp.mean(values_BLD, axis=-1, keepdims=True)

    # Differences of means, as in Flax, to have all four from one pass: exact to 1e-4 as long as the
    # mean of a position is below 30 deviations.
    mean_BL1, d_mean_BL1 = mean(x_BLD), mean(d_normed_BLD)
    variance_BL1 = jnp.maximum(mean(x_BLD**2) - mean_BL1**2, 0)
    covariance_BL1 = mean(d_normed_BLD * x_BLD) - d_mean_BL1 * mean_BL1
    inverse_BL1 = jax.lax.rsqrt(variance_BL1 + epsilon)
    normed_BLD = (x_BLD - mean_BL1) * inverse_BL1
    projection_BLD = normed_BLD * (covariance_BL1 * inverse_BL1)
    d_x_BLD = (d_normed_BLD - d_mean_BL1 - projection_BLD) * inverse_BL1
    d_scale_D = jnp.sum(d_result_BLD * normed_BLD, axis=(0, 1))
    return d_x_BLD.astype(dtype), d_scale_D, jnp.sum(d_result_BLD, axis=(0, 1))


layer_norm.defvjp(layer_norm_and_residuals, layer_norm_gradient)


def sample_layer_norm(x_BLD: Array, scale_D: Array, bias_D: Array, epsilon: float) -> Array:
    """(x - mean) / (s + epsilon) with the sample's deviation s, whose divisor is D - 1."""
    x_BLD = x_BLD.astype(jnp.float32)
    variance_BL1 = jnp.var(x_BLD, axis=-1, keepdims=True, ddof=1)
    # The root of zero has no gradient; this is far below epsilon.
    deviation_BL1 = jnp.sqrt(jnp.maximum(variance_BL1, 1e-30))
    normed_BLD = (x_BLD - jnp.mean(x_BLD, axis=-1, keepdims=True)) / (deviation_BL1 + epsilon)
    return normed_BLD * scale_D[None, None] + bias_D[None, None]


class LayerNorm(nn.Module):
    """A norm of each position, with a scale and a bias for each of its elements."""

    epsilon: float = 1e-6  # added to the variance

    normalize = staticmethod(layer_norm)

    def check(self) -> None:
        if self.epsilon <= 0:
            raise UserError(f"config.model.norm: epsilon={self.epsilon} must be > 0")

    @nn.compact
    @checked
    def __call__(self, x_BLD: Array) -> Array:
        D = x_BLD.shape[-1]
        scale_D = self.param("scale", nn.initializers.ones_init(), (D,))
        bias_D = self.param("bias", nn.initializers.zeros_init(), (D,))
        return self.normalize(x_BLD, scale_D, bias_D, self.epsilon)


class SampleLayerNorm(LayerNorm):
    """LayerNorm by the sample's deviation, to which epsilon is added."""

    normalize = staticmethod(sample_layer_norm)


def make_norm(config: ModelConfig) -> Callable[[Array], Array]:
    return find("config.model.norm", "norm", config.norm)


def normalize(norm: Callable[[Array], Array], x_BLD: Array) -> Array:
    """Apply a norm, and return its result in the dtype of x."""
    normed_BLD = norm(x_BLD)
    if normed_BLD.shape != x_BLD.shape:
        raise ValueError(f"a norm returned {normed_BLD.shape} for {x_BLD.shape}")
    return normed_BLD.astype(x_BLD.dtype)


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
        config, first, last = self.config, kernel_init(self.config), kernel_init(self.config, True)
        dtype = config.compute_dtype
        self.ffn_in = Linear((config.d_ff,), first, dtype, use_bias=True)
        self.ffn_out = Linear((config.d_model,), last, dtype, use_bias=True)
        self.activation = find("config.model.activation", "activation", config.activation)
        self.activation_dropout = Dropout(config.activation_dropout)

    @checked
    def __call__(self, x_BLD: Array, train: bool) -> Array:
        hidden_BLF = self.activation(self.ffn_in(x_BLD))
        return self.ffn_out(self.activation_dropout(hidden_BLF, train))


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network.

    With a causal mask it is the layer of a decoder that has no encoder.
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
            x_BSD, lambda x_BSD: self.self_attention(x_BSD, x_BSD, mask_B1SS, train), train
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
        positions_BT: Array | None = None,
        positions_BS: Array | None = None,
    ) -> Array:
        """Return the new states. The positions are those in the texts of packed rows."""
        return self.residual_branches(
            x_BTD,
            lambda x_BTD: self.self_attention(x_BTD, x_BTD, mask_B1TT, train),
            lambda x_BTD: self.cross_attention(
                x_BTD, memory_BSD, memory_mask_B1TS, train, positions_BT, positions_BS
            ),
            train,
        )

    def residual_branches(
        self, x_BTD: Array, self_attention: Callable, cross_attention: Callable, train: bool
    ) -> Array:
        x_BTD = self.self_attention_residual(x_BTD, self_attention, train)
        x_BTD = self.cross_attention_residual(x_BTD, cross_attention, train)
        return self.feed_forward_residual(x_BTD, lambda x: self.feed_forward(x, train), train)

    def decode_step(
        self,
        x_1WD: Array,
        t: Array,
        cache: tuple[Array, Array],
        beam_indices_WT: Array,
        cross_kv: tuple[Array, Array],
        cross_mask_11S: Array,
    ) -> tuple[Array, tuple[Array, Array]]:
        """Decode position t of the W hypotheses of one sentence: (1, W, D) and the new cache.

        `cache` is a pair of keys (H, K, W, T) and values (H, W, T, U), `cross_kv` one of (H, K, S)
        and (H, S, U). The hypotheses are the queries of one attention to the sentence, which is not
        copied for each of them.
        """
        positions_1W = jnp.full((1, len(beam_indices_WT)), t)

        def write(old, new, axis):
            return jax.lax.dynamic_update_slice_in_dim(old, jnp.expand_dims(new, axis), t, axis)

        def self_attention(x_1WD):
            nonlocal cache
            k_1HWK, v_1HWU = self.self_attention.project_kv(x_1WD, positions_1W)
            k_HKWT, v_HWTU = cache
            cache = write(k_HKWT, k_1HWK[0].swapaxes(1, 2), 3), write(v_HWTU, v_1HWU[0], 2)
            return self.attend_histories(x_1WD, t, cache, beam_indices_WT)

        def cross_attention(x_1WD):
            k_HKS, v_HSU = cross_kv
            k_1HSK, v_1HSU = k_HKS.swapaxes(1, 2)[None], v_HSU[None]
            positions_1S, mask_111S = jnp.arange(k_1HSK.shape[2])[None], cross_mask_11S[None]
            return self.cross_attention.attend_cached(
                x_1WD, positions_1W, k_1HSK, v_1HSU, positions_1S, mask_111S
            )

        x_1WD = self.residual_branches(x_1WD, self_attention, cross_attention, train=False)
        return x_1WD, cache

    def attend_histories(
        self, x_1WD: Array, t: Array, cache: tuple[Array, Array], beam_indices_WT: Array
    ) -> Array:
        """Let each hypothesis attend to its own history in the cache: (1, W, D)."""
        W, T = beam_indices_WT.shape
        positions_T = jnp.arange(T)
        reached_T = positions_T <= t
        k_HKWT, v_HWTU = cache
        if W > WIDEST_MASK:
            k_WHTK = k_HKWT[:, :, beam_indices_WT, positions_T].transpose(2, 0, 3, 1)
            v_WHTU = v_HWTU[:, beam_indices_WT, positions_T].swapaxes(0, 1)
            x_W1D = self.self_attention.attend_cached(
                x_1WD.swapaxes(0, 1),
                t[None, None],
                k_WHTK,
                v_WHTU,
                positions_T[None],
                reached_T[None, None, None],
            )
            return x_W1D.swapaxes(0, 1)
        # One attention to all X = W T positions, where a mask shows each its own, copies nothing.
        own_WWT = beam_indices_WT[:, None] == jnp.arange(W)[None, :, None]
        mask_11WX = (own_WWT & reached_T[None, None]).reshape(1, 1, W, W * T)
        H, K = k_HKWT.shape[:2]
        k_1HXK = k_HKWT.reshape(H, K, W * T).swapaxes(1, 2)[None]
        v_1HXU = v_HWTU.reshape(1, H, W * T, -1)
        return self.self_attention.attend_cached(
            x_1WD, jnp.full((1, W), t), k_1HXK, v_1HXU, jnp.tile(positions_T, W)[None], mask_11WX
        )
