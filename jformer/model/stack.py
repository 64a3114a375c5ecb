"""Stacks of layers that compile faster or use less memory, with the same result."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from jformer.config import ModelConfig


def scan_layers(layers: list, key: Array | None, x_BLD: Array, *arguments: Any) -> Array:
    """Run one compiled layer in a loop over the stacked parameters of all layers.

    They are stacked here, so that the parameter tree is the same as without the loop.
    """
    params = [layer.variables["params"] for layer in layers]
    # One key per layer: masks are as random as in the unrolled model, but not identical.
    keys = None if key is None else jax.random.split(key, len(layers))
    free_layer = layers[0].clone(parent=None)  # a function of its parameters

    def run_layer(x_BLD, params_and_key):
        params, key = params_and_key
        rngs = {} if key is None else {"dropout": key}
        return free_layer.apply({"params": params}, x_BLD, *arguments, rngs=rngs), None

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)
    return jax.lax.scan(run_layer, x_BLD, (stacked, keys))[0]


def rematerialized(layer: type[nn.Module], config: ModelConfig, train_argument: int) -> Any:
    """Return the layer's class; it recomputes in the backward pass what `model.remat` selects."""
    if config.remat == "none":
        return layer
    policy = jax.checkpoint_policies.dots_saveable if config.remat == "dots" else None
    # `train` is not an array; self is argument 0. XLA must not merge the second computation with
    # the first; in the two loops of a scan it cannot. On a CPU it does: only a scan saves memory.
    prevent_cse = not config.scan_layers
    return nn.remat(layer, policy=policy, static_argnums=train_argument, prevent_cse=prevent_cse)
