"""Inspect a corpus before training.

Shows pairs, skipped lines with reasons, duplicates and other suspicious pairs, test sentences that
are also in the training text, lengths and padding.
"""

import collections
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from jformer import cli
from jformer.config import Config
from jformer.data.batches import make_batches
from jformer.data.corpora import Corpus, Report, Split, read
from jformer.data.datasets import open_data
from jformer.data.tokens import make_vocabularies, tokenize_corpora

RATIO = 9  # between token counts; the limit of Moses' clean-corpus-n


def add_flags(parser: cli.Parser) -> None:
    parser.add_argument("--format", default="text", choices=("text", "json"), help="default: text")
    cli.add_config_flags(parser)


def main(args: Any) -> int:
    config = cli.config_of(args)
    facts = corpus_statistics(config, *open_data(config))
    print(json.dumps(facts) if args.format == "json" else "\n".join(lines_of(facts)))
    return 0


def corpus_statistics(
    config: Config, corpora: list[Corpus], scored: dict[str, Split]
) -> dict[str, Any]:
    """Return all facts about a corpus, as one JSON object."""
    vocabularies = make_vocabularies(corpora, config.data)
    tokenized = tokenize_corpora(corpora, vocabularies, config.data)
    rows = tokenized.rows
    batchings = {}
    for name in ("buckets", "packed"):
        data = dataclasses.replace(config.data, batching=name)
        changed = dataclasses.replace(config, data=data)
        batchings[name] = make_batches(changed, tokenized.pairs, rows, vocabularies)
    batches_per_epoch = len(batchings[config.data.batching].epoch(0))
    pairs, suspicious, leaked = read_again(config, corpora, scored)
    S, T = (side.lengths - 1 for side in tokenized.pairs)  # without EOS
    for corpus, line in tokenized.places[np.maximum(S, T) > RATIO * np.minimum(S, T)]:
        suspicious.add(f"length_ratio_above_{RATIO}", f"{corpora[corpus].names[0]}:{line}")
    return {
        "pairs": pairs,
        "pairs_per_epoch": len(rows),
        "batches_per_epoch": batches_per_epoch,
        "epochs": round(config.train.steps / batches_per_epoch, 1),
        "scored": {name: len(split) for name, split in scored.items()},
        "skipped_or_changed": tokenized.report.decisions,
        "suspicious": suspicious.decisions,
        "sources_in_training_text": leaked.decisions,
        "tokens_per_text": {
            name: length_statistics(side.lengths[rows])
            for name, side in zip(("source", "target"), tokenized.pairs, strict=True)
        },
        "token_utilization": {
            name: round(batches.token_utilization(), 4) for name, batches in batchings.items()
        },
    }


def read_again(
    config: Config, corpora: list[Corpus], scored: dict[str, Split]
) -> tuple[dict[str, int], Report, Report]:
    """Read the training text again; return its pairs per corpus, suspicious and leaked sentences.

    A scored sentence is leaked if a training pair has the same source. White space at the ends of a
    text is ignored. Duplicates are found by hashes: 100 bytes of memory per pair.
    """
    suspicious, leaked = Report(), Report()
    pairs = collections.Counter[str]()
    scored_sources = {text.strip() for split in scored.values() for text in split.sources}
    trained_sources, seen = set[str](), set[int]()
    for corpus in corpora:
        for number, *texts in read(corpus, config.data.bad_lines, Report()):
            place = f"{corpus.names[0]}:{number}"
            source, target = map(str.strip, texts)
            pairs[corpus.names[0]] += 1
            pair = hash((source, target))
            if pair in seen:
                suspicious.add("duplicate", place)
            if source == target:
                suspicious.add("source_is_target", place)
            if source in scored_sources:
                trained_sources.add(source)
            seen.add(pair)
    for name, split in scored.items():
        for number, text in enumerate(split.sources):
            if text.strip() in trained_sources:
                leaked.add(name, f"{name}:{number + 1}")
    return dict(pairs), suspicious, leaked


def length_statistics(lengths: np.ndarray) -> dict[str, float]:
    """Summarize lengths in tokens, with EOS."""
    median, p95, longest = np.percentile(lengths, (50, 95, 100)).astype(int).tolist()
    return {"mean": round(float(lengths.mean()), 2), "median": median, "p95": p95, "max": longest}


def lines_of(facts: dict[str, Any], indent: str = "") -> Iterator[str]:
    """Format the facts of `corpus_statistics` as indented text."""
    for name, value in facts.items():
        if isinstance(value, dict):
            yield f"{indent}{name}:" if value else f"{indent}{name}: none"
            yield from lines_of(value, f"{indent}    ")
        elif isinstance(value, list):
            yield f"{indent}{name}: {' '.join(value)}"
        else:
            yield f"{indent}{name}: {value:,}"
