"""A benchmark of the input pipeline beside those of others, with a small and a large corpus.

    python -m experiments.benchmarks.data [--prefix=PREFIX] [--languages=en,de]
        [--pairs=30000,4500000] [--folder=FOLDER] [--contenders=torch,datasets,...] [--rounds=1]

The corpora repeat the lines of PREFIX.en and PREFIX.de, or by default of the embedded phrases;
repeated lines end with a number, so that no two are alike. Each corpus is prepared and read in
separate processes: by jformer first with an empty cache, then with a warm one, then packed; by
PyTorch's DataLoader over ids in memory, with and without workers; by Hugging Face's `datasets`,
grouped by length; by grain, one pair at a time in random order. Each process prints a JSON object:
seconds of the parts, sentences tokenized per second, pairs batched per second, and the peak of its
own resident memory in MB, without that of workers. A table of medians over the rounds, with their
spread, comes last.
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
WAYS = (("buckets", False), ("buckets", True), ("packed", True))  # of ours: batching, warm cache
PEERS = ("torch", "torch workers", "datasets", "grain")
# The columns of the table, with how many digits.
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
    parser.add_argument("--prefix", default="", help="PREFIX of the lines to repeat")
    parser.add_argument("--languages", default="en,de")
    parser.add_argument("--pairs", default="30000,4500000")
    parser.add_argument("--folder", help="where the corpora and the cache are written")
    parser.add_argument("--contenders", help="names, with commas; default: all", default="")
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
                    for more in ours_in(number) if name == OURS else [{}]:
                        found.append(start({"contender": name, **task, **more}))
    print(f"\n{turns.machine()}\n\n{table(found)}")


def ours_in(number: int) -> list[dict[str, Any]]:
    """Return the tasks of jformer in a round, which begins with an empty cache."""
    cache = f"cache{number}"
    return [{"batching": batching, "warm": warm, "cache": cache} for batching, warm in WAYS]


def start(task: dict[str, Any]) -> dict[str, Any]:
    """Measure in a process of its own, which prints what it returns."""
    command = [sys.executable, "-m", "experiments.benchmarks.data", f"--process={json.dumps(task)}"]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    print(result.stdout, end="", flush=True)
    return json.loads(result.stdout)


def table(found: list[dict[str, Any]]) -> str:
    """Return the medians of the rounds; a contender that lacks a package has the reason instead."""
    rows: dict[tuple, list[dict]] = {}
    for one in found:
        rows.setdefault((f"{one['pairs']:,}", one["contender"], one["cache"]), []).append(one)
    lines = []
    for key, rounds in rows.items():
        cells = [rounds[0].get("error", ""), *[""] * (len(SHOWN) - 1)]
        if not cells[0]:
            columns = [([one[name] for one in rounds], SHOWN[name]) for name in SHOWN]
            cells = ["" if None in each else turns.spread(each, digits) for each, digits in columns]
        lines.append([*key, *cells])
    header = ["pairs", "", "cache", *(name.replace("_", " ") for name in SHOWN)]
    return turns.markdown(header, lines)


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


class Laps:
    """Seconds of the parts of a process, one after the other."""

    def __init__(self):
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def __call__(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name], self._last = now - self._last, now


def measure(contender: str, folder: str, languages: list[str], pairs: int, **way: Any) -> dict:
    """Measure one process, from its start to the end of an epoch of batches."""
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
    tokens.VOCABULARY_SAMPLE = VOCABULARY_SAMPLE  # as many pairs as the peers learn from
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
