"""Components with which The Annotated Transformer (Rush 2018) departs from the paper.

They are its norm and its label smoothing, which excludes the label and padding.
"""

import jax
import jax.numpy as jnp
from jax import Array

from jformer.config import PAD
from jformer.model.layers import LayerNorm
from jformer.model.shapes import checked


def sample_layer_norm(x_BLD: Array, scale_D: Array, bias_D: Array, epsilon: float) -> Array:
    """(x - mean) / (s + epsilon) with the sample's deviation s, whose divisor is D - 1."""
    x_BLD = x_BLD.astype(jnp.float32)
    variance_BL1 = jnp.var(x_BLD, axis=-1, keepdims=True, ddof=1)
    # The square root has no gradient at zero; this constant is far below epsilon.
    deviation_BL1 = jnp.sqrt(jnp.maximum(variance_BL1, 1e-30))
    normed_BLD = (x_BLD - jnp.mean(x_BLD, axis=-1, keepdims=True)) / (deviation_BL1 + epsilon)
    return normed_BLD * scale_D[None, None] + bias_D[None, None]


class SampleLayerNorm(LayerNorm):
    """LayerNorm by the sample's deviation, to which epsilon is added."""

    normalize = staticmethod(sample_layer_norm)


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
