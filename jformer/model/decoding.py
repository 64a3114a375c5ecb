"""The cached decode step: one position at a time, with the same logits as a full pass.

The paper does not describe it. Keys and values of earlier positions are cached, and the keys and
values of the source are computed once. The functions take a bound `Transformer`:

    model.apply({"params": params}, tokens_W, t, beam_indices_WT, cache, memory, method=decode_step)
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from jformer.config import ModelConfig
from jformer.model.attention import MultiHeadAttention, padding_mask
from jformer.model.layers import DecoderLayer, normalize
from jformer.model.shapes import checked
from jformer.model.transformer import Transformer, logits_of

# Keys (H, K, W, T) and values (H, W, T, U) for each layer. Keys are cached transposed: multiplying
# them by few queries is then up to 2.4 times as fast on a CPU.
Cache = list[tuple[Array, Array]]

# The mask over all hypotheses costs O(W^2); above this width, copying is cheaper.
MAX_MASKED_BEAMS = 16


@struct.dataclass
class Memory:
    """The encoded source as keys and values, precomputed once for all positions and hypotheses."""

    cross_kv: Any  # keys (B, H, K, S) and values (B, H, S, U) for each decoder layer
    mask_B11S: Any


@checked
def precompute_cross_kv(model: Transformer, memory_BSD: Array, source_BS: Array) -> Memory:
    """Project the encoded sources to the keys and values of every decoder layer."""
    positions_1S = jnp.arange(source_BS.shape[1])[None]
    cross_kv = []
    for layer in model.decoder:
        k_BHSK, v_BHSU = layer.cross_attention.project_kv(memory_BSD, positions_1S)
        cross_kv.append((k_BHSK.swapaxes(2, 3), v_BHSU))
    return Memory(cross_kv, padding_mask(source_BS))


def init_cache(config: ModelConfig, W: int, T: int) -> Cache:
    """Return an empty cache for the W hypotheses of one sentence, of up to T tokens."""
    H, dtype = config.num_heads, config.compute_dtype
    k_HKWT = jnp.zeros((H, config.key_width, W, T), dtype)
    v_HWTU = jnp.zeros((H, W, T, config.value_width), dtype)
    return [(k_HKWT, v_HWTU)] * config.decoder_layers


@checked
def decode_step(
    model: Transformer,
    tokens_W: Array,
    t: Array,
    beam_indices_WT: Array,
    cache: Cache,
    memory: Memory,
) -> tuple[Array, Cache]:
    """Decode position t of one sentence: logits (W, V), and the cache with position t filled.

    `memory` belongs to the sentence and has no axis B. The logits are NaN if t is beyond a table of
    learned positions.

    Hypothesis w is written into slot w of the cache. When a search reorders its hypotheses, it
    reorders `beam_indices_WT` instead of the cache: the slot with the history of each hypothesis at
    each position up to t.
    """
    x_W1D = model.embed(model.embeddings.target_VD, tokens_W[:, None], first=t)
    x_1WD = x_W1D.swapaxes(0, 1)
    new_cache = []
    for layer, layer_cache, cross_kv in zip(model.decoder, cache, memory.cross_kv, strict=True):
        x_1WD, layer_cache = layer_step(
            layer, x_1WD, t, layer_cache, beam_indices_WT, cross_kv, memory.mask_B11S
        )
        new_cache.append(layer_cache)
    x_1WD = normalize(model.decoder_norm, x_1WD)
    return logits_of(x_1WD, *model.embeddings.output)[0], new_cache


def layer_step(
    layer: DecoderLayer,
    x_1WD: Array,
    t: Array,
    cache: tuple[Array, Array],
    beam_indices_WT: Array,
    cross_kv: tuple[Array, Array],
    cross_mask_11S: Array,
) -> tuple[Array, tuple[Array, Array]]:
    """Run a decoder layer on position t of W hypotheses: (1, W, D) and the new cache.

    `cache` is a pair of keys (H, K, W, T) and values (H, W, T, U), and `cross_kv` a pair of keys
    (H, K, S) and values (H, S, U). All hypotheses are queries of one attention to the sentence, so
    the sentence is not copied for each hypothesis.
    """
    positions_1W = jnp.full((1, len(beam_indices_WT)), t)

    def write(old, new, axis):
        return jax.lax.dynamic_update_slice_in_dim(old, jnp.expand_dims(new, axis), t, axis)

    def self_attention(x_1WD):
        nonlocal cache
        k_1HWK, v_1HWU = layer.self_attention.project_kv(x_1WD, positions_1W)
        k_HKWT, v_HWTU = cache
        cache = write(k_HKWT, k_1HWK[0].swapaxes(1, 2), 3), write(v_HWTU, v_1HWU[0], 2)
        return attend_histories(layer.self_attention, x_1WD, t, cache, beam_indices_WT)

    def cross_attention(x_1WD):
        k_HKS, v_HSU = cross_kv
        positions = positions_1W, jnp.arange(k_HKS.shape[2])[None]
        return layer.cross_attention.attend_to(
            x_1WD, k_HKS.swapaxes(1, 2)[None], v_HSU[None], cross_mask_11S[None], positions
        )

    x_1WD = layer.self_attention_residual(x_1WD, self_attention, False)
    x_1WD = layer.cross_attention_residual(x_1WD, cross_attention, False)
    x_1WD = layer.feed_forward_residual(x_1WD, lambda x: layer.feed_forward(x, False), False)
    return x_1WD, cache


def attend_histories(
    attention: MultiHeadAttention,
    x_1WD: Array,
    t: Array,
    cache: tuple[Array, Array],
    beam_indices_WT: Array,
) -> Array:
    """Let each hypothesis attend to its own history in the cache: (1, W, D)."""
    W, T = beam_indices_WT.shape
    positions_T = jnp.arange(T)
    reached_T = positions_T <= t
    k_HKWT, v_HWTU = cache
    if W > MAX_MASKED_BEAMS:
        k_WHTK = k_HKWT[:, :, beam_indices_WT, positions_T].transpose(2, 0, 3, 1)
        v_WHTU = v_HWTU[:, beam_indices_WT, positions_T].swapaxes(0, 1)
        positions = t[None, None], positions_T[None]
        x_W1D = attention.attend_to(
            x_1WD.swapaxes(0, 1), k_WHTK, v_WHTU, reached_T[None, None, None], positions
        )
        return x_W1D.swapaxes(0, 1)
    # One attention over all X = W T positions, masked so that each hypothesis sees only its own,
    # avoids any copy.
    own_WWT = beam_indices_WT[:, None] == jnp.arange(W)[None, :, None]
    mask_11WX = (own_WWT & reached_T[None, None]).reshape(1, 1, W, W * T)
    H, K = k_HKWT.shape[:2]
    k_1HXK = k_HKWT.reshape(H, K, W * T).swapaxes(1, 2)[None]
    v_1HXU = v_HWTU.reshape(1, H, W * T, -1)
    positions = jnp.full((1, W), t), jnp.tile(positions_T, W)[None]
    return attention.attend_to(x_1WD, k_1HXK, v_1HXU, mask_11WX, positions)
