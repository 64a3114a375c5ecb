"""Products, fused attention, activations, LayerNorm, top k, dropout and sharding, for speed.

The mathematics does not change. Tests compare each function with its plain form.
"""

import functools
import math

import jax
import jax.extend.random
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from jformer.model.shapes import checked

BLOCK = 8  # tokens per block; `top_tokens` first compares the maxima of blocks


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def einsum_f32(formula: str, x: Array, y: Array) -> Array:
    """Compute an einsum of two arrays with a float32 result, whatever the compute dtype."""
    return jnp.einsum(formula, x, y, preferred_element_type=jnp.float32)


@einsum_f32.defjvp
def einsum_f32_jvp(formula: str, primals: tuple, tangents: tuple) -> tuple:
    (x, y), (dx, dy) = primals, tangents
    # JAX's own rule would multiply float32 gradients in the backward pass, slower than the forward
    # pass and twice as often. This rule rounds them to the compute dtype first.
    tangent = jnp.einsum(formula, dx, y) + jnp.einsum(formula, x, dy)
    return einsum_f32(formula, x, y), tangent.astype(jnp.float32)


@checked
def attend_fused(
    q_BHQK: Array,
    k_BHMK: Array,
    v_BHMU: Array,
    mask_B1QM: Array,
    scaled: bool = True,
    implementation: str = "cudnn",
) -> Array:
    """Equation 1 in one kernel, which never writes the weights to memory: (B, H, Q, U)."""
    B, _, Q, _ = q_BHQK.shape
    M = k_BHMK.shape[2]
    mask_B1QM = jnp.broadcast_to(mask_B1QM, (B, 1, Q, M))
    # The kernel requires even lengths.
    q_odd, m_odd = (0, Q % 2), (0, M % 2)
    mask_B1QM = jnp.pad(mask_B1QM, ((0, 0), (0, 0), q_odd, m_odd))
    q_BQHK, k_BMHK, v_BMHU = (
        jnp.pad(x.swapaxes(1, 2), ((0, 0), odd, (0, 0), (0, 0)))
        for x, odd in ((q_BHQK, q_odd), (k_BHMK, m_odd), (v_BHMU, m_odd))
    )
    mixed_BQHU = jax.nn.dot_product_attention(
        q_BQHK,
        k_BMHK,
        v_BMHU,
        mask=mask_B1QM,
        scale=None if scaled else 1.0,
        implementation=implementation,
    )
    return mixed_BQHU[:, :Q].swapaxes(1, 2)


@jax.custom_vjp
def relu(x: Array) -> Array:
    """max(0, x) of Equation 2, with a gradient that depends only on the result.

    The backward pass then does not read x, so XLA fuses bias and maximum into the product before.
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


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_norm(x_BLD: Array, scale_D: Array, bias_D: Array, epsilon: float) -> Array:
    """Layer normalization (Ba et al. 2016, arXiv 1607.06450) in float32; the result is like x.

    The gradient saves only x, and recomputes the statistics of a position together with its own
    sums, in one pass. JAX's own gradient takes two more passes and saves float32 arrays.
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

    # Differences of means, as in Flax, to compute all four in one pass: exact to 1e-4 as long as
    # the mean of a position is below 30 deviations.
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


def top_tokens(logits_WV: Array, count: int) -> tuple[Array, Array]:
    """Return the `count` largest logits of each hypothesis and their tokens, the largest first.

    The tokens are divided into blocks of `BLOCK`, and only the blocks with the largest maxima are
    sorted. On a CPU this is 2.6 to 4 times as fast as sorting all. Ties may be broken differently
    from `top_k`.
    """
    W, V = logits_WV.shape
    count, blocks = min(count, V), -(-V // BLOCK)
    if blocks < 4 * count:
        return jax.lax.top_k(logits_WV, count)
    # Token v is in block v mod `blocks`, so that the maxima are maxima of whole rows.
    filled = jnp.pad(logits_WV, ((0, 0), (0, blocks * BLOCK - V)), constant_values=-jnp.inf)
    by_block = filled.reshape(W, BLOCK, blocks)
    _, chosen = jax.lax.top_k(jnp.max(by_block, axis=1), count)
    chosen = jnp.sort(chosen, axis=-1)  # the smallest of equal tokens first, as in `top_k`
    candidates = jnp.take_along_axis(by_block, chosen[:, None], axis=2)
    logits_WC, indices_WC = jax.lax.top_k(candidates.reshape(W, BLOCK * count), count)
    blocks_WC = jnp.take_along_axis(chosen, indices_WC % count, axis=1)
    return logits_WC, indices_WC // count * blocks + blocks_WC


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


def mix(bits: Array) -> Array:
    """Return the 32-bit hash "lowbias32" (Chris Wellons, 2018) of each element."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> 16)


def hash_bits(key: Array, shape: tuple[int, ...]) -> Array:
    """Return uniform uint32 bits that depend only on the key and the index of the element.

    The key selects the stride and the offset of the hash's inputs. XLA fuses the dozen operations
    into the consumer of the bits. JAX's generator would take a fifth of a train step on a CPU.
    """
    stride, start = jax.random.key_data(key)[:2]
    index = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    return mix(index * (stride | 1) + start)


def fold_in(words_2: Array, number: Array) -> Array:
    """Return the words of a new key for each number.

    Flax folds the path of a module, a constant, into the key of the step. XLA hashes the path at
    compile time, so that only a multiplication and an XOR of two scalars remain for each module.
    """
    first = mix(jnp.asarray(number, jnp.uint32))
    second = mix(first ^ jnp.uint32(0x9E3779B9))
    # The multiplication makes the order of numbers matter and keeps equal numbers from cancelling.
    stride, start = words_2 * jnp.uint32(0x9E3779B1)
    return jnp.stack([stride ^ first, start ^ second])


def split(words_2: Array, shape: tuple[int, ...]) -> Array:
    words_2 = fold_in(words_2, math.prod(shape))  # so that split keys differ from fold_in's
    numbers = jnp.arange(math.prod(shape), dtype=jnp.uint32)
    return jax.vmap(fold_in, (None, 0))(words_2, numbers).reshape(*shape, 2)


def random_bits(words_2: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    return (hash_bits(words_2, shape) >> (32 - bit_width)).astype(f"uint{bit_width}")


HASH = jax.extend.random.define_prng_impl(
    key_shape=(2,),
    seed=lambda seed: jnp.stack([mix(jnp.uint32(seed)), jnp.uint32(0)]),
    split=split,
    random_bits=random_bits,
    fold_in=fold_in,
    name="jformer_hash",
)


def dropout_key(key: Array) -> Array:
    """Convert the key of a step to the hash's key type, whose module keys need no kernels."""
    return jax.random.wrap_key_data(jax.random.key_data(key)[:2], impl=HASH)


class Dropout(nn.Module):
    """Zero each element with probability `rate` and scale the rest to preserve the mean."""

    rate: float

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        if not train or self.rate == 0:
            return x
        keep = hash_bits(self.make_rng("dropout"), x.shape) >= jnp.uint32(int(self.rate * 2**32))
        # Divided in float32: 1 - rate itself would be rounded in bfloat16, 0.9 to 0.898.
        scaled = (x.astype(jnp.float32) / (1 - self.rate)).astype(x.dtype)
        return jnp.where(keep, scaled, 0)
