"""The loss: cross-entropy with label smoothing (Section 5.4), as sums over tokens.

Sums and a token count, never means: a mean of means would depend on how sentences fall into
batches and onto devices.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

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
    return losses_of_logits(logits_BTV, labels_BT, label_smoothing, smoothing_over)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def losses_of_logits(
    logits_BTV: Array, labels_BT: Array, label_smoothing: float, smoothing_over: str
) -> tuple[Array, Array]:
    return losses_and_softmax(logits_BTV, labels_BT, label_smoothing, smoothing_over)[0]


def losses_and_softmax(
    logits_BTV: Array, labels_BT: Array, label_smoothing: float, smoothing_over: str
) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
    """Return the losses, and the softmax as exponentials (B, T, V) and their sums (B, T)."""
    V = logits_BTV.shape[-1]
    most_BT = jnp.max(logits_BTV, axis=-1)
    exps_BTV = jnp.exp(logits_BTV - most_BT[..., None])
    sums_BT = jnp.sum(exps_BTV, axis=-1)
    log_normalizer_BT = most_BT + jnp.log(sums_BT)
    # A gather: a one-hot product would cost another pass over (B, T, V).
    label_logit_BT = jnp.take_along_axis(logits_BTV, labels_BT[..., None], axis=-1)[..., 0]
    nll_BT = log_normalizer_BT - label_logit_BT
    uniform_BT = log_normalizer_BT - jnp.mean(logits_BTV, axis=-1)
    if smoothing_over == "others":
        uniform_BT = (V * uniform_BT - nll_BT) / (V - 1)
    if smoothing_over == "others_but_padding":
        padding_nll_BT = log_normalizer_BT - logits_BTV[..., PAD]
        uniform_BT = (V * uniform_BT - nll_BT - padding_nll_BT) / (V - 2)
    loss_BT = (1 - label_smoothing) * nll_BT + label_smoothing * uniform_BT
    return (loss_BT, nll_BT), (exps_BTV, sums_BT, labels_BT)


def gradient_of_loss(
    label_smoothing: float,
    smoothing_over: str,
    softmax_and_labels: tuple[Array, Array, Array],
    cotangents: tuple[Array, Array],
) -> tuple[Array, None]:
    """Return the gradient by the logits (B, T, V): the softmax less the smoothed labels.

    That of the likelihood is the softmax less the labels. JAX's own gradient computes the
    exponentials twice and scatters into a third array (B, T, V).
    """
    d_loss_BT, d_nll_BT = cotangents
    exps_BTV, sums_BT, labels_BT = softmax_and_labels
    V = exps_BTV.shape[-1]
    sharing = {"all": V, "others": V - 1, "others_but_padding": V - 2}[smoothing_over]
    share = label_smoothing / sharing
    label_share = 1 - label_smoothing + (share if smoothing_over == "all" else 0)
    tokens_11V = jnp.arange(V)[None, None]
    is_label_BTV = tokens_11V == labels_BT[..., None]
    target_BTV = jnp.where(is_label_BTV, label_share, share)
    if smoothing_over == "others_but_padding":
        target_BTV = jnp.where(tokens_11V == PAD, 0, target_BTV)
    # In a train step the likelihood has no gradient, and XLA leaves its part out.
    softmax_BTV = exps_BTV * ((d_loss_BT + d_nll_BT) / sums_BT)[..., None]
    of_labels_BTV = target_BTV * d_loss_BT[..., None]
    of_labels_BTV += jnp.where(is_label_BTV, d_nll_BT[..., None], 0)
    return softmax_BTV - of_labels_BTV, None


losses_of_logits.defvjp(losses_and_softmax, gradient_of_loss)


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
def loss_by_chunks(
    sums_of: Callable[..., dict[str, Array]],
    chunks: int,
    states_BTD: Array,
    output_VD: Array,
    labels_BT: Array,
    all_tokens: Array,
) -> tuple[Array, dict[str, Array]]:
    """Return the loss over `all_tokens`, and `sums_of(states_BTD, output_VD, labels_BT)`.

    `sums_of` makes the logits, of which only those of one chunk of the rows are in memory at a
    time. The loss alone has a gradient. It is computed together with the sums: a backward pass of
    its own would have to keep all logits, or to compute them twice.
    """
    return loss_and_gradients(sums_of, chunks, states_BTD, output_VD, labels_BT, all_tokens)[0]


def loss_and_gradients(
    sums_of: Callable,
    chunks: int,
    states_BTD: Array,
    output_VD: Array,
    labels_BT: Array,
    all_tokens: Array,
) -> tuple[tuple[Array, dict[str, Array]], tuple[Array, Array]]:
    """Return the result of `loss_by_chunks`, and the gradients by states and output."""

    def loss_and_sums(states_BTD, output_VD, labels_BT):
        sums = sums_of(states_BTD, output_VD, labels_BT)
        return sums["loss"] / all_tokens, sums

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
    gradients = (d_states.reshape(states_BTD.shape), d_output_VD)
    return (sums["loss"] / all_tokens, sums), gradients


def scale_gradients(
    _sums_of: Callable, _chunks: int, gradients: tuple[Array, Array], cotangents: tuple[Array, Any]
) -> tuple[Array, Array, None, None]:
    d_states_BTD, d_output_VD = gradients
    scale, _ = cotangents  # the constant 1 in a train step, where XLA leaves the products out
    return (d_states_BTD * scale).astype(d_states_BTD.dtype), d_output_VD * scale, None, None


loss_by_chunks.defvjp(loss_and_gradients, scale_gradients)


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
