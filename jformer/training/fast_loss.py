"""The loss of loss.py with fewer passes over the logits (tokens x V), for training.

`cross_entropy` has a custom gradient, written once in the dtype of the logits. `loss_by_chunks`
keeps the logits of only some rows in memory. Tests compare both with the plain form.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jformer.backend import target_platform
from jformer.model.shapes import checked
from jformer.training.loss import SUMS


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def cross_entropy(
    logits_BTV: Array, labels_BT: Array, label_smoothing: float, mean_logits_BT: Array | None = None
) -> tuple[Array, Array]:
    """Return the same as `cross_entropy` in loss.py.

    Logits can have any dtype, and their gradient has the same dtype. All sums are in float32.
    Passing the means of the logits saves a pass over them.
    """
    return losses_and_residuals(logits_BTV, labels_BT, label_smoothing, mean_logits_BT)[0]


@checked
def losses_and_residuals(
    logits_BTV: Array, labels_BT: Array, label_smoothing: float, mean_logits_BT: Array | None
) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    """Return the losses, and the residuals of the gradient."""
    if mean_logits_BT is None:
        mean_logits_BT = jnp.mean(logits_BTV, axis=-1, dtype=jnp.float32)
    max_BT, sum_BT, label_logit_BT = statistics(logits_BTV, labels_BT)
    log_normalizer_BT = max_BT + jnp.log(sum_BT)
    nll_BT = log_normalizer_BT - label_logit_BT
    uniform_BT = log_normalizer_BT - mean_logits_BT
    loss_BT = (1 - label_smoothing) * nll_BT + label_smoothing * uniform_BT
    return (loss_BT, nll_BT), (logits_BTV, max_BT, sum_BT, labels_BT)


def statistics(logits_BTV: Array, labels_BT: Array) -> tuple[Array, Array, Array]:
    """Return the maximum, the sum of exp(logit - maximum) and the label's logit: float32 (B, T)."""
    if target_platform() != "cpu":
        return statistics_in_one_pass(logits_BTV, labels_BT)
    logits_BTV = logits_BTV.astype(jnp.float32)
    max_BT = jnp.max(logits_BTV, axis=-1)
    sum_BT = jnp.sum(jnp.exp(logits_BTV - max_BT[..., None]), axis=-1)
    label_logit_BT = jnp.take_along_axis(logits_BTV, labels_BT[..., None], axis=-1)[..., 0]
    return max_BT, sum_BT, label_logit_BT


def statistics_in_one_pass(logits_BTV: Array, labels_BT: Array) -> tuple[Array, Array, Array]:
    """Return the same, in one pass over memory (Milakov and Gimelshein 2018, arXiv 1805.02867).

    This is slower on a CPU, because XLA combines one element at a time there.
    """

    def combine(a: tuple[Array, ...], b: tuple[Array, ...]) -> tuple[Array, ...]:
        (a_max, a_sum, a_label), (b_max, b_sum, b_label) = a, b
        factor = jnp.exp(-jnp.abs(a_max - b_max))
        total = jnp.where(a_max >= b_max, a_sum + factor * b_sum, factor * a_sum + b_sum)
        return jnp.maximum(a_max, b_max), total, a_label + b_label

    logits_BTV = logits_BTV.astype(jnp.float32)
    is_label_BTV = jnp.arange(logits_BTV.shape[-1])[None, None] == labels_BT[..., None]
    label_logits_BTV = jnp.where(is_label_BTV, logits_BTV, 0)
    values = (logits_BTV, jnp.ones_like(logits_BTV), label_logits_BTV)
    # finfo.min and not -inf: -inf minus -inf is NaN.
    lowest = jnp.finfo(jnp.float32).min
    return jax.lax.reduce(values, (lowest, jnp.float32(0), jnp.float32(0)), combine, (2,))


def gradient_of_loss(
    label_smoothing: float, residuals: tuple[Array, ...], cotangents: tuple[Array, Array]
) -> tuple[Array, None, None]:
    """Return the gradient with respect to the logits: (B, T, V).

    For the loss it is the softmax minus the smoothed labels, for the NLL the softmax minus the
    labels. It includes the gradient through the mean of the logits, so `mean_logits_BT` gets none.
    JAX's own gradient would scatter into another array (B, T, V).
    """
    d_loss_BT, d_nll_BT = cotangents
    logits_BTV, max_BT, sum_BT, labels_BT = residuals
    V = logits_BTV.shape[-1]
    share = label_smoothing / V
    label_share = 1 - label_smoothing + share
    tokens_11V = jnp.arange(V)[None, None]
    is_label_BTV = tokens_11V == labels_BT[..., None]
    target_BTV = jnp.where(is_label_BTV, label_share, share)
    # Recomputed: on a GPU, an exponential is cheaper than a read from memory.
    exps_BTV = jnp.exp(logits_BTV.astype(jnp.float32) - max_BT[..., None])
    # In a train step the NLL has no gradient, and XLA drops its terms.
    d_logits_BTV = exps_BTV * ((d_loss_BT + d_nll_BT) / sum_BT)[..., None]
    d_logits_BTV -= target_BTV * d_loss_BT[..., None]
    d_logits_BTV -= jnp.where(is_label_BTV, d_nll_BT[..., None], 0)
    return d_logits_BTV.astype(logits_BTV.dtype), None, None


cross_entropy.defvjp(losses_and_residuals, gradient_of_loss)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def loss_by_chunks(
    sums_of: Callable[..., dict[str, Array]],
    chunks: int,
    logits_dtype: str,
    states_BTD: Array,
    output_VD: Array,
    labels_BT: Array,
    all_tokens: Array,
) -> tuple[Array, dict[str, Array]]:
    """Return the loss over `all_tokens`, and `sums_of(logits_BTV, labels_BT, mean_logits_BT)`.

    Only the logits of one chunk of the rows are in memory at a time. Only the loss has a gradient.
    The forward pass computes it together with the sums: a separate backward pass would have to keep
    all logits, or to compute them twice.
    """
    arrays = states_BTD, output_VD, labels_BT, all_tokens
    return loss_and_gradients(sums_of, chunks, logits_dtype, *arrays)[0]


def loss_and_gradients(
    sums_of: Callable[..., dict[str, Array]],
    chunks: int,
    logits_dtype: str,
    states_BTD: Array,
    output_VD: Array,
    labels_BT: Array,
    all_tokens: Array,
) -> tuple[tuple[Array, dict[str, Array]], tuple[Array, Array]]:
    """Return the result of `loss_by_chunks`, and the gradients by states and output."""
    matrix_VD, mean_D = output_VD.astype(states_BTD.dtype), jnp.mean(output_VD, axis=0)

    @functools.partial(jax.grad, has_aux=True)
    def gradient(logits_BTV, labels_BT, mean_logits_BT):
        sums = sums_of(logits_BTV, labels_BT, mean_logits_BT)
        return sums["loss"] / all_tokens, sums

    def add_chunk(total, chunk):
        states_BTD, labels_BT = chunk
        logits_BTV = jnp.einsum(
            "BTD,VD->BTV", states_BTD, matrix_VD, preferred_element_type=logits_dtype
        )
        # The mean over V commutes with the product, which saves a pass over the logits.
        mean_logits_BT = jnp.sum(states_BTD.astype(jnp.float32) * mean_D[None, None], axis=-1)
        d_logits_BTV, sums = gradient(logits_BTV, labels_BT, mean_logits_BT)
        d_logits_BTV = d_logits_BTV.astype(states_BTD.dtype)
        d_states_BTD = jnp.einsum("BTV,VD->BTD", d_logits_BTV, matrix_VD)
        d_output_VD = jnp.einsum(
            "BTV,BTD->VD", d_logits_BTV, states_BTD, preferred_element_type=jnp.float32
        )
        return jax.tree.map(jnp.add, total, (sums, d_output_VD)), d_states_BTD

    by_chunk = jax.tree.map(
        lambda rows_B: rows_B.reshape(chunks, -1, *rows_B.shape[1:]), (states_BTD, labels_BT)
    )
    zeros = (dict.fromkeys(SUMS, jnp.float32(0)), jnp.zeros_like(output_VD))
    (sums, d_output_VD), d_states = jax.lax.scan(add_chunk, zeros, by_chunk)
    gradients = (d_states.reshape(states_BTD.shape), d_output_VD)
    return (sums["loss"] / all_tokens, sums), gradients


def scale_gradients(
    sums_of: Callable,
    chunks: int,
    logits_dtype: str,
    gradients: tuple[Array, Array],
    cotangents: tuple[Array, Any],
) -> tuple[Array, Array, None, None]:
    """Return the gradients of all arguments, given the gradient by the loss.

    It is 1 in a train step, so XLA drops the products.
    """
    d_states_BTD, d_output_VD = gradients
    scale, _ = cotangents
    return (d_states_BTD * scale).astype(d_states_BTD.dtype), d_output_VD * scale, None, None


loss_by_chunks.defvjp(loss_and_gradients, scale_gradients)
