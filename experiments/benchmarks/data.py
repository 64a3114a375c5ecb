"""Benchmark the input pipeline against other projects, with a small and a large corpus.

    python -m experiments.benchmarks.data [--prefix=PREFIX] [--languages=en,de]
        [--pairs=30000,4500000] [--folder=FOLDER] [--contenders=torch,datasets,...] [--rounds=1]

The corpora repeat the lines of PREFIX.en and PREFIX.de, or by default the embedded phrases.
Repeated lines end with a number, which makes each line unique. Each contender prepares and reads
the corpus in its own process:

- jformer with an empty cache, with a warm cache, and with packing
- PyTorch's DataLoader over ids in memory, with and without workers
- Hugging Face's `datasets`, grouped by length
- grain, one pair at a time in random order

Each process prints a JSON object: the seconds of each part, sentences tokenized per second, pairs
batched per second, and its own peak resident memory in MB, without workers. At the end, the command
prints a table of medians over the rounds, with their spread.
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
from typing import Any

from experiments.benchmarks import turns

BATCH_TOKENS = 25_000  # as in the paper
VOCABULARY_SIZE, VOCABULARY_SAMPLE = 8000, 30_000
MAX_LENGTH = 128
OURS = "jformer"
WAYS = (("buckets", False), ("buckets", True), ("packed", True))  # batching, warm cache
PEERS = ("torch", "torch workers", "datasets", "grain")
# The columns of the table, with their number of decimals.
SHOWN = {
    "sentences_tokenized_per_second": 0,
    "pairs_batched_per_second": 0,
    "seconds_to_first_batch": 2,
    "token_utilization": 2,
    "peak_rss_mb": 0,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prefix", default="", help="repeat the lines of these files")
    parser.add_argument("--languages", default="en,de")
    parser.add_argument("--pairs", default="30000,4500000")
    parser.add_argument("--folder", help="folder for the corpora and the cache")
    parser.add_argument("--contenders", help="comma-separated names; default: all", default="")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--process", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process:
        print(json.dumps(measure(**json.loads(options.process))), flush=True)
        return
    languages = options.languages.split(",")
    names = list(turns.chosen(parser, dict.fromkeys((OURS, *PEERS)), options.contenders))
    found = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for pairs in map(int, options.pairs.split(",")):
            write_corpus(Path(folder), options.prefix, languages, pairs)
            for number in range(options.rounds):
                for name in turns.in_order(names, number):
                    task = {"folder": folder, "languages": languages, "pairs": pairs}
                    for variant in ours_in(number) if name == OURS else [{}]:
                        found.append(start({"contender": name, **task, **variant}))
    print(f"\n{turns.machine()}\n\n{table(found)}")


def ours_in(number: int) -> list[dict[str, Any]]:
    """Return jformer's tasks in a round. Each round starts with an empty cache."""
    cache = f"cache{number}"
    return [{"batching": batching, "warm": warm, "cache": cache} for batching, warm in WAYS]


def start(task: dict[str, Any]) -> dict[str, Any]:
    """Measure in a new process; print and return its result."""
    command = [sys.executable, "-m", "experiments.benchmarks.data", f"--process={json.dumps(task)}"]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    print(result.stdout, end="", flush=True)
    return json.loads(result.stdout)


def table(found: list[dict[str, Any]]) -> str:
    """Return the table of medians. If a contender failed, its row has the error instead."""
    rows: dict[tuple, list[dict]] = {}
    for result in found:
        key = f"{result['pairs']:,}", result["contender"], result["cache"]
        rows.setdefault(key, []).append(result)
    lines = []
    for key, rounds in rows.items():
        cells = [rounds[0].get("error", ""), *[""] * (len(SHOWN) - 1)]
        if not cells[0]:
            columns = [([each[name] for each in rounds], SHOWN[name]) for name in SHOWN]
            cells = ["" if None in column else turns.spread(column, n) for column, n in columns]
        lines.append([*key, *cells])
    header = ["pairs", "", "cache", *(name.replace("_", " ") for name in SHOWN)]
    return turns.markdown(header, lines)


def write_corpus(folder: Path, prefix: str, languages: list[str], number: int) -> None:
    """Write `number` pairs that repeat the original lines. Repeated lines end with their index."""
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
    """Return the pairs of PREFIX, or the embedded phrases if PREFIX is empty."""
    from jformer.data.corpora import Report, open_corpus, read
    from jformer.data.phrases import make_splits

    if prefix:
        return [pair[1:] for pair in read(open_corpus(prefix, *languages), "error", Report())]
    return list(zip(*make_splits(*languages, 40_000, seed=0)["train"], strict=True))


class Laps:
    """A stopwatch for the consecutive parts of a process."""

    def __init__(self):
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def __call__(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name], self._last = now - self._last, now


def measure(contender: str, folder: str, languages: list[str], pairs: int, **way: Any) -> dict:
    """Measure this process, from its start to the end of an epoch."""
    lap, prefix = Laps(), f"{folder}/{pairs}"
    row = {"pairs": pairs, "contender": contender, "cache": ""}
    if contender == OURS:
        row["contender"] += f", {way['batching']}"
        row["cache"] = "warm" if way["warm"] else "cold"
        facts = ours(lap, prefix, languages, way["batching"], f"{folder}/{way['cache']}")
    else:
        try:
            from experiments.benchmarks import data_peers

            facts = data_peers.measure(contender, lap, prefix, languages)
        except ImportError as error:
            return {**row, "error": str(error)}
    seconds = lap.seconds
    first = sum(seconds.values()) - seconds["epoch"]
    tokenized = None if way.get("warm") else round(2 * pairs / seconds["tokenize"])
    return {
        **row,
        "sentences_tokenized_per_second": tokenized,
        "pairs_batched_per_second": round(facts["rows"] / seconds["epoch"]),
        "seconds_to_first_batch": round(first, 2),
        "token_utilization": round(facts["token_utilization"], 4),
        "batches": facts["batches"],
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
    }


def ours(lap: Laps, prefix: str, languages: list[str], batching: str, cache: str) -> dict:
    from jformer.config import Config, DataConfig, TrainConfig
    from jformer.data import tokens
    from jformer.data.batches import make_batches
    from jformer.data.datasets import open_corpora
    from jformer.data.tokens import make_vocabularies, tokenize_corpora

    data = DataConfig(
        name="files",
        source_language=languages[0],
        target_language=languages[1],
        train=prefix,
        validation=prefix,
        vocabulary_size=VOCABULARY_SIZE,
        batching=batching,
        max_length=MAX_LENGTH,
        cache=cache,
    )
    config = dataclasses.replace(Config(), data=data, train=TrainConfig(batch_tokens=BATCH_TOKENS))
    tokens.VOCABULARY_SAMPLE = VOCABULARY_SAMPLE  # the same number of pairs as for the peers
    lap("import")
    corpora = open_corpora(config)["train"]
    vocabularies = make_vocabularies(corpora, data)
    lap("vocabulary")
    tokenized = tokenize_corpora(corpora, vocabularies, data)
    lap("tokenize")
    batches = make_batches(config, tokenized.pairs, tokenized.rows, vocabularies)
    batches.batch(0, 0)
    lap("plan and first batch")
    for number in range(len(batches.epoch(0))):
        batches.batch(0, number)
    lap("epoch")
    return {
        "rows": len(tokenized.rows),
        "token_utilization": batches.token_utilization(),
        "batches": len(batches.epoch(0)),
    }


if __name__ == "__main__":
    main()
