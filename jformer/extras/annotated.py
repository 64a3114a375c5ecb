"""Components of other implementations, for models imported from them.

The Annotated Transformer (Rush 2018) has its own norm and label smoothing. tensor2tensor, fairseq
and Marian have other sinusoids.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from jformer.config import PAD
from jformer.model.positions import Positions
from jformer.model.shapes import checked


class SampleLayerNorm(nn.Module):
    """(x - mean) / (s + epsilon) with the sample's deviation s, whose divisor is D - 1."""

    epsilon: float = 1e-6

    @nn.compact
    @checked
    def __call__(self, x_BLD: Array) -> Array:
        D = x_BLD.shape[-1]
        scale_D = self.param("scale", nn.initializers.ones_init(), (D,))
        bias_D = self.param("bias", nn.initializers.zeros_init(), (D,))
        x_BLD = x_BLD.astype(jnp.float32)
        variance_BL1 = jnp.var(x_BLD, axis=-1, keepdims=True, ddof=1)
        # The square root has no gradient at zero; this constant is far below epsilon.
        deviation_BL1 = jnp.sqrt(jnp.maximum(variance_BL1, 1e-30))
        centered_BLD = x_BLD - jnp.mean(x_BLD, axis=-1, keepdims=True)
        normed_BLD = centered_BLD / (deviation_BL1 + self.epsilon)
        return normed_BLD * scale_D[None, None] + bias_D[None, None]


@checked
def cross_entropy_over_others(
    logits_BTV: Array, labels_BT: Array, label_smoothing: float, *, padding: bool = False
) -> tuple[Array, Array]:
    """Return the smoothed loss and the NLL of each label, in nats: (B, T) each.

    The label keeps 1 - epsilon. The other entries share epsilon evenly, with or without `padding`.
    """
    log_probs_BTV = jax.nn.log_softmax(logits_BTV.astype(jnp.float32))
    nll_BT = -jnp.take_along_axis(log_probs_BTV, labels_BT[..., None], axis=-1)[..., 0]
    others_BT = -jnp.sum(log_probs_BTV, axis=-1) - nll_BT
    number = logits_BTV.shape[-1] - 1
    if not padding:
        others_BT += log_probs_BTV[..., PAD]
        number -= 1
    return (1 - label_smoothing) * nll_BT + label_smoothing * others_BT / number, nll_BT


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
