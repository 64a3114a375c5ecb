"""The position encoding of Section 3.5."""

import jax.numpy as jnp


def sinusoids(positions_L, d_model):
    """Sine in the even columns, cosine in the odd: float32 (L, D).

    PE(pos, 2i) = sin(pos / 10000^(2i / d_model)) and PE(pos, 2i + 1) the cosine of the same.
    """
    frequencies = 10000.0 ** (-jnp.arange(0, d_model, 2) / d_model)
    angles = positions_L[:, None] * frequencies[None, :]
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(-1, d_model)
