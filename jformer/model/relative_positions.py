"""Position encodings that act inside attention and depend only on distances.

The paper does not have them: `Rotary` and `Alibi` came later.
"""

import dataclasses

import jax.numpy as jnp
from jax import Array

from jformer.model.positions import Positions
from jformer.model.shapes import checked


@dataclasses.dataclass(frozen=True)
class Rotary(Positions):
    """Queries and keys rotated by their positions (RoPE, Su et al. 2021, arXiv 2104.09864).

    Each pair of columns turns by its position times the frequency of Section 3.5. The product of a
    query and a key then depends only on their distance.
    """

    cross_attention: bool = False

    @checked
    def rotate(self, x_BHLK: Array, positions_BL: Array) -> Array:
        K = x_BHLK.shape[-1]
        frequencies = 10000.0 ** (-jnp.arange(0, K, 2) / K)
        angles_B1LF = positions_BL[:, None, :, None] * frequencies[None, None, None]
        cosine, sine = jnp.cos(angles_B1LF), jnp.sin(angles_B1LF)
        even, odd = x_BHLK[..., 0::2], x_BHLK[..., 1::2]
        rotated = jnp.stack([even * cosine - odd * sine, even * sine + odd * cosine], axis=-1)
        return rotated.reshape(x_BHLK.shape).astype(x_BHLK.dtype)


@dataclasses.dataclass(frozen=True)
class Alibi(Positions):
    """A penalty that grows with the distance (ALiBi, Press et al. 2021, arXiv 2108.12409).

    Its slope is 2^(-8h / H) in head h = 1 ... H. ALiBi was designed for decoders. Here both sides
    of a query are penalised alike, so an encoder sees how far away a word is, but not its
    direction.
    """

    def bias(self, H: int, distances_BQM: Array) -> Array:
        slopes_H = 2.0 ** (-8.0 * jnp.arange(1, H + 1) / H)
        return -slopes_H[None, :, None, None] * jnp.abs(distances_BQM)[:, None]
