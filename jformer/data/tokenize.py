"""Vocabularies and memory-mapped token ids of corpora, both computed once and then cached.

The text is streamed: memory does not grow with the corpus, except for two lengths and a line
number per pair.
"""

import bisect
import contextlib
import dataclasses
import itertools
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jformer import components
from jformer.config import EOS, DataConfig
from jformer.console import Progress
from jformer.data.cache import entry
from jformer.data.corpora import Corpus, Report, Split, read
from jformer.data.ragged import Ragged, TokenPairs
from jformer.data.vocabulary import Vocabularies, Vocabulary
from jformer.errors import UserError

log = logging.getLogger(__name__)

CHUNK = 10_000  # pairs tokenized together
VOCABULARY_SAMPLE = 2_000_000  # maximum number of pairs to learn a vocabulary from
SIDES = ("source", "target")
# The settings that a vocabulary depends on, besides the text.
VOCABULARY_KEYS = (
    "tokenizer",
    "target_tokenizer",
    "vocabulary_size",
    "joint_vocabulary",
    "bad_lines",
)


@dataclasses.dataclass(frozen=True)
class Tokenized:
    """Token ids of the training pairs without an empty side, and the origin of each pair."""

    pairs: TokenPairs
    lines: np.ndarray  # line number of each pair in its corpus
    ends: list[int]  # cumulative number of pairs at the end of each corpus
    places: list[str]  # name of each corpus in messages
    report: Report

    def place(self, pair: int) -> str:
        return f"{self.places[bisect.bisect_right(self.ends, pair)]}:{self.lines[pair]}"


def make_vocabularies(corpora: list[Corpus], content: str, data: DataConfig) -> Vocabularies:
    """Learn vocabularies from evenly spaced training pairs, or load the files that `data` names.

    `content` is the corpora's `content_hash`.
    """
    brought = data.vocabulary_files
    settings = {name: getattr(data, name) for name in VOCABULARY_KEYS}
    settings["brought"] = [Vocabulary.bring(Path(name)).hash if name else "" for name in brought]
    files = components.files_of([data.tokenizer, data.target_tokenizer])
    settings["components"] = {name: file.hash for name, file in files.items()}

    def build(folder: Path) -> None:
        if all(brought):  # saved all the same: reloaded, the scores of a Unigram differ in a digit
            Vocabularies.train(lambda: (), data).save(folder)
            return
        total, began = count_rows(corpora), time.monotonic()
        if not total:
            places = " and ".join(place for corpus in corpora for place in corpus.names)
            raise UserError(f"{places}: are empty; pairs to train on are needed there")
        every = max(1, -(-total // VOCABULARY_SAMPLE))
        which = f"every {every}th of {total:,}" if every > 1 else f"{total:,}"
        log.info("vocabulary  learning from %s pairs ...", which)

        def pairs() -> Iterator[tuple[str, str]]:
            rows = (row for corpus in corpora for row in read(corpus, data.bad_lines, Report()))
            return (row[1:] for row in itertools.islice(rows, 0, None, every))

        Vocabularies.train(pairs, data).save(folder)
        log.info("vocabulary  took %.0f s", time.monotonic() - began)

    folder = entry(data, "vocabulary", [content, how_read(corpora, data), settings], build)
    return Vocabularies.load(folder, data.joint_vocabulary)


def tokenize_corpora(
    corpora: list[Corpus], content: str, vocabularies: Vocabularies, data: DataConfig
) -> Tokenized:
    """Return all pairs of the corpora, concatenated; truncated if `data.long_pairs` says so."""
    words = bool(data.augment)  # BPE dropout needs word starts
    how, limit = how_read(corpora, data), truncated_length(data)
    depends_on = [content, how, vocabularies.hash, data.bad_lines, limit, words]

    def build(folder: Path) -> None:
        write_tokens(folder, corpora, vocabularies, data)

    folder = entry(data, "tokens", depends_on, build)
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    sides = []
    for side in SIDES:
        offsets = np.load(folder / f"{side}_offsets.npy", mmap_mode="r")
        flat = np.memmap(folder / f"{side}.ids", meta["dtypes"][side], "r")
        path = folder / f"{side}.words"
        starts = np.memmap(path, bool, "r") if path.exists() else None
        sides.append(Ragged(flat, offsets, starts))
    lines = np.load(folder / "lines.npy", mmap_mode="r")
    places = [corpus.names[0] for corpus in corpora]
    return Tokenized(TokenPairs(*sides), lines, meta["ends"], places, Report(meta["decisions"]))


def how_read(corpora: list[Corpus], data: DataConfig) -> list:
    """Return what else decides the text of a file: languages select columns, file names markup.

    The options of the data set decide the text of trees, and a user's files may do anything.
    """
    languages = [data.source_language, data.target_language]
    texts = [data.name, data.scorer]
    files = {name: file.hash for name, file in components.files_of(texts).items()}
    names = [*map(components.without_folders, texts), files]
    return [languages, [corpus.names for corpus in corpora], *names]


def count_rows(corpora: list[Corpus]) -> int:
    return sum(1 for corpus in corpora for _ in corpus.rows())


def truncated_length(data: DataConfig) -> int | None:
    """Return how many ids of a text are kept, with EOS; None if all of them are."""
    return data.max_length if data.long_pairs == "truncate" else None


def write_tokens(
    folder: Path, corpora: list[Corpus], vocabularies: Vocabularies, data: DataConfig
) -> None:
    """Write all files of a cache entry; for BPE dropout also which ids begin a word."""
    began, total, limit = time.monotonic(), count_rows(corpora), truncated_length(data)
    log.info("tokenizing  %s pairs ...", f"{total:,}")
    report, pairs = Report(), [0] * len(corpora)
    lines: list[np.ndarray] = []
    lengths: list[list[np.ndarray]] = [[], []]
    dtypes = ["uint16" if vocabulary.size <= 2**16 else "int32" for vocabulary in vocabularies]
    with contextlib.closing(Progress("pair", total)) as progress:
        for which, numbers, split in chunks(corpora, data.bad_lines, report):
            sides = encode(vocabularies, split)
            longest = np.maximum(sides.sources.lengths, sides.targets.lengths)
            for row in np.flatnonzero(longest >= limit) if limit else ():
                report.add("truncated", f"{corpora[which].names[0]}:{numbers[row]}")
            for side, (name, encoded) in enumerate(zip(SIDES, sides, strict=True)):
                texts = append_eos(encoded, limit)
                append(folder / f"{name}.ids", texts.flat.astype(dtypes[side]))
                if data.augment and texts.word_starts is not None:
                    append(folder / f"{name}.words", texts.word_starts)
                lengths[side].append(texts.lengths)
            lines.append(np.array(numbers, np.uint32))
            pairs[which] += len(numbers)
            progress.advance(len(numbers))
    ends = list(itertools.accumulate(pairs))
    if not ends[-1]:
        places = ", ".join(corpus.names[0] for corpus in corpora)
        raise UserError(f"{places}: no pair to train on; {'; '.join(report.lines())}")
    np.save(folder / "lines.npy", np.concatenate(lines))
    for name, parts in zip(SIDES, lengths, strict=True):
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(parts), dtype=np.int64)])
        np.save(folder / f"{name}_offsets.npy", offsets)
    of_sides = dict(zip(SIDES, dtypes, strict=True))
    meta = {"dtypes": of_sides, "ends": ends, "decisions": report.decisions}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    log.info("tokenizing  took %.0f s; kept in %s", time.monotonic() - began, folder.parent)


def append(path: Path, values: np.ndarray) -> None:
    with path.open("ab") as file:
        values.tofile(file)


def chunks(
    corpora: list[Corpus], policy: str, report: Report
) -> Iterator[tuple[int, list[int], Split]]:
    """Yield the index of a corpus with the line numbers and the texts of some of its pairs.

    Pairs with an empty side are left out and reported.
    """
    for which, corpus in enumerate(corpora):
        pairs = read(corpus, policy, report)
        while part := list(itertools.islice(pairs, CHUNK)):
            kept = []
            for pair in part:
                if pair[1].strip() and pair[2].strip():
                    kept.append(pair)
                else:
                    report.add("empty", f"{corpus.names[0]}:{pair[0]}")
            if kept:
                numbers, sources, targets = map(list, zip(*kept, strict=True))
                yield which, numbers, Split(sources, targets)


def encode(vocabularies: Vocabularies, texts: Split) -> TokenPairs:
    sources = vocabularies.source.encode_flat(texts.sources)
    return TokenPairs(sources, vocabularies.target.encode_flat(texts.targets))


def append_eos(texts: Ragged, limit: int | None = None) -> Ragged:
    """Append EOS, as a separate word, to each text; cut each to at most `limit` ids with EOS."""
    assert texts.word_starts is not None, "encoded texts have them"
    ids, starts, lengths = texts.flat, texts.word_starts, texts.lengths
    if limit and len(texts) and lengths.max() >= limit:
        within = np.arange(len(ids)) - np.repeat(texts.offsets[:-1], lengths)
        kept = within < limit - 1
        ids, starts, lengths = ids[kept], starts[kept], np.minimum(lengths, limit - 1)
    ends = np.cumsum(lengths)
    with_eos = np.insert(ids, ends, EOS)
    return Ragged.from_lengths(with_eos, lengths + 1, np.insert(starts, ends, True))


def tokenize(split: Split, vocabularies: Vocabularies) -> TokenPairs:
    """Return the token ids of a split to be scored, without skipping or cutting any text."""
    return TokenPairs(*map(append_eos, encode(vocabularies, split)))


def trainable(tokenized: Tokenized, data: DataConfig) -> np.ndarray:
    """Return the pairs to train on, repeated by `data.weights`; report those that are too long."""
    S, T = (side.lengths for side in tokenized.pairs)
    short = (data.max_length >= S) & (data.max_length >= T)
    for pair in np.flatnonzero(~short):
        tokenized.report.add("too_long", tokenized.place(int(pair)))
    if not short.any():
        told = "; ".join(tokenized.report.lines())
        raise UserError(f"{tokenized.places[0]}: no pair to train on; {told}")
    pairs_of_corpora = np.diff(tokenized.ends, prepend=0)
    weights = np.repeat(data.corpus_weights(len(pairs_of_corpora)), pairs_of_corpora)
    return np.repeat(np.arange(len(short), dtype=np.int32), weights * short)
