"""Code for speed and memory: products, activations, top k, dropout, sharding, scan, remat.

The mathematics does not change. Tests compare each function with its plain form.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from jformer.config import ModelConfig
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
    B, Q, M = len(q_BHQK), q_BHQK.shape[2], k_BHMK.shape[2]
    mask_B1QM = jnp.broadcast_to(mask_B1QM, (B, 1, Q, M))

    def padded(x_BHLK: Array) -> Array:
        """Pad to an even length, which cuDNN requires: (B, L, H, K)."""
        return jnp.pad(x_BHLK.swapaxes(1, 2), ((0, 0), (0, x_BHLK.shape[2] % 2), (0, 0), (0, 0)))

    mixed_BQHU = jax.nn.dot_product_attention(
        padded(q_BHQK),
        padded(k_BHMK),
        padded(v_BHMU),
        mask=jnp.pad(mask_B1QM, ((0, 0), (0, 0), (0, Q % 2), (0, M % 2))),
        scale=None if scaled else 1.0,
        implementation=implementation,
    )
    return mixed_BQHU[:, :Q].swapaxes(1, 2)


@jax.custom_jvp
def relu(x: Array) -> Array:
    """max(0, x) of Equation 2, with a gradient that depends only on the result.

    The backward pass then does not read x, so XLA fuses bias and maximum into the product before.
    """
    return jnp.maximum(x, 0)


# Not "> 0": XLA would rewrite max(0, x) > 0 to x > 0, and read x.
relu.defjvps(lambda dx, result, x: jnp.where(result != 0, dx, 0))


def gelu(x: Array) -> Array:
    """GELU as defined by Hendrycks and Gimpel (2016, arXiv 1606.08415), not an approximation."""
    return nn.gelu(x, approximate=False)


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


def hash_bits(key: Array, shape: tuple[int, ...]) -> Array:
    """Return uniform uint32 bits that depend only on the key and the index of the element.

    The key selects the stride and the offset of the hash's inputs. XLA fuses the dozen operations
    into the consumer of the bits. JAX's generator would take a fifth of a train step on a CPU.
    """
    stride, start = jax.random.key_data(key)[:2]
    index = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    bits = index * (stride | 1) + start
    # The 32-bit hash "lowbias32" (Chris Wellons, 2018).
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> 16)


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


def scan_layers(layers: list, key: Array | None, x_BLD: Array, *arguments: Any) -> Array:
    """Run one compiled layer in a loop over the stacked parameters of all layers.

    They are stacked here, so that the parameter tree is the same as without the loop.
    """
    params = [layer.variables["params"] for layer in layers]
    # One key per layer: masks are as random as in the unrolled model, but not identical.
    keys = None if key is None else jax.random.split(key, len(layers))
    free_layer = layers[0].clone(parent=None)  # a function of its parameters

    def run_layer(x_BLD, params_and_key):
        params, key = params_and_key
        rngs = {} if key is None else {"dropout": key}
        return free_layer.apply({"params": params}, x_BLD, *arguments, rngs=rngs), None

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)
    return jax.lax.scan(run_layer, x_BLD, (stacked, keys))[0]


def rematerialized(layer: type[nn.Module], config: ModelConfig, train_argument: int) -> Any:
    """Return the layer's class; it recomputes in the backward pass what `model.remat` selects."""
    if config.remat == "none":
        return layer
    policy = jax.checkpoint_policies.dots_saveable if config.remat == "dots" else None
    # XLA must not merge the second computation with the first; in the two loops of a scan it
    # cannot. On a CPU it does: only a scan saves memory.
    prevent_cse = not config.scan_layers
    # `train` is not an array; self is argument 0.
    return nn.remat(layer, policy=policy, static_argnums=train_argument, prevent_cse=prevent_cse)
