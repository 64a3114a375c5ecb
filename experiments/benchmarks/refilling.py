"""A benchmark of decoding speed, with and without early stopping and refilled places.

    python -m experiments.benchmarks.refilling --workdir=RUN --input=FILE [--beams=1,4,12]
                                              [--sentences=1000] [--rounds=3]

Three variants take turns in each round, after one round that compiles them:

    refill     as in `translate`: finished sentences leave, and the next ones take their places
    batches    places are refilled when all of them are free, and each has room to its limit
    to limits  batches, and each search continues to its limit, source + max_extra_length

The last, by far the slowest, is timed in one round only. Output tokens are those of the best
hypotheses, EOS counted.
"""

import argparse
import dataclasses
import functools
import itertools
import statistics
import time
from pathlib import Path

import jax

import jformer
from jformer.decoding import beam, decoder, pool
from jformer.run import Run

WAYS = ("refill", "batches", "to limits")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--beams", default="1,4,12")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    run = jformer.load(options.workdir)
    with options.input.open(encoding="utf-8") as file:
        sources = [line.rstrip("\n") for line in itertools.islice(file, options.sentences)]
    print(f"{len(sources)} sentences, {jax.local_devices()[0].device_kind}, {options.workdir}")
    for beam_size in map(int, options.beams.split(",")):
        measure(run.with_decode(beam_size=beam_size), sources, options.rounds)


def measure(run: Run, sources: list[str], rounds: int) -> None:
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    tokens = 0
    for number in range(rounds + 1):
        for way in WAYS if number < 2 else WAYS[:2]:
            as_way(way)
            began = time.monotonic()
            outputs = run.hypotheses(sources)
            if number:
                seconds[way].append(time.monotonic() - began)
            ids = run.vocabulary.encode([found[0].text for found in outputs])
            tokens = sum(len(row) + 1 for row in ids)
    base = seconds["refill"]
    for way in WAYS:
        median = statistics.median(seconds[way])
        ratios = [one / other for one, other in zip(seconds[way], base, strict=False)]
        print(
            f"beam {run.config.decode.beam_size:2}  {way:9} {len(sources) / median:7.1f} sentences"
            f"/s {tokens / median:7.0f} tokens/s  time to refill's {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f})",
            flush=True,
        )


class Batches(pool.Pool):
    def __init__(self, *of_decoder, parts, long):
        super().__init__(*of_decoder, parts=1, long=True)


EXTEND, POOL, SEARCH = beam.Beam.extend, pool.Pool, pool.run_searches


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=5)
def search_to_limits(*arguments):
    return SEARCH.__wrapped__(*arguments)


def as_way(way: str) -> None:
    decoder.Pool = POOL if way == "refill" else Batches
    beam.Beam.extend = to_limits if way == "to limits" else EXTEND
    pool.run_searches = search_to_limits if way == "to limits" else SEARCH


def to_limits(self, step, config, sentence, search, **rules):
    extended = EXTEND(self, step, config, sentence, search, **rules)
    return dataclasses.replace(extended, busy=extended.t < sentence.limit)


if __name__ == "__main__":
    main()
