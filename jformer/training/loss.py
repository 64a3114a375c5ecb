"""The loss: cross-entropy with label smoothing (Section 5.4), as sums over tokens.

Sums and a token count, never means: a mean of means would depend on how sentences fall into
batches and onto devices.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from jformer.config import PAD
from jformer.model.shapes import check_shapes

SUMS = ("loss", "nll", "tokens")


def token_losses(logits_BTV, labels_BT, label_smoothing, smoothing_over):
    """The smoothed loss and the plain negative log-likelihood of every label, in nats: (B, T) each.

    The smoothed target takes epsilon from the label and shares it evenly: over `all` entries (which
    leaves 1 - epsilon + epsilon / V on the label), over the `others`, or over the
    `others_but_padding`. Perplexity is exp of the mean NLL, never of the smoothed loss.
    """
    check_shapes(logits_BTV=logits_BTV, labels_BT=labels_BT)
    logits_BTV = logits_BTV.astype(jnp.float32)
    V = logits_BTV.shape[-1]
    log_normalizer_BT = jax.nn.logsumexp(logits_BTV, axis=-1)
    # A gather: anything one-hot costs another pass over (B, T, V), and the gradient two.
    label_logit_BT = jnp.take_along_axis(logits_BTV, labels_BT[..., None], axis=-1)[..., 0]
    nll_BT = log_normalizer_BT - label_logit_BT
    uniform_BT = log_normalizer_BT - jnp.mean(logits_BTV, axis=-1)
    if smoothing_over == "others":
        uniform_BT = (V * uniform_BT - nll_BT) / (V - 1)
    if smoothing_over == "others_but_padding":
        padding_nll_BT = log_normalizer_BT - logits_BTV[..., PAD]
        uniform_BT = (V * uniform_BT - nll_BT - padding_nll_BT) / (V - 2)
    return (1 - label_smoothing) * nll_BT + label_smoothing * uniform_BT, nll_BT


def loss_sums(logits_BTV, labels_BT, label_smoothing, smoothing_over):
    """Sums over the tokens that are not padding: `{"loss": .., "nll": .., "tokens": ..}`."""
    loss_BT, nll_BT = token_losses(logits_BTV, labels_BT, label_smoothing, smoothing_over)
    weights_BT = (labels_BT != PAD).astype(jnp.float32)
    return {
        "loss": jnp.sum(loss_BT * weights_BT),
        "nll": jnp.sum(nll_BT * weights_BT),
        "tokens": jnp.sum(weights_BT),
    }


def r_drop_kl(a_BTV, b_BTV, labels_BT):
    """Half the KL divergence of each from the other at every label, in nats: (B, T).

    That of R-Drop (Wu et al. 2021, arXiv 2106.14448, Equation 2), between two passes with dropout.
    """
    check_shapes(a_BTV=a_BTV, b_BTV=b_BTV, labels_BT=labels_BT)
    a_BTV, b_BTV = a_BTV.astype(jnp.float32), b_BTV.astype(jnp.float32)
    # The normalizers of the two logarithms cancel: both probabilities sum to 1.
    both_BTV = (jax.nn.softmax(a_BTV) - jax.nn.softmax(b_BTV)) * (a_BTV - b_BTV)
    return jnp.sum(both_BTV, axis=-1) / 2 * (labels_BT != PAD)


def perplexity(sums: dict[str, Any]) -> float:
    """exp of the mean unsmoothed NLL a token; inf where that overflows."""
    try:
        return math.exp(float(sums["nll"]) / float(sums["tokens"]))
    except OverflowError:
        return math.inf
