"""Statistics of a corpus before training: its sizes, odd characters and share of padding."""

import collections
import dataclasses
import itertools
import unicodedata
from typing import Any

import numpy as np

from jformer.config import EOS, Config
from jformer.data.cache import content_hash
from jformer.data.corpora import Corpus, Report, Split, read
from jformer.data.pipeline import make_batches
from jformer.data.ragged import Ragged
from jformer.data.tokenize import SIDES, Tokenized, make_vocabularies, tokenize_corpora, trainable
from jformer.data.vocabulary import Vocabularies, Vocabulary

EXAMPLES = 10
FIRST_ID = EOS + 1
SCANNED = 200_000  # maximum number of pairs, evenly spaced, searched for odd characters
BARS, BAR_WIDTH = 12, 40
# Unicode's general categories; tabs are common, and carriage returns at line ends are reported.
ODD = {
    "Cc": "control character",
    "Cf": "invisible format character",
    "Cn": "unassigned code point",
    "Co": "private use",
    "Zl": "line separator",
    "Zp": "paragraph separator",
    "Zs": "space other than U+0020",
}


def corpus_statistics(
    config: Config, corpora: list[Corpus], scored: dict[str, Split]
) -> dict[str, Any]:
    """Return all facts that `page` shows, as one JSON object."""
    content = content_hash(corpora)
    vocabularies = make_vocabularies(corpora, content, config.data)
    tokenized = tokenize_corpora(corpora, content, vocabularies, config.data)
    rows = trainable(tokenized, config.data)
    languages = (config.data.source_language, config.data.target_language)
    numbers = np.diff(tokenized.ends, prepend=0).tolist()
    batchings = {}
    for batching in ("buckets", "packed"):
        data = dataclasses.replace(config.data, batching=batching)
        as_config = dataclasses.replace(config, data=data)
        batches = make_batches(as_config, tokenized.pairs, rows, vocabularies)
        batchings[batching] = {
            "token_utilization": round(batches.token_utilization(), 4),
            "shapes": batches.layout.shapes,
            "batches": len(batches.epoch(0)),
        }
    return {
        "corpora": dict(zip(tokenized.places, numbers, strict=True)),
        "pairs": len(rows),
        "skipped": tokenized.report.skipped(),
        "decisions": tokenized.report.decisions,
        "scored": {name: len(split) for name, split in scored.items()},
        "lengths": {
            language: length_statistics(side.lengths[rows])
            for language, side in zip(languages, tokenized.pairs, strict=True)
        },
        "vocabulary": coverage(vocabularies, tokenized, scored),
        "odd_characters": odd_characters(corpora, config.data.bad_lines, tokenized.ends[-1]),
        "token_utilization": {name: b["token_utilization"] for name, b in batchings.items()},
        "batchings": batchings,
        "examples": [
            [pieces(*side, row) for side in zip(vocabularies, tokenized.pairs, strict=True)]
            for row in rows[:: -(-len(rows) // EXAMPLES)].tolist()
        ],
    }


def length_statistics(lengths: np.ndarray) -> dict[str, Any]:
    """Summarize lengths in tokens, with EOS; the histogram has `[longest, texts]` for each bar."""
    edges = np.unique(np.linspace(0, lengths.max(), BARS + 1).astype(int))
    counts = np.histogram(lengths, bins=edges + 0.5)[0]
    return {
        "mean": round(float(lengths.mean()), 2),
        "median": int(np.median(lengths)),
        "p95": int(np.percentile(lengths, 95)),
        "max": int(lengths.max()),
        "histogram": [list(bar) for bar in zip(edges[1:].tolist(), counts.tolist(), strict=True)],
    }


def coverage(
    vocabularies: Vocabularies, tokenized: Tokenized, scored: dict[str, Split]
) -> dict[str, Any]:
    """Count the entries used in training, and the unseen tokens and changed texts of scored splits.

    A text is changed if decoding its ids gives another text.
    """
    uses, facts = [], {}
    for name, v, side in zip(SIDES, vocabularies, tokenized.pairs, strict=True):
        uses.append(count_ids(side.flat, v.size))
        facts[name] = {"entries": v.size, "used": int(np.sum(uses[-1][FIRST_ID:] > 0))}
    if vocabularies.source is vocabularies.target:
        uses = [uses[0] + uses[1]] * 2
    for split, text in scored.items():
        facts[split] = {}
        sides = zip(SIDES, vocabularies, uses, (text.sources, text.targets), strict=True)
        for name, v, used, texts in sides:
            encoded = v.encode_flat(texts)
            facts[split][f"unseen_{name}_tokens"] = int(np.sum(used[encoded.flat] == 0))
            decoded = map(v.decode, encoded.rows())
            changed = sum(a != b for a, b in zip(decoded, texts, strict=True))
            facts[split][f"{name}_texts_changed"] = changed
    return facts


def count_ids(flat: np.ndarray, size: int) -> np.ndarray:
    parts = (flat[i : i + 2**22] for i in range(0, len(flat), 2**22))
    return sum((np.bincount(part, minlength=size) for part in parts), np.zeros(size, np.int64))


def odd_characters(corpora: list[Corpus], policy: str, pairs: int) -> dict[str, dict]:
    """Return `{"U+....": {"kind", "count", "first"}}` of odd characters, most frequent first."""
    every = -(-pairs // SCANNED)
    counts: collections.Counter[str] = collections.Counter()
    first: dict[str, str] = {}
    for corpus in corpora:
        for number, *texts in itertools.islice(read(corpus, policy, Report()), 0, None, every):
            for place, text in zip(corpus.places, texts, strict=True):
                # Skips printable ASCII without a loop over its characters.
                if text.isascii() and text.isprintable():
                    continue
                odd = [c for c in text if c not in " \t" and unicodedata.category(c) in ODD]
                counts.update(odd)
                for character in odd:
                    first.setdefault(character, f"{place}:{number}")
    return {
        f"U+{ord(c):04X}": {
            "kind": unicodedata.name(c, ODD[unicodedata.category(c)]).lower(),
            "count": count,
            "first": first[c],
        }
        for c, count in counts.most_common()
    }


def pieces(vocabulary: Vocabulary, side: Ragged, row: int) -> list[str]:
    """Return the text of each id of a row; a part of a character shows as U+FFFD."""
    ids = side.take(np.array([row])).flat
    return [vocabulary.decode([i]) for i in ids[:-1].tolist()] + ["</s>"]


def page(facts: dict[str, Any]) -> str:
    """Format the facts of `corpus_statistics` as text."""
    lines = [
        f"{count:>12,} pairs without an empty side in {name}"
        for name, count in facts["corpora"].items()
    ]
    lines.append(f"{facts['pairs']:>12,} pairs an epoch of training")
    lines += [f"{count:>12,} pairs in {name}" for name, count in facts["scored"].items()]
    lines += ["", *Report(facts["decisions"]).lines()]
    for language, numbers in facts["lengths"].items():
        lines += [
            "",
            f"tokens of a text in {language}: mean {numbers['mean']}, median {numbers['median']}, "
            f"95 % up to {numbers['p95']}, longest {numbers['max']}",
        ]
        most = max(count for _, count in numbers["histogram"])
        lines += [
            f"{longest:>8} {'█' * round(BAR_WIDTH * count / most)} {count:,}"
            for longest, count in numbers["histogram"]
        ]
    lines.append("")
    for name, numbers in facts["vocabulary"].items():
        told = ", ".join(f"{n:,} {what.replace('_', ' ')}" for what, n in numbers.items())
        lines.append(f"vocabulary, {name}: {told}")
    lines.append("")
    for name, b in facts["batchings"].items():
        shapes = ", ".join(f"{rows}x{S}+{T}" for rows, S, T in b["shapes"])
        lines.append(
            f"{name}: {b['token_utilization']:.1%} of positions hold a token; "
            f"{b['batches']:,} batches an epoch in {len(b['shapes'])} shapes, {shapes}"
        )
    lines += ["", "odd characters: " + ("none" if not facts["odd_characters"] else "")]
    for code, entry in itertools.islice(facts["odd_characters"].items(), EXAMPLES):
        lines.append(f"{entry['count']:>12,} {code} {entry['kind']}, first in {entry['first']}")
    lines.append("")
    for source, target in facts["examples"]:
        lines += ["  " + "|".join(source), "  " + "|".join(target), ""]
    return "\n".join(lines).rstrip()
