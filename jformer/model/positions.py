"""Position encodings: the sinusoids of Section 3.5 and the alternatives to them.

`Sinusoidal` and `Learned` (Table 3, row E) are added to the embeddings. `Rotary`, `Relative` and
`Alibi` act inside attention and depend only on distances.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from jformer.config import ModelConfig
from jformer.errors import UserError
from jformer.model.numerics import einsum_f32
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


@checked
def apply_rotary(x_BHLK: Array, positions_BL: Array) -> Array:
    """Rotate each pair of columns by its position times the frequency of Section 3.5.

    The product of a rotated query and a rotated key depends only on their distance (RoPE, Su et al.
    2021).
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

    Its slope is 2^(-8h / H) in head h = 1 ... H. ALiBi (Press et al. 2021) was designed for
    decoders. Here both sides of a query are penalised alike, so an encoder sees the distance of a
    word, but not its direction.
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


class Positions:
    """No position encoding, and the base class of all others: override the methods that apply.

    An encoding is added to the embeddings, or it acts inside each self-attention. With
    `cross_attention` it also acts inside cross-attention.
    """

    cross_attention = False

    def table(self, matrix: Callable[[str, int], Array]) -> Array | None:
        """Return the learned table that `added` needs; `matrix(name, rows)` creates one."""
        return None

    def added(self, positions_L: Array, d_model: int, table: Array | None) -> Array:
        """Return the term to add to the scaled embeddings: float32 (L, D)."""
        return jnp.zeros((positions_L.shape[0], d_model))

    def modules(self, config: ModelConfig) -> dict[str, nn.Module]:
        """Return modules with parameters that become attributes of each attention."""
        return {}

    def rotate(self, x_BHLK: Array, positions_BL: Array) -> Array:
        """Return changed queries or keys."""
        return x_BHLK

    def bias(self, attention: nn.Module, q_BHQK: Array, distances_BQM: Array) -> Array | float:
        """Return the term to add to the logits of Equation 1: (B, H, Q, M).

        In self-attention B is 1: the distances are the same in all rows.
        """
        return 0.0

    def add_values(
        self, attention: nn.Module, mixed_BHQU: Array, weights_BHQM: Array, distances_BQM: Array
    ) -> Array:
        """Return changed outputs of the heads."""
        return mixed_BHQU


@dataclasses.dataclass(frozen=True)
class Sinusoidal(Positions):
    """Section 3.5."""

    def added(self, positions_L: Array, d_model: int, table: Array | None) -> Array:
        return sinusoids(positions_L, d_model)


@dataclasses.dataclass(frozen=True)
class Learned(Positions):
    """A learned embedding of each position, Table 3 (E)."""

    max_positions: int = 512

    def table(self, matrix: Callable[[str, int], Array]) -> Array:
        return matrix("position_embedding", self.max_positions)

    def added(self, positions_L: Array, d_model: int, table: Array | None) -> Array:
        if positions_L.shape[0] > self.max_positions:
            raise UserError(
                f"config.model.positions: max_positions={self.max_positions}, but a text has "
                f"{positions_L.shape[0]} tokens; shorten it, or train with a larger max_positions"
            )
        # In a compiled step the position is unknown here: beyond the table, lookups return NaN.
        rows_LD = jnp.take(table, positions_L, axis=0, mode="fill")
        return rows_LD * d_model**0.5


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
class Rotary(Positions):
    """Rotated queries and keys (RoPE, Su et al. 2021, arXiv 2104.09864)."""

    cross_attention: bool = False

    def rotate(self, x_BHLK: Array, positions_BL: Array) -> Array:
        return apply_rotary(x_BHLK, positions_BL)


@dataclasses.dataclass(frozen=True)
class Alibi(Positions):
    """A penalty by distance (Press et al. 2021, arXiv 2108.12409)."""

    def bias(self, attention: nn.Module, q_BHQK: Array, distances_BQM: Array) -> Array:
        return alibi_bias(distances_BQM[0], q_BHQK.shape[1])
