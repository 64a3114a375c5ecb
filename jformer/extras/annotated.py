"""What The Annotated Transformer (Rush 2018) has in another form than the paper.

Its norm, and its label smoothing, which gives nothing to the label and to padding.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from jformer.config import PAD
from jformer.errors import UserError
from jformer.model.shapes import checked


class SampleLayerNorm(nn.Module):
    """(x - mean) / (s + epsilon) with the sample's deviation s, whose divisor is D - 1."""

    epsilon: float = 1e-6

    def check(self) -> None:
        if self.epsilon <= 0:
            raise UserError(f"config.model.norm: epsilon={self.epsilon} must be > 0")

    @nn.compact
    @checked
    def __call__(self, x_BLD: Array) -> Array:
        D = x_BLD.shape[-1]
        scale_D = self.param("scale", nn.initializers.ones_init(), (D,))
        bias_D = self.param("bias", nn.initializers.zeros_init(), (D,))
        x_BLD = x_BLD.astype(jnp.float32)
        variance_BL1 = jnp.var(x_BLD, axis=-1, keepdims=True, ddof=1)
        # The root of zero has no gradient; this is far below epsilon.
        deviation_BL1 = jnp.sqrt(jnp.maximum(variance_BL1, 1e-30))
        centered_BLD = x_BLD - jnp.mean(x_BLD, axis=-1, keepdims=True)
        normed_BLD = centered_BLD / (deviation_BL1 + self.epsilon)
        return normed_BLD * scale_D[None, None] + bias_D[None, None]


@checked
def cross_entropy_over_others(
    logits_BTV: Array,
    labels_BT: Array,
    label_smoothing: float,
    mean_logits_BT: Array | None = None,
    *,
    padding: bool = False,
) -> tuple[Array, Array]:
    """Return the smoothed loss and the NLL of each label, in nats: (B, T) each.

    The label keeps 1 - epsilon. The others share epsilon evenly, with `padding` or without it.
    """
    log_probs_BTV = jax.nn.log_softmax(logits_BTV.astype(jnp.float32))
    nll_BT = -jnp.take_along_axis(log_probs_BTV, labels_BT[..., None], axis=-1)[..., 0]
    others_BT = -jnp.sum(log_probs_BTV, axis=-1) - nll_BT
    number = logits_BTV.shape[-1] - 1
    if not padding:
        others_BT += log_probs_BTV[..., PAD]
        number -= 1
    return (1 - label_smoothing) * nll_BT + label_smoothing * others_BT / number, nll_BT
