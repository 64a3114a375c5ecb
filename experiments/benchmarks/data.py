"""A benchmark of the input pipeline: speed and memory with a small and a large corpus.

    python -m experiments.benchmarks.data [--prefix=PREFIX] [--languages=en,de]
                                          [--pairs=30000,4500000] [--folder=FOLDER]

The corpora repeat the lines of PREFIX.en and PREFIX.de, or by default of the embedded phrases;
repeated lines end with a number, so that no two are alike. Each corpus is prepared and read in
separate processes, first with an empty cache, then with a warm one. Each process prints a JSON
object: seconds of the parts, sentences tokenized per second, pairs batched per second, and the
peak of the resident memory in MB.
"""

import argparse
import dataclasses
import itertools
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BATCH_TOKENS = 25_000  # as in the paper


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prefix", default="", help="PREFIX of the lines to repeat")
    parser.add_argument("--languages", default="en,de")
    parser.add_argument("--pairs", default="30000,4500000")
    parser.add_argument("--folder", help="where the corpora and the cache are written")
    parser.add_argument("--process", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process:
        print(json.dumps(measure(**json.loads(options.process))), flush=True)
        return
    languages = options.languages.split(",")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for number in map(int, options.pairs.split(",")):
            write_corpus(Path(folder), options.prefix, languages, number)
            for batching, warm in (("buckets", False), ("buckets", True), ("packed", True)):
                task = {
                    "folder": folder,
                    "languages": languages,
                    "pairs": number,
                    "batching": batching,
                    "warm": warm,
                }
                command = [sys.executable, "-m", "experiments.benchmarks.data"]
                subprocess.run([*command, f"--process={json.dumps(task)}"], check=True)


def write_corpus(folder: Path, prefix: str, languages: list[str], number: int) -> None:
    """Write `number` pairs that repeat the original lines; repeated ones end with their index."""
    pairs = read_pairs(prefix, languages)
    files = [
        (folder / f"{number}.{language}").open("w", encoding="utf-8") for language in languages
    ]
    for i, texts in enumerate(itertools.islice(itertools.cycle(pairs), number)):
        for file, text in zip(files, texts, strict=True):
            file.write(f"{text} {i}\n" if i >= len(pairs) else f"{text}\n")
    for file in files:
        file.close()


def read_pairs(prefix: str, languages: list[str]) -> list[tuple[str, str]]:
    """Return the pairs of PREFIX, or where there is none those of the embedded phrases."""
    from jformer.data.corpora import Report, open_corpus, read
    from jformer.data.phrases import make_splits

    if prefix:
        return [pair[1:] for pair in read(open_corpus(prefix, *languages), "error", Report())]
    return list(zip(*make_splits(*languages, 40_000, seed=0)["train"], strict=True))


def measure(folder: str, languages: list[str], pairs: int, batching: str, warm: bool) -> dict:
    """Measure one process, from its start to the end of an epoch of batches."""
    began = time.perf_counter()
    from jformer.config import Config, DataConfig, TrainConfig
    from jformer.data.cache import content_hash
    from jformer.data.pipeline import make_batches, open_corpora
    from jformer.data.tokenize import make_vocabularies, tokenize_corpora, trainable

    prefix = f"{folder}/{pairs}"
    data = DataConfig(
        name="files", source_language=languages[0], target_language=languages[1], train=prefix,
        validation=prefix, vocabulary_size=8000, vocabulary_sample=30_000, batching=batching,
        max_length=128, cache=f"{folder}/cache",
    )  # fmt: skip
    config = dataclasses.replace(Config(), data=data, train=TrainConfig(batch_tokens=BATCH_TOKENS))
    seconds, last = {"import": time.perf_counter() - began}, time.perf_counter()

    def lap(name: str) -> None:
        nonlocal last
        seconds[name], last = time.perf_counter() - last, time.perf_counter()

    corpora = open_corpora(data, config.seed)["train"]
    content = content_hash(corpora)
    lap("hash")
    vocabularies = make_vocabularies(corpora, content, data)
    lap("vocabulary")
    tokenized = tokenize_corpora(corpora, content, vocabularies, data)
    lap("tokenize")
    rows = trainable(tokenized, data)
    batches = make_batches(config, tokenized.pairs, rows, vocabularies)
    batches.batch(0, 0)
    lap("plan and first batch")
    first = sum(seconds.values())
    for number in range(len(batches.epoch(0))):
        batches.batch(0, number)
    lap("epoch")
    return {
        "pairs": pairs,
        "batching": batching,
        "cache": "warm" if warm else "cold",
        "sentences_tokenized_per_second": None if warm else round(2 * pairs / seconds["tokenize"]),
        "pairs_batched_per_second": round(len(rows) / seconds["epoch"]),
        "seconds_to_first_batch": round(first, 2),
        "token_utilization": round(batches.token_utilization(), 4),
        "batches": len(batches.epoch(0)),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
    }


if __name__ == "__main__":
    main()
