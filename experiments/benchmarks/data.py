"""Benchmark the input pipeline against PyTorch's, with a small and a large corpus.

    python -m experiments.benchmarks.data [--prefix=PREFIX] [--languages=en,de]
        [--pairs=30000,4500000] [--folder=FOLDER] [--contenders NAME ...] [--rounds=3]
        [--json=FILE]

The corpora repeat the lines of PREFIX.en and PREFIX.de, or by default the embedded phrases.
Repeated lines end with a number, which makes each line unique. Each contender learns a vocabulary,
tokenizes the corpus, and makes an epoch of batches in each round:

- `jformer`: length buckets, with an empty cache
- `jformer cached`, `jformer packed`: buckets and packed rows, with the cache of `jformer`
- `torch`, `torch workers`: PyTorch's DataLoader over tensors in memory, with batches of similar
  lengths, in the same process or in two others

The time to the first batch includes the vocabulary. Memory excludes other processes.
"""

import argparse
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.benchmarks import turns

BATCH_TOKENS = 25_000  # as in the paper
VOCABULARY_SIZE = 8000
MAX_LENGTH = 128


def main() -> None:
    parser = turns.make_parser(__doc__, rounds=3, contenders=[*PIPELINES])
    parser.add_argument("--prefix", default="", help="repeat the lines of these files")
    parser.add_argument("--languages", default="en,de")
    parser.add_argument("--pairs", default="30000,4500000")
    parser.add_argument("--folder", help="folder for the corpora and the cache")
    options = parser.parse_args()
    results: dict[int, list[turns.Result]] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for pairs in map(int, options.pairs.split(",")):
            prefix = Path(folder, str(pairs))
            write_corpus(prefix, options, pairs)
            results[pairs] = []
            for name in options.contenders:
                make, *arguments = PIPELINES[name]
                work = (str(prefix), options.languages.split(","), *arguments)
                # One at a time, because a large corpus takes gigabytes of memory.
                results[pairs] += turns.take_turns({name: (make, work)}, options.rounds)
    tables = [f"{pairs:,} pairs:\n\n{table(each)}" for pairs, each in results.items()]
    turns.publish("Input pipelines", "\n\n".join(tables), results, options)


def table(results: list[turns.Result]) -> str:
    def cells(result: turns.Result) -> list[str]:
        facts, rate = result.answer, result.answer["sentences_per_second"]
        return [
            f"{rate:,.0f}" if rate else "",
            turns.spread([facts["pairs"] / seconds for seconds in result.seconds], digits=0),
            f"{facts['first_batch']:.1f}",
            f"{facts['utilization']:.2f}",
            f"{result.memory / 1e6:,.0f}",
        ]

    header = ["sentences tokenized per second", "pairs batched per second"]
    header += ["seconds to the first batch", "token utilization", "memory, MB"]
    return turns.table(header, results, cells)


def write_corpus(prefix: Path, options: argparse.Namespace, number: int) -> None:
    """Write `number` pairs that repeat the original lines. Repeated lines end with their index."""
    from jformer.data.corpora import open_corpus, read
    from jformer.data.datasets import read_phrases

    languages = options.languages.split(",")
    if options.prefix:
        pairs = [pair[1:] for pair in read(open_corpus(options.prefix, *languages))]
    else:
        pairs = read_phrases(*languages)["train"]
    for side, language in enumerate(languages):
        with open(f"{prefix}.{language}", "w", encoding="utf-8") as file:
            for i, pair in enumerate(itertools.islice(itertools.cycle(pairs), number)):
                file.write(f"{pair[side]} {i}\n" if i >= len(pairs) else f"{pair[side]}\n")


def ours(prefix: str, languages: list[str], batching: str, cached: bool) -> Callable[[], Any]:
    import jformer
    from jformer.data import tokens
    from jformer.data.batches import make_batches
    from jformer.data.datasets import open_corpora

    began, cache = time.perf_counter(), f"{prefix}.cache"
    if not cached:
        shutil.rmtree(cache, ignore_errors=True)
    keys = {
        "data.source_language": languages[0],
        "data.target_language": languages[1],
        "data.train": prefix,
        "data.validation": prefix,
        "data.vocabulary_size": VOCABULARY_SIZE,
        "data.batching": batching,
        "data.max_length": MAX_LENGTH,
        "data.cache": cache,
        "train.batch_tokens": BATCH_TOKENS,
    }
    config = jformer.get_config("base:files", **keys)
    corpora = open_corpora(config)["train"]
    vocabularies = tokens.make_vocabularies(corpora, config.data)
    tokenizing = time.perf_counter()
    tokenized = tokens.tokenize_corpora(corpora, vocabularies, config.data)
    tokenizing = time.perf_counter() - tokenizing
    batches = make_batches(config, tokenized.pairs, tokenized.rows, vocabularies)
    batches.batch(0, 0)
    facts = {
        "sentences_per_second": None if cached else 2 * len(tokenized.rows) / tokenizing,
        "pairs": len(tokenized.rows),
        "first_batch": time.perf_counter() - began,
        "utilization": batches.token_utilization(),
    }
    epochs = itertools.count()

    def turn() -> dict[str, float]:
        epoch = next(epochs)
        for number in range(len(batches.epoch(epoch))):
            batches.batch(epoch, number)
        return facts

    return turn


def with_torch(prefix: str, languages: list[str], workers: int) -> Callable[[], Any]:
    from experiments.benchmarks import pytorch_data
    from jformer.data.vocabulary import Vocabulary

    began = time.perf_counter()
    sides = [turns.read_lines(f"{prefix}.{language}") for language in languages]
    vocabulary = Vocabulary.train(itertools.chain(*sides), VOCABULARY_SIZE)
    tokenizing = time.perf_counter()
    ids = [pytorch_data.encode(vocabulary, side) for side in sides]
    tokenizing = time.perf_counter() - tokenizing
    pairs = pytorch_data.no_longer_than(MAX_LENGTH, *ids)
    loader = pytorch_data.make_loader(pairs, BATCH_TOKENS, workers)
    next(iter(loader))
    tokens = sum(len(text) for pair in pairs for text in pair)
    facts = {
        "sentences_per_second": 2 * len(sides[0]) / tokenizing,
        "pairs": len(pairs),
        "first_batch": time.perf_counter() - began,
    }

    def turn() -> dict[str, float]:
        positions = sum(source.numel() + labels.numel() for source, _, labels in loader)
        return {**facts, "utilization": tokens / positions}

    return turn


# Functions that make a contender, and their last arguments.
PIPELINES = {
    "jformer": (ours, "buckets", False),
    "jformer cached": (ours, "buckets", True),
    "jformer packed": (ours, "packed", True),
    "torch": (with_torch, 0),
    "torch workers": (with_torch, 2),
}

if __name__ == "__main__":
    main()
