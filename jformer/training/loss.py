"""The loss: cross-entropy with label smoothing (Section 5.4), as sums over tokens.

Sums and a token count, never means: a mean of means would depend on how sentences fall into
batches and onto devices.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from jformer.config import PAD
from jformer.model.shapes import checked

SUMS = ("loss", "nll", "tokens")


@checked
def token_losses(
    logits_BTV: Array, labels_BT: Array, label_smoothing: float, smoothing_over: str
) -> tuple[Array, Array]:
    """Return the smoothed loss and the negative log-likelihood of each label, in nats: (B, T) each.

    Smoothing takes epsilon from the label and shares it evenly among entries of the vocabulary:
    `all` of them (which leaves 1 - epsilon + epsilon / V for the label), the `others`, or the
    `others_but_padding`. Perplexity is exp of the mean NLL, never of the smoothed loss.
    """
    logits_BTV = logits_BTV.astype(jnp.float32)
    V = logits_BTV.shape[-1]
    log_normalizer_BT = jax.nn.logsumexp(logits_BTV, axis=-1)
    # A gather: a one-hot product would cost another pass over (B, T, V), and two in the gradient.
    label_logit_BT = jnp.take_along_axis(logits_BTV, labels_BT[..., None], axis=-1)[..., 0]
    nll_BT = log_normalizer_BT - label_logit_BT
    uniform_BT = log_normalizer_BT - jnp.mean(logits_BTV, axis=-1)
    if smoothing_over == "others":
        uniform_BT = (V * uniform_BT - nll_BT) / (V - 1)
    if smoothing_over == "others_but_padding":
        padding_nll_BT = log_normalizer_BT - logits_BTV[..., PAD]
        uniform_BT = (V * uniform_BT - nll_BT - padding_nll_BT) / (V - 2)
    return (1 - label_smoothing) * nll_BT + label_smoothing * uniform_BT, nll_BT


def loss_sums(
    logits_BTV: Array, labels_BT: Array, label_smoothing: float, smoothing_over: str
) -> dict[str, Array]:
    """Return sums over the tokens without padding: `{"loss": .., "nll": .., "tokens": ..}`."""
    loss_BT, nll_BT = token_losses(logits_BTV, labels_BT, label_smoothing, smoothing_over)
    weights_BT = (labels_BT != PAD).astype(jnp.float32)
    return {
        "loss": jnp.sum(loss_BT * weights_BT),
        "nll": jnp.sum(nll_BT * weights_BT),
        "tokens": jnp.sum(weights_BT),
    }


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def sum_by_chunks(
    sums_of: Callable[..., dict[str, Array]],
    chunks: int,
    states_BTD: Array,
    output_VD: Array,
    labels_BT: Array,
) -> dict[str, Array]:
    """Add up `sums_of(states_BTD, output_VD, labels_BT)` over chunks of the rows.

    `sums_of` makes the logits, of which only those of one chunk are in memory at a time. Among the
    sums only "loss" has a gradient. It is computed together with the sums: a backward pass of its
    own would have to keep all logits, or to compute them twice.
    """
    return sums_and_gradients(sums_of, chunks, states_BTD, output_VD, labels_BT)[0]


def sums_and_gradients(
    sums_of: Callable, chunks: int, states_BTD: Array, output_VD: Array, labels_BT: Array
) -> tuple[dict[str, Array], tuple[Array, Array]]:
    """Return the sums, and the gradients of the loss by states and output."""

    def loss_and_sums(states_BTD, output_VD, labels_BT):
        sums = sums_of(states_BTD, output_VD, labels_BT)
        return sums["loss"], sums

    def add_chunk(total, chunk):
        states_BTD, labels_BT = chunk
        gradient = jax.grad(loss_and_sums, argnums=(0, 1), has_aux=True)
        (d_states_BTD, d_output_VD), sums = gradient(states_BTD, output_VD, labels_BT)
        return jax.tree.map(jnp.add, total, (sums, d_output_VD)), d_states_BTD

    by_chunk = jax.tree.map(
        lambda rows_B: rows_B.reshape(chunks, -1, *rows_B.shape[1:]), (states_BTD, labels_BT)
    )
    nothing = (dict.fromkeys(SUMS, jnp.float32(0)), jnp.zeros_like(output_VD))
    (sums, d_output_VD), d_states = jax.lax.scan(add_chunk, nothing, by_chunk)
    return sums, (d_states.reshape(states_BTD.shape), d_output_VD)


def scale_gradients(
    _sums_of: Callable, _chunks: int, gradients: tuple[Array, Array], cotangents: dict[str, Array]
) -> tuple[Array, Array, None]:
    d_states_BTD, d_output_VD = gradients
    scale = cotangents["loss"]
    return (d_states_BTD * scale).astype(d_states_BTD.dtype), d_output_VD * scale, None


sum_by_chunks.defvjp(sums_and_gradients, scale_gradients)


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
    """Return exp of the mean NLL per token; inf where that overflows."""
    try:
        return math.exp(nll / tokens)
    except OverflowError:
        return math.inf
