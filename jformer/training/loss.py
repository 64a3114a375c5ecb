"""The loss: cross-entropy with label smoothing (Section 5.4), as sums over tokens.

Sums and a token count, never means: a mean of means would depend on how sentences are distributed
over batches and devices.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from jformer.config import PAD
from jformer.model.shapes import checked

SUMS = ("loss", "nll", "tokens")


@checked
def cross_entropy(
    logits_BTV: Array, labels_BT: Array, label_smoothing: float
) -> tuple[Array, Array]:
    """Return the smoothed loss and the negative log-likelihood of each label, in nats: (B, T) each.

    Smoothing distributes epsilon evenly over all V entries of the vocabulary, so the label has
    1 - epsilon + epsilon / V.
    """
    logits_BTV = logits_BTV.astype(jnp.float32)
    # On a CPU, the gradient of this form is faster than that of jax.nn.logsumexp.
    max_BT1 = jax.lax.stop_gradient(jnp.max(logits_BTV, axis=-1, keepdims=True))
    sum_BT = jnp.sum(jnp.exp(logits_BTV - max_BT1), axis=-1)
    log_normalizer_BT = max_BT1[..., 0] + jnp.log(sum_BT)
    # The gradient of a look-up would scatter into another array (B, T, V).
    is_label_BTV = jnp.arange(logits_BTV.shape[-1])[None, None] == labels_BT[..., None]
    nll_BT = log_normalizer_BT - jnp.sum(jnp.where(is_label_BTV, logits_BTV, 0), axis=-1)
    uniform_BT = log_normalizer_BT - jnp.mean(logits_BTV, axis=-1)
    return (1 - label_smoothing) * nll_BT + label_smoothing * uniform_BT, nll_BT


def loss_sums(
    logits_BTV: Array,
    labels_BT: Array,
    label_smoothing: float,
    token_losses: Callable[..., tuple[Array, Array]] = cross_entropy,
) -> dict[str, Array]:
    """Return sums over the tokens without padding; `token_losses` is the loss component."""
    loss_BT, nll_BT = token_losses(logits_BTV, labels_BT, label_smoothing)
    weights_BT = (labels_BT != PAD).astype(jnp.float32)
    return {
        "loss": jnp.sum(loss_BT * weights_BT),
        "nll": jnp.sum(nll_BT * weights_BT),
        "tokens": jnp.sum(weights_BT),
    }


@checked
def r_drop_kl(a_BTV: Array, b_BTV: Array, labels_BT: Array) -> Array:
    """Return the symmetric KL divergence between two passes with dropout, in nats: (B, T).

    The regularizer of R-Drop (Wu et al. 2021, arXiv 2106.14448, Equation 2).
    """
    a_BTV, b_BTV = a_BTV.astype(jnp.float32), b_BTV.astype(jnp.float32)
    # The normalizers of the two logarithms cancel: both probabilities sum to 1.
    both_BTV = (jax.nn.softmax(a_BTV) - jax.nn.softmax(b_BTV)) * (a_BTV - b_BTV)
    return jnp.sum(both_BTV, axis=-1) / 2 * (labels_BT != PAD)


def perplexity(nll: float, tokens: float) -> float:
    """Return exp of the mean NLL per token, in nats."""
    return math.exp(min(nll / tokens, 700))  # beyond 709 it overflows
