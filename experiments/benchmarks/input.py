"""Whether the input pipeline keeps up with an accelerator, simulated by waiting.

    python -m experiments.benchmarks.input [--tokens=49152] [--milliseconds=40] [--pairs=300000]
        [--steps=100]

A step takes its batch from the prefetching thread, places it on the device, and lasts the given
time. Meanwhile the interpreter is `idle`, as when the host waits for the device, or `busy` with
Python code, which is the worst for a thread. `none` is a step of no time: all that the pipeline can
do. For each layout: target tokens per second, and the share of the time spent waiting for input.
"""

import argparse
import time

import numpy as np

from experiments.benchmarks import turns
from jformer.config import PAD, Config
from jformer.data.batches import Batches, Buckets, Packing, iterate
from jformer.data.tokens import Ragged, TokenPairs
from jformer.training import sharding

LENGTH, BUCKETS, MULTIPLE = 256, 8, 8
WARM_UP = 16  # batches: those that were made before the first step


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=49_152, help="of a side of a batch")
    parser.add_argument("--milliseconds", type=float, default=40, help="of a step")
    parser.add_argument("--pairs", type=int, default=300_000)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    pairs = random_pairs(options.pairs)
    lengths = (pairs.sources.lengths, pairs.targets.lengths)
    layouts = {
        "packed": Packing(*lengths, options.tokens, LENGTH, MULTIPLE),
        "buckets": Buckets(*lengths, options.tokens, BUCKETS, MULTIPLE),
    }
    rows = []
    for name, layout in layouts.items():
        batches = Batches(pairs, np.arange(options.pairs), layout, seed=0)
        for host in ("none", "idle", "busy"):
            seconds = 0 if host == "none" else options.milliseconds / 1000
            rate, waited = measure(batches, options.steps, seconds, host == "busy")
            rows.append([name, host, f"{rate:,.0f}", f"{waited:.1%}"])
    print(turns.machine())
    print(turns.markdown(["layout", "interpreter", "target tokens/s", "waiting for input"], rows))


def random_pairs(number: int) -> TokenPairs:
    """Return pairs of 4 to 60 tokens a side, about as long as those of WMT."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(4, 61, number)
    others = np.clip(lengths + rng.integers(-3, 4, number), 2, None)
    sides = [
        Ragged.from_lengths(rng.integers(3, 37_000, int(each.sum()), dtype=np.int32), each)
        for each in (lengths, others)
    ]
    return TokenPairs(*sides)


def measure(batches: Batches, steps: int, seconds: float, busy: bool) -> tuple[float, float]:
    """Return the target tokens per second, and the share of the time spent waiting for input."""
    mesh, tokens, waits = sharding.make_mesh(Config()), 0, []
    began = ended = time.perf_counter()
    for number, (batch, _) in enumerate(iterate(batches, WARM_UP + steps)):
        if number == WARM_UP:
            began, tokens, waits = ended, 0, []
        waits.append(time.perf_counter() - ended)
        sharding.shard_batch(batch, mesh)
        tokens += int((batch["labels_BT"] != PAD).sum())
        step(seconds, busy)
        ended = time.perf_counter()
    whole = ended - began
    return tokens / whole, sum(waits) / whole


def step(seconds: float, busy: bool) -> None:
    if not busy:
        time.sleep(seconds)
        return
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(100))


if __name__ == "__main__":
    main()
