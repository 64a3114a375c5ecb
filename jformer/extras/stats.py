"""Inspect a corpus before training.

Shows pairs, skipped lines with reasons, duplicates and other suspicious pairs, test sentences that
are also in the training text, odd characters, lengths, vocabulary, padding and examples.
"""

import collections
import dataclasses
import json
import unicodedata
from collections.abc import Iterator
from typing import Any

import numpy as np

from jformer import cli
from jformer.config import Config
from jformer.data.batches import make_batches
from jformer.data.corpora import Corpus, Report, Split
from jformer.data.datasets import open_data
from jformer.data.tokens import (
    SIDES,
    Ragged,
    Tokenized,
    make_vocabularies,
    pairs_with_text,
    tokenize_corpora,
)
from jformer.data.vocabulary import FIRST, Vocabularies, Vocabulary

EXAMPLES = 10
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
    batchings = {
        name: padding(config, name, tokenized, vocabularies) for name in ("buckets", "packed")
    }
    per_epoch = batchings[config.data.batching]["batches"]
    return {
        "pairs_per_epoch": len(rows),
        "epochs": round(config.train.steps / per_epoch, 1),
        "scored": {name: len(split) for name, split in scored.items()},
        "skipped_or_changed": tokenized.report.decisions,
        **read_again(config, corpora, scored, tokenized),
        "tokens_per_text": {
            name: length_statistics(side.lengths[rows])
            for name, side in zip(SIDES, tokenized.pairs, strict=True)
        },
        "vocabulary": {
            name: entries_used(vocabulary, side)
            for name, vocabulary, side in zip(SIDES, vocabularies, tokenized.pairs, strict=True)
        },
        "batchings": batchings,
        "examples": [
            "|".join(pieces(vocabulary, side, row))
            for row in rows[:: -(-len(rows) // EXAMPLES)].tolist()
            for vocabulary, side in zip(vocabularies, tokenized.pairs, strict=True)
        ],
    }


def padding(
    config: Config, batching: str, tokenized: Tokenized, vocabularies: Vocabularies
) -> dict[str, Any]:
    """Return the share of tokens in the batches, their number per epoch and their shapes."""
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, batching=batching))
    batches = make_batches(config, tokenized.pairs, tokenized.rows, vocabularies)
    return {
        "token_utilization": round(batches.token_utilization(), 4),
        "batches": len(batches.epoch(0)),
        "shapes": batches.layout.shapes,
    }


def read_again(
    config: Config, corpora: list[Corpus], scored: dict[str, Split], tokenized: Tokenized
) -> dict[str, dict[str, Any]]:
    """Read the training text again, and return its pairs, and counts of what is odd in it.

    A scored sentence is in the training text if a training pair has the same source. White space at
    the ends of a text is ignored. Duplicates are found by hashes: 100 bytes of memory per pair.
    """
    suspicious, leaked, odd = Report(), Report(), Report()
    pairs = collections.Counter[str]()
    scored_sources = {text.strip() for split in scored.values() for text in split.sources}
    trained_sources, seen = set[str](), set[int]()
    for corpus in corpora:
        for number, *texts in pairs_with_text(corpus, config.data.bad_lines, Report()):
            places = [f"{name}:{number}" for name in corpus.names]
            source, target = map(str.strip, texts)
            pairs[corpus.names[0]] += 1
            pair = hash((source, target))
            if pair in seen:
                suspicious.add("duplicate", places[0])
            if source == target:
                suspicious.add("source_is_target", places[0])
            if source in scored_sources:
                trained_sources.add(source)
            seen.add(pair)
            for place, text in zip(places, texts, strict=True):
                for character in unprintable(text):
                    odd.add(character, place)
    S, T = (side.lengths - 1 for side in tokenized.pairs)  # without EOS
    for row in np.flatnonzero(np.maximum(S, T) > RATIO * np.minimum(S, T)):
        suspicious.add(f"length_ratio_above_{RATIO}", tokenized.name(int(row)))
    for name, split in scored.items():
        for number, text in enumerate(split.sources):
            if text.strip() in trained_sources:
                leaked.add(name, f"{name}:{number + 1}")
    frequent = sorted(odd.decisions.items(), key=lambda item: -item[1]["count"])
    return {
        "pairs": dict(pairs),
        "suspicious": suspicious.decisions,
        "sources_in_training_text": leaked.decisions,
        "odd_characters": dict(frequent[:EXAMPLES]),
    }


def unprintable(text: str) -> Iterator[str]:
    """Yield code and name of each control, format or unassigned character, and unusual space."""
    if text.isprintable():
        return
    for c in text:
        if not c.isprintable() and c != "\t":
            yield f"U+{ord(c):04X} {unicodedata.name(c, 'unnamed').lower()}"


def length_statistics(lengths: np.ndarray) -> dict[str, float]:
    """Summarize lengths in tokens, with EOS."""
    median, p95, longest = np.percentile(lengths, (50, 95, 100)).astype(int).tolist()
    return {"mean": round(float(lengths.mean()), 2), "median": median, "p95": p95, "max": longest}


def entries_used(vocabulary: Vocabulary, side: Ragged) -> dict[str, int]:
    """Count the entries of a vocabulary, and the entries that occur in the training text."""
    used = np.zeros(vocabulary.size, bool)
    used[side.flat] = True
    return {"entries": vocabulary.size, "used": int(used[FIRST:].sum())}


def pieces(vocabulary: Vocabulary, side: Ragged, row: int) -> list[str]:
    """Return the text of each id of a row, with U+FFFD for a part of a character."""
    ids = side.take(np.array([row])).flat
    return [vocabulary.decode([i]) for i in ids[:-1].tolist()] + ["</s>"]


def lines_of(facts: dict[str, Any]) -> Iterator[str]:
    """Format the facts of `corpus_statistics` as indented text."""
    for title, fact in facts.items():
        name = title.replace("_", " ")
        if not isinstance(fact, dict | list):
            yield f"{name}: {fact:,}"
            continue
        yield f"{name}:" if fact else f"{name}: none"
        entries = fact if isinstance(fact, list) else [f"{k}: {one_line(fact[k])}" for k in fact]
        yield from (f"    {entry}" for entry in entries)


def one_line(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {one_line(x)}" for name, x in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:,}"
