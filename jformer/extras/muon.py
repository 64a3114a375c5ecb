"""Muon (Jordan et al. 2024): momentum whose matrices are made nearly orthogonal.

Gradients of the kernels of attention and of the feed-forward network are mostly of low rank. An
orthogonal update moves equally far in all directions. Adam updates all other parameters, such as
embeddings, norms, and the kernels of the user's own parts.
"""

import itertools
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import optax
from jax import Array

from jformer.training.optimizer import decay_mask

D_FIRST = ("query", "key", "value", "ffn_in")  # kernels (D, H, K) and (D, F); others have D last
KERNELS = (*D_FIRST, "out", "ffn_out")
BLOCK = 64  # hidden units per matrix: the cost of products grows with its square
ITERATIONS = 3  # Jordan uses 5, with larger matrices
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of Jordan's polynomial
# Root mean square of the entries of an update. It is close to Adam's, so that Adam's learning rates
# and weight decay fit (Liu et al. 2025, "Muon is scalable for LLM training").
RMS = 0.2


def muon(
    *,
    momentum: float = 0.95,
    weight_decay: float = 0.0,
    adam_factor: float = 1.0,
    beta1: float = 0.9,
    beta2: float = 0.98,
    epsilon: float = 1e-9,
) -> optax.GradientTransformation:
    """Return Muon for the kernels of attention and feed-forward network, and Adam for the rest.

    `adam_factor` multiplies Adam's updates. All matrices decay.
    """
    kernels = optax.chain(optax.trace(momentum, nesterov=True), orthogonalize())
    adam = optax.chain(optax.scale_by_adam(beta1, beta2, epsilon), optax.scale(adam_factor))
    both = optax.partition({"muon": kernels, "adam": adam}, which)
    return optax.chain(both, optax.add_decayed_weights(weight_decay, decay_mask))


def which(params: optax.Params) -> optax.Params:
    """Return the name of the optimizer that updates each parameter."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: "muon" if layer_of(path) in KERNELS else "adam", params
    )


def layer_of(path: tuple) -> str:
    """Return the name of the linear layer that owns a kernel; empty for other parameters."""
    names = ["", *jax.tree_util.keystr(path, simple=True, separator="/").split("/")]
    return names[-2] if names[-1] == "kernel" else ""


def orthogonalize() -> optax.GradientTransformation:
    """Return a transformation that makes the matrices of kernels nearly orthogonal."""

    def update(updates, state, params=None):
        leaves, tree = jax.tree_util.tree_flatten_with_path(updates)
        layers = [layer_of(path) for path, _ in leaves]
        stacks = [to_matrices(layer, leaf) for layer, (_, leaf) in zip(layers, leaves, strict=True)]
        results: dict[tuple[int, ...], Iterator[Array]] = {}
        # One program for all matrices of a shape: one program per matrix compiles far longer.
        for shape in sorted({stack.shape[1:] for stack in stacks}):
            same = [stack for stack in stacks if stack.shape[1:] == shape]
            ends = list(itertools.accumulate(map(len, same)))
            together_NKD = RMS * max(shape) ** 0.5 * nearly_orthogonal(jnp.concatenate(same))
            results[shape] = iter(jnp.split(together_NKD, ends[:-1]))
        kernels = [
            from_matrices(layer, next(results[stack.shape[1:]]))
            for layer, stack in zip(layers, stacks, strict=True)
        ]
        return jax.tree.unflatten(tree, kernels), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def to_matrices(layer: str, kernel: Array) -> Array:
    """Return a kernel as matrices (N, K, D): one per head, or one per block of units."""
    if layer in D_FIRST:
        kernel = jnp.moveaxis(kernel, 0, -1)
    if kernel.ndim == 3:
        return kernel
    F, D = kernel.shape
    return kernel.reshape(-1, math.gcd(F, BLOCK), D)


def from_matrices(layer: str, matrices_NKD: Array) -> Array:
    """Return the kernel, the inverse of `to_matrices`."""
    if layer.startswith("ffn"):
        matrices_NKD = matrices_NKD.reshape(-1, matrices_NKD.shape[-1])
    return jnp.moveaxis(matrices_NKD, -1, 0) if layer in D_FIRST else matrices_NKD


def nearly_orthogonal(x_NKD: Array) -> Array:
    """Move all singular values close to 1 by a polynomial of the matrix (Newton-Schulz)."""
    a, b, c = COEFFICIENTS
    x_NKD /= jnp.linalg.norm(x_NKD, axis=(1, 2), keepdims=True) + 1e-8
    for _ in range(ITERATIONS):
        gram_NKK = jnp.einsum("NKD,NLD->NKL", x_NKD, x_NKD)
        x_NKD = a * x_NKD + (b * gram_NKK + c * gram_NKK @ gram_NKK) @ x_NKD
    return x_NKD
