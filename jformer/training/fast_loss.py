"""The gradient of a loss with the logits (tokens x V) of only some rows in memory."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jformer.training.loss import SUMS


def gradient_by_chunks(
    loss_of: Callable[..., tuple[Array, dict[str, Array]]],
    chunks: int,
    states_BTD: Array,
    output: Any,
    labels_BT: Array,
) -> tuple[tuple[Array, Any], dict[str, Array]]:
    """Return the gradients by states and output matrix, and the sums of metrics.

    `loss_of(states_BTD, output, labels_BT)` returns the loss and the sums of some rows. The
    gradients are computed together with the loss: later they would need the logits again.
    """
    gradient = jax.grad(loss_of, argnums=(0, 1), has_aux=True)
    rounded = jax.tree.map(lambda leaf: leaf.astype(states_BTD.dtype), output)

    def add_chunk(total, chunk):
        states_BTD, labels_BT = chunk
        (d_states_BTD, d_output), sums = gradient(states_BTD, rounded, labels_BT)
        return jax.tree.map(jnp.add, total, (d_output, sums)), d_states_BTD

    by_chunk = jax.tree.map(
        lambda rows_B: rows_B.reshape(chunks, -1, *rows_B.shape[1:]), (states_BTD, labels_BT)
    )
    zeros = (jax.tree.map(jnp.zeros_like, output), dict.fromkeys(SUMS, jnp.float32(0)))
    (d_output, sums), d_states = jax.lax.scan(add_chunk, zeros, by_chunk)
    return (d_states.reshape(states_BTD.shape), d_output), sums
