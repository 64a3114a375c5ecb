"""Position encodings that act inside attention and depend only on distances.

The paper does not have them: `Rotary`, `Relative` and `Alibi` came later.
"""

import dataclasses

import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from jformer.config import ModelConfig
from jformer.model.numerics import einsum_f32
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


@dataclasses.dataclass(frozen=True)
class Relative(Positions):
    """Learned vectors by distance for keys and values (Shaw et al. 2018, arXiv 1803.02155)."""

    max_distance: int = 16

    def modules(self, config: ModelConfig) -> dict[str, nn.Module]:
        return {
            "relative_key": RelativeVectors(self.max_distance, config.key_width),
            "relative_value": RelativeVectors(self.max_distance, config.value_width),
        }

    def bias(self, attention: nn.Module, q_BHQK: Array, distances_BQM: Array) -> Array:
        relative_QMK = attention.relative_key(distances_BQM[0]).astype(q_BHQK.dtype)
        return einsum_f32("BHQK,QMK->BHQM", q_BHQK, relative_QMK) / q_BHQK.shape[-1] ** 0.5

    def add_values(
        self, attention: nn.Module, mixed_BHQU: Array, weights_BHQM: Array, distances_BQM: Array
    ) -> Array:
        relative_QMU = attention.relative_value(distances_BQM[0]).astype(weights_BHQM.dtype)
        return mixed_BHQU + jnp.einsum("BHQM,QMU->BHQU", weights_BHQM, relative_QMU)


@dataclasses.dataclass(frozen=True)
class Alibi(Positions):
    """A penalty that grows with the distance (ALiBi, Press et al. 2021, arXiv 2108.12409).

    Its slope is 2^(-8h / H) in head h = 1 ... H. ALiBi was designed for decoders. Here both sides
    of a query are penalised alike, so an encoder sees how far away a word is, but not its
    direction.
    """

    def bias(self, attention: nn.Module, q_BHQK: Array, distances_BQM: Array) -> Array:
        H = q_BHQK.shape[1]
        slopes_H = 2.0 ** (-8.0 * jnp.arange(1, H + 1) / H)
        return -slopes_H[None, :, None, None] * jnp.abs(distances_BQM[0])[None, None]
