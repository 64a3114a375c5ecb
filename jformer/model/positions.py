"""Position encodings of the paper: sinusoids (Section 3.5) and learned ones (Table 3, row E).

Both are added to the embeddings. The encodings of relative_positions.py act inside attention.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from jformer.errors import UserError
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


class Positions:
    """No position encoding, and the base class of all others: override the methods that apply.

    An encoding is added to the embeddings, or it acts inside each self-attention.
    """

    cross_attention = False  # whether it also acts inside cross-attention

    def table(self, matrix: Callable[[str, int], Array]) -> Array | None:
        """Return the learned table that `added` needs; `matrix(name, rows)` creates one."""
        return None

    def added(self, positions_L: Array, d_model: int, table: Array | None) -> Array:
        """Return the term to add to the scaled embeddings: float32 (L, D)."""
        return jnp.zeros((positions_L.shape[0], d_model))

    def rotate(self, x_BHLK: Array, positions_BL: Array) -> Array:
        """Return changed queries or keys."""
        return x_BHLK

    def bias(self, H: int, distances_BQM: Array) -> Array | float:
        """Return the term to add to the logits of H heads: (B, H, Q, M).

        B is 1 in self-attention. A distance is the memory position minus the query position.
        """
        return 0.0


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
