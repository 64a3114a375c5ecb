"""Statistics of a corpus before training: its sizes, odd characters and share of padding."""

import collections
import dataclasses
import itertools
import unicodedata
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from jformer.config import Config
from jformer.data.batches import make_batches
from jformer.data.corpora import NAMES_KEPT, Corpus, Report, Split, read
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
SUSPICIOUS = {
    "duplicate": "training pairs repeat an earlier one",
    "source_is_target": "training pairs have the same text on both sides",
    "length_ratio": f"training pairs have more than {RATIO} times as many tokens on one side",
}
SCANNED = 200_000  # maximum number of pairs, evenly spaced, searched for odd characters
# Unicode's general categories: control, format, unassigned, private use, and unusual spaces. Tabs
# are common, and carriage returns at line ends are removed.
ODD = {"Cc", "Cf", "Cn", "Co", "Zl", "Zp", "Zs"}


def corpus_statistics(
    config: Config, corpora: list[Corpus], scored: dict[str, Split]
) -> dict[str, Any]:
    """Return all facts that `page` shows, as one JSON object."""
    vocabularies = make_vocabularies(corpora, config.data)
    tokenized = tokenize_corpora(corpora, vocabularies, config.data)
    rows = tokenized.rows
    languages = (config.data.source_language, config.data.target_language)
    numbers = np.diff(tokenized.ends, prepend=0).tolist()
    batchings: dict[str, dict[str, Any]] = {}
    for batching in ("buckets", "packed"):
        data = dataclasses.replace(config.data, batching=batching)
        as_config = dataclasses.replace(config, data=data)
        batches = make_batches(as_config, tokenized.pairs, rows, vocabularies)
        batchings[batching] = {
            "token_utilization": round(batches.token_utilization(), 4),
            "shapes": batches.layout.shapes,
            "batches": len(batches.epoch(0)),
        }
    epochs = config.train.steps / batchings[config.data.batching]["batches"]
    return {
        "corpora": dict(zip(tokenized.names, numbers, strict=True)),
        "pairs": len(rows),
        "skipped": tokenized.report.skipped(),
        "decisions": tokenized.report.decisions,
        "scored": {name: len(split) for name, split in scored.items()},
        **suspicious_pairs(corpora, config.data.bad_lines, tokenized, scored),
        "epochs": round(epochs, 1),
        "lengths": {
            language: length_statistics(side.lengths[rows])
            for language, side in zip(languages, tokenized.pairs, strict=True)
        },
        "vocabulary": entries_used(vocabularies, tokenized),
        "odd_characters": odd_characters(corpora, config.data.bad_lines, tokenized.ends[-1]),
        "batchings": batchings,
        "examples": [
            [pieces(*side, row) for side in zip(vocabularies, tokenized.pairs, strict=True)]
            for row in rows[:: -(-len(rows) // EXAMPLES)].tolist()
        ],
    }


def suspicious_pairs(
    corpora: list[Corpus], policy: str, tokenized: Tokenized, scored: dict[str, Split]
) -> dict[str, dict[str, dict]]:
    """Return `{"suspicious": ..., "in_training": ...}`, each `{name: {"count", "first"}}`.

    A scored sentence is in the training text if a training pair has the same source. White space at
    the ends of a text is ignored. Hashes of 64 bits are compared: 100 bytes of memory per pair.
    """
    sources, pairs, same = array("q"), array("q"), array("b")
    for corpus in corpora:
        for _, *texts in pairs_with_text(corpus, policy, Report()):
            source, target = map(str.strip, texts)
            sources.append(hash(source))
            pairs.append(hash((source, target)))
            same.append(source == target)
    repeats = np.ones(len(pairs), bool)
    repeats[np.unique(np.asarray(pairs), return_index=True)[1]] = False
    S, T = (side.lengths - 1 for side in tokenized.pairs)  # without EOS
    masks = {
        "duplicate": repeats,
        "source_is_target": np.asarray(same, bool),
        "length_ratio": np.maximum(S, T) > RATIO * np.minimum(S, T),
    }
    in_training = {}
    for name, split in scored.items():
        hashes = np.array([hash(text.strip()) for text in split.sources], np.int64)
        names = split.names or [f"{name}:{n}" for n in range(1, len(split) + 1)]
        in_training[name] = counted(np.isin(hashes, np.asarray(sources)), names.__getitem__)
    found = {name: counted(mask, tokenized.name) for name, mask in masks.items()}
    return {"suspicious": found, "in_training": in_training}


def counted(mask: np.ndarray, place: Callable[[int], str]) -> dict[str, Any]:
    rows = np.flatnonzero(mask)
    return {"count": len(rows), "first": [place(int(row)) for row in rows[:NAMES_KEPT]]}


def length_statistics(lengths: np.ndarray) -> dict[str, float]:
    """Summarize lengths in tokens, with EOS."""
    return {
        "mean": round(float(lengths.mean()), 2),
        "median": int(np.median(lengths)),
        "p95": int(np.percentile(lengths, 95)),
        "max": int(lengths.max()),
    }


def entries_used(vocabularies: Vocabularies, tokenized: Tokenized) -> dict[str, dict[str, int]]:
    """Count the entries of each side's vocabulary, and those that occur in the training text."""
    facts = {}
    for side, v, ids in zip(SIDES, vocabularies, tokenized.pairs, strict=True):
        used = np.zeros(v.size, bool)
        used[ids.flat] = True
        facts[side] = {"entries": v.size, "used": int(used[FIRST:].sum())}
    return facts


def odd_characters(corpora: list[Corpus], policy: str, pairs: int) -> dict[str, dict]:
    """Return `{"U+....": {"kind", "count", "first"}}` of odd characters, most frequent first."""
    every = -(-pairs // SCANNED)
    counts: collections.Counter[str] = collections.Counter()
    first: dict[str, str] = {}
    for corpus in corpora:
        for number, *texts in itertools.islice(read(corpus, policy, Report()), 0, None, every):
            for place, text in zip(corpus.names, texts, strict=True):
                # Skips printable ASCII without a loop over its characters.
                if text.isascii() and text.isprintable():
                    continue
                odd = [c for c in text if c not in " \t" and unicodedata.category(c) in ODD]
                counts.update(odd)
                for character in odd:
                    first.setdefault(character, f"{place}:{number}")
    return {
        f"U+{ord(c):04X}": {
            "kind": unicodedata.name(c, f"category {unicodedata.category(c)}").lower(),
            "count": count,
            "first": first[c],
        }
        for c, count in counts.most_common()
    }


def pieces(vocabulary: Vocabulary, side: Ragged, row: int) -> list[str]:
    """Return the text of each id of a row, with U+FFFD for a part of a character."""
    ids = side.take(np.array([row])).flat
    return [vocabulary.decode([i]) for i in ids[:-1].tolist()] + ["</s>"]


def page(facts: dict[str, Any]) -> str:
    """Format the facts of `corpus_statistics` as text."""
    lines = [
        f"{count:>12,} pairs without an empty side in {name}"
        for name, count in facts["corpora"].items()
    ]
    lines.append(f"{facts['pairs']:>12,} pairs per epoch of training")
    lines += [f"{count:>12,} pairs in {name}" for name, count in facts["scored"].items()]
    lines += ["", *Report(facts["decisions"]).lines()]
    suspicious = {SUSPICIOUS[name]: entry for name, entry in facts["suspicious"].items()}
    for name, entry in facts["in_training"].items():
        suspicious[f"sources of {name} are also sources of training pairs"] = entry
    for what, entry in suspicious.items():
        first = f" ({', '.join(entry['first'])})" if entry["first"] else ""
        lines.append(f"{entry['count']:,} {what}{first}")
    for language, numbers in facts["lengths"].items():
        lines.append(
            f"tokens of a text in {language}: mean {numbers['mean']}, median {numbers['median']}, "
            f"95 % up to {numbers['p95']}, longest {numbers['max']}"
        )
    lines.append("")
    for side, v in facts["vocabulary"].items():
        lines.append(f"vocabulary, {side}: {v['entries']:,} entries, {v['used']:,} used")
    lines.append("")
    for name, b in facts["batchings"].items():
        shapes = ", ".join(f"{rows}x{S}+{T}" for rows, S, T in b["shapes"])
        lines.append(
            f"{name}: {b['token_utilization']:.1%} of positions are tokens; "
            f"{b['batches']:,} batches per epoch in {len(b['shapes'])} shapes, {shapes}"
        )
    lines += ["", "odd characters: " + ("none" if not facts["odd_characters"] else "")]
    for code, entry in itertools.islice(facts["odd_characters"].items(), EXAMPLES):
        lines.append(f"{entry['count']:>12,} {code} {entry['kind']}, first in {entry['first']}")
    lines.append("")
    for source, target in facts["examples"]:
        lines += ["  " + "|".join(source), "  " + "|".join(target), ""]
    return "\n".join(lines).rstrip()
