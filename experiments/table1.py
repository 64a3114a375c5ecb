"""Table 1 of the paper, measured: the cost of a layer by sequence length and by width.

    python -m experiments.table1 [--lengths=256,512,1024,2048] [--widths=64,128,256,512]
                                 [--rounds=7]

Four layers map a sequence of shape (n, d) to another: self-attention, a recurrent layer, a
convolution with k taps, and self-attention restricted to the last r positions. The command times
the forward and backward pass of each. Memory is what XLA allocates for temporaries.

Lengths are measured at the second width, and widths at the second length. The exponent is the slope
between the last two sizes. The next column is the exponent that Table 1 gives for the operations;
the table has no exponent for memory. Only operations that the table counts are measured: attention
has no projections, which would add n d^2 operations.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jformer.console import aligned
from jformer.model.attention import attend

TAPS = 3  # k
NEAR = 16  # r


def self_attention(x_LD, weights):
    x_11LD, everywhere = x_LD[None, None], jnp.ones((1, 1, 1, 1), bool)
    return attend(x_11LD, x_11LD, x_11LD, everywhere)[0][0, 0]


def recurrent(x_LD, weights):
    def step(h_D, x_D):
        h_D = jnp.tanh(x_D @ weights["in_DD"] + h_D @ weights["own_DD"])
        return h_D, h_D

    return jax.lax.scan(step, jnp.zeros(x_LD.shape[1]), x_LD)[1]


def convolution(x_LD, weights):
    return jax.lax.conv_general_dilated(
        x_LD[None], weights["taps_KDD"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )[0]


def restricted(x_LD, weights):
    near_LRD = jnp.stack([jnp.roll(x_LD, back, axis=0) for back in range(NEAR)], axis=1)
    logits_LR = jnp.einsum("LD,LRD->LR", x_LD, near_LRD) / x_LD.shape[1] ** 0.5
    return jnp.einsum("LR,LRD->LD", jax.nn.softmax(logits_LR), near_LRD)


# The layer, and from Table 1: the exponents of n and d in the complexity, the number of
# sequential operations, and the maximum path length.
LAYERS: dict[str, tuple[Callable, tuple[int, int], str, str]] = {
    "self-attention": (self_attention, (2, 1), "O(1)", "O(1)"),
    "recurrent": (recurrent, (1, 2), "O(n)", "O(n)"),
    f"convolution, k={TAPS}": (convolution, (1, 2), "O(1)", "O(log_k(n))"),
    f"restricted, r={NEAR}": (restricted, (1, 1), "O(1)", "O(n/r)"),
}


def compiled(layer: Callable, n: int, d: int) -> tuple[Any, tuple]:
    """Return the compiled forward and backward pass of a layer, and its arguments."""
    keys = jax.random.split(jax.random.key(0), 4)
    weights = {
        "in_DD": jax.random.normal(keys[0], (d, d)) / d**0.5,
        "own_DD": jax.random.normal(keys[1], (d, d)) / d**0.5,
        "taps_KDD": jax.random.normal(keys[2], (TAPS, d, d)) / (TAPS * d) ** 0.5,
    }
    arguments = (jax.random.normal(keys[3], (n, d)), weights)
    gradient = jax.grad(lambda x_LD, weights: jnp.sum(layer(x_LD, weights) ** 2), argnums=(0, 1))
    return jax.jit(gradient).lower(*arguments).compile(), arguments


def measure(sizes: list[tuple[int, int]], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return the milliseconds and megabytes of every layer for each (n, d), measured in turns."""
    ready = {
        name: [compiled(layer, n, d) for n, d in sizes] for name, (layer, *_) in LAYERS.items()
    }
    seconds: dict[tuple[str, int], list[float]] = {}
    for _ in range(1 + rounds):
        for name, cases in ready.items():
            for number, (call, arguments) in enumerate(cases):
                began = time.perf_counter()
                jax.block_until_ready(call(*arguments))
                seconds.setdefault((name, number), []).append(time.perf_counter() - began)
    return {
        name: [
            (
                1e3 * statistics.median(seconds[name, number][1:]),
                call.memory_analysis().temp_size_in_bytes / 1e6,
            )
            for number, (call, _) in enumerate(cases)
        ]
        for name, cases in ready.items()
    }


def slope(values: list[float], sizes: list[int]) -> float:
    """Return the exponent of growth between the last two values; NaN if either is 0."""
    if not min(values[-2:]):
        return math.nan
    return math.log(values[-1] / values[-2]) / math.log(sizes[-1] / sizes[-2])


def at_least_two(text: str) -> list[int]:
    found = [int(size) for size in text.split(",")]
    if len(found) < 2 or min(found) < 1:
        raise ValueError
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=at_least_two, default="256,512,1024,2048")
    parser.add_argument("--widths", type=at_least_two, default="64,128,256,512")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    lengths, widths = options.lengths, options.widths
    grown = {
        "n": ([(n, widths[1]) for n in lengths], lengths),
        "d": ([(lengths[1], d) for d in widths], widths),
    }
    for axis, (letter, (cases, sizes)) in enumerate(grown.items()):
        found = measure(cases, options.rounds)
        lines = [["layer", *(f"{letter}={size}" for size in sizes), "exponent", "Table 1", ""]]
        for name, (_, exponents, sequential, path) in LAYERS.items():
            for number, unit in enumerate(("ms", "MB")):
                values = [each[number] for each in found[name]]
                known = [str(exponents[axis]), f"sequential {sequential}, path {path}"]
                cells = [*(f"{value:.2f}" for value in values), f"{slope(values, sizes):.2f}"]
                lines.append([f"{name}, {unit}", *cells, *(known if unit == "ms" else ["", ""])])
        print(aligned(lines), end="\n\n")


if __name__ == "__main__":
    main()
