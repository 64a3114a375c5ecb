"""The sinusoids of tensor2tensor, fairseq and Marian, for models imported from them."""

import dataclasses

import jax.numpy as jnp
from jax import Array

from jformer.model.positions import Positions


def sinusoids_in_halves(positions_L: Array, d_model: int) -> Array:
    """Return all sines, then all cosines, as tensor2tensor and fairseq do: float32 (L, D).

    Their last frequency is exactly 1 / 10000, so they are not the paper's columns in another order.
    fairseq counts positions from its padding index + 1.
    """
    steps = max(d_model // 2 - 1, 1)
    frequencies = 10000.0 ** (-jnp.arange(d_model // 2) / steps)
    angles = positions_L[:, None] * frequencies[None, :]
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


@dataclasses.dataclass(frozen=True)
class Halves(Positions):
    """All sines, then all cosines. The first position has the number `first`."""

    first: int = 0

    def added(self, positions_L: Array, d_model: int, table: Array | None) -> Array:
        return sinusoids_in_halves(positions_L + self.first, d_model)
