"""Position encodings: the sinusoids of Section 3.5 and the alternatives to them.

Added to the embeddings: `sinusoids`, `sinusoids_in_halves`, or a learned table (Table 3, row E).
Inside attention, by distance alone: `apply_rotary`, `alibi_bias` and `RelativeVectors`.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from jformer.model.shapes import checked


@checked
def positions_in_segments(segments_BL: Array) -> Array:
    """Count the positions of each text in a packed row from 0: (B, L)."""
    index_L = jnp.arange(segments_BL.shape[1])
    begins_BL = jnp.diff(segments_BL, axis=1, prepend=-1) != 0
    return index_L[None] - jax.lax.cummax(jnp.where(begins_BL, index_L[None], 0), axis=1)


def sinusoids(positions_L: Array, d_model: int) -> Array:
    """Return sines in the even columns and cosines in the odd ones: float32 (L, D).

    PE(pos, 2i) = sin(pos / 10000^(2i / d_model)) and PE(pos, 2i + 1) the cosine of the same.
    """
    frequencies = 10000.0 ** (-jnp.arange(0, d_model, 2) / d_model)
    angles = positions_L[:, None] * frequencies[None, :]
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(-1, d_model)


def sinusoids_in_halves(positions_L: Array, d_model: int) -> Array:
    """Return all sines, then all cosines, as tensor2tensor and fairseq do: float32 (L, D).

    Their last frequency is 1 / 10000 itself, so these are not the paper's in another order. fairseq
    counts positions from its padding index + 1.
    """
    steps = max(d_model // 2 - 1, 1)
    frequencies = 10000.0 ** (-jnp.arange(d_model // 2) / steps)
    angles = positions_L[:, None] * frequencies[None, :]
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


@checked
def apply_rotary(x_BHLK: Array, positions_BL: Array) -> Array:
    """Rotate each pair of columns by its position times the frequency of Section 3.5.

    The product of a query and a key that are both rotated depends on their distance alone (RoPE,
    Su et al. 2021).
    """
    K = x_BHLK.shape[-1]
    frequencies = 10000.0 ** (-jnp.arange(0, K, 2) / K)
    angles_B1LF = positions_BL[:, None, :, None] * frequencies[None, None, None]
    cosine, sine = jnp.cos(angles_B1LF), jnp.sin(angles_B1LF)
    even, odd = x_BHLK[..., 0::2], x_BHLK[..., 1::2]
    rotated = jnp.stack([even * cosine - odd * sine, even * sine + odd * cosine], axis=-1)
    return rotated.reshape(x_BHLK.shape).astype(x_BHLK.dtype)


@checked
def alibi_bias(distances_QM: Array, num_heads: int) -> Array:
    """Return a penalty that grows with the distance: (1, H, Q, M).

    Its slope is 2^(-8h / H) in head h = 1 ... H. ALiBi (Press et al. 2021) is for decoders. Here
    both sides of a query count alike, so an encoder knows how far a word is, but not whether it
    stands before or after.
    """
    slopes_H = 2.0 ** (-8.0 * jnp.arange(1, num_heads + 1) / num_heads)
    return -slopes_H[None, :, None, None] * jnp.abs(distances_QM)[None, None]


class RelativeVectors(nn.Module):
    """A learned vector for each distance, clipped at `max_distance`: (Q, M, K).

    Shaw et al. 2018, Equations 3 to 5. Each layer has its own vectors, shared by its heads.
    """

    max_distance: int
    width: int

    @nn.compact
    @checked
    def __call__(self, distances_QM: Array) -> Array:
        farthest = self.max_distance
        shape = (2 * farthest + 1, self.width)
        table = self.param("table", nn.initializers.xavier_uniform(), shape)
        return table[jnp.clip(distances_QM, -farthest, farthest) + farthest]
