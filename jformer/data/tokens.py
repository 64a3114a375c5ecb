"""Token ids of corpora: built once, cached on disk and memory-mapped.

A cache entry is a folder, named by a hash of everything that its content depends on: the bytes of
the files, how they are read, the vocabulary and the settings, but not the files' folders. An entry
is written under a temporary name and renamed when complete, under a lock. A killed run therefore
leaves no partial entry, and of two concurrent runs the second waits.

The text is streamed: memory does not grow with the corpus, except for a few numbers per pair.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import logging
import os
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from filelock import FileLock
from numpy.typing import ArrayLike

from jformer import components
from jformer.config import EOS, DataConfig
from jformer.console import Progress
from jformer.data.corpora import Corpus, Report, Split, read
from jformer.data.vocabulary import Vocabularies, Vocabulary
from jformer.errors import UserError

log = logging.getLogger(__name__)

VERSION = 8  # of the entry format and the reading of files; raise it to rebuild all entries
MAX_CACHE_BYTES = 50 * 2**30  # about five corpora as large as WMT14 English-French
UNUSED_SECONDS = 7 * 24 * 3600  # until an entry may be removed: no run uses it by then
CHUNK = 10_000  # pairs tokenized together
SIDES = ("source", "target")


@dataclasses.dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of different lengths in one array; row i is `flat[offsets[i] : offsets[i + 1]]`."""

    flat: np.ndarray  # may be a memory-mapped file
    offsets: np.ndarray

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]]) -> Self:
        flat = np.fromiter(itertools.chain.from_iterable(rows), np.int32)
        return cls.from_lengths(flat, [len(row) for row in rows])

    @classmethod
    def from_lengths(cls, flat: np.ndarray, lengths: ArrayLike) -> Self:
        return cls(flat, np.append(0, np.cumsum(lengths, dtype=np.int64)))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets).astype(np.int32)

    def rows(self) -> list[list[int]]:
        ids = self.flat.tolist()
        return [ids[begin:end] for begin, end in itertools.pairwise(self.offsets.tolist())]

    def take(self, rows: np.ndarray) -> "Ragged":
        """Return the given rows, in memory."""
        begins = self.offsets[rows]
        lengths = self.offsets[rows + 1] - begins
        shifts = begins - np.cumsum(lengths) + lengths
        taken = self.flat.take(np.repeat(shifts, lengths) + np.arange(lengths.sum()))
        return Ragged.from_lengths(taken, lengths)


class TokenPairs(NamedTuple):
    """Pairs of token ids. Both sides end in EOS, as labels do; a batch adds the target's BOS."""

    sources: Ragged
    targets: Ragged

    def lengths(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the source and target positions, S and T, that each pair takes."""
        return self.sources.lengths[rows], self.targets.lengths[rows]


def choose(first: np.ndarray, a: Ragged, b: Ragged) -> Ragged:
    """Return row i of `a` if `first[i]` is true, else row i of `b`."""
    if first.all():
        return a
    both = Ragged(np.append(a.flat, b.flat), np.append(a.offsets, a.offsets[-1] + b.offsets[1:]))
    rows = np.arange(len(first))
    return both.take(np.where(first, rows, len(a) + rows))


@dataclasses.dataclass(frozen=True)
class Tokenized:
    """Token ids of the training pairs without an empty side, and the origin of each pair."""

    pairs: TokenPairs
    rows: np.ndarray  # the pairs of an epoch, without long pairs and repeated by `data.weights`
    places: np.ndarray  # (pairs, 2): the number of each pair's corpus, and its line number
    names: list[str]  # of the corpora, in messages
    report: Report

    def name(self, pair: int) -> str:
        """Return the file and the line of a pair."""
        corpus, line = self.places[pair]
        return f"{self.names[corpus]}:{line}"


def make_vocabularies(corpora: list[Corpus], data: DataConfig) -> Vocabularies:
    """Learn vocabularies from all training pairs, or load the files that `data` names."""
    external = [Vocabulary.load(Path(x)).hash if x else "" for x in data.vocabulary_files]
    tokenizers = component_key(data.tokenizer, data.target_tokenizer)
    settings = [data.vocabulary_size, data.joint_vocabulary, tokenizers, external]

    def texts() -> Iterator[tuple[str, str]]:
        for corpus in corpora:
            yield from ((row[1], row[2]) for row in read(corpus, data.bad_lines, Report()))

    def build(folder: Path) -> None:
        log.info("vocabulary  into %s ...", folder.parent)
        # A loaded vocabulary is saved as well, because saving rounds the scores of a unigram.
        Vocabularies.train(texts, data).save(folder)

    folder = cached(data, "vocabulary", [text_key(corpora, data), settings], build)
    return Vocabularies.load(folder, data.joint_vocabulary)


def tokenize_corpora(
    corpora: list[Corpus], vocabularies: Vocabularies, data: DataConfig
) -> Tokenized:
    """Return all pairs of the corpora, concatenated; truncated if `data.long_pairs` is truncate."""
    limit = data.max_length if data.long_pairs == "truncate" else None

    def build(folder: Path) -> None:
        write_tokens(folder, corpora, vocabularies, data)

    folder = cached(data, "tokens", [text_key(corpora, data), vocabularies.hash, limit], build)
    pairs, places, report = open_entry(folder)
    names = [corpus.names[0] for corpus in corpora]
    weights = np.array(data.corpus_weights(len(corpora)))[places[:, 0]]
    too_long = np.any([side.lengths > data.max_length for side in pairs], axis=0)
    rows = np.repeat(np.arange(len(places), dtype=np.int32), weights * ~too_long)
    tokenized = Tokenized(pairs, rows, places, names, report)
    for pair in np.flatnonzero(too_long):
        report.add("too_long", tokenized.name(int(pair)))
    if too_long.all():
        raise nothing_to_train_on(corpora, report)
    return tokenized


def nothing_to_train_on(corpora: list[Corpus], report: Report) -> UserError:
    names = ", ".join(dict.fromkeys(name for corpus in corpora for name in corpus.names))
    return UserError(f"{names}: no pair to train on; {'; '.join(report.lines())}")


def tokenize(split: Split, vocabularies: Vocabularies, data: DataConfig) -> TokenPairs:
    """Return the token ids of all texts, without cutting any."""
    return TokenPairs(*map(Ragged.from_rows, encode(split, vocabularies, data)))


def encode(split: Split, vocabularies: Vocabularies, data: DataConfig) -> list[list[list[int]]]:
    """Return the ids of all sources and of all targets, each text with its EOS."""
    texts = model_sources(split.sources, vocabularies, data), split.targets
    ids = [vocabulary.encode(side) for vocabulary, side in zip(vocabularies, texts, strict=True)]
    return [[[*text, EOS] for text in side] for side in ids]


def model_sources(
    sentences: Sequence[str], vocabularies: Vocabularies, data: DataConfig
) -> list[str]:
    """Return the sources as the model reads them, converted by the scorer."""
    scorer = components.find("config.data.scorer", "scorer", data.scorer)
    return [scorer.source(sentence, vocabularies) for sentence in sentences]


def write_tokens(
    folder: Path, corpora: list[Corpus], vocabularies: Vocabularies, data: DataConfig
) -> None:
    """Write all files of a cache entry; see `open_entry`."""
    log.info("tokenizing  into %s ...", folder.parent)
    report = Report()
    index: dict[str, list[np.ndarray]] = {"places": [], "source": [], "target": []}
    with (
        contextlib.closing(Progress("pair", None)) as progress,
        (folder / "source.ids").open("wb") as source_file,
        (folder / "target.ids").open("wb") as target_file,
    ):
        for places, pairs in tokenized_chunks(corpora, vocabularies, data, report):
            source_file.write(pairs.sources.flat.data)
            target_file.write(pairs.targets.flat.data)
            index["places"].append(places)
            index["source"].append(pairs.sources.lengths)
            index["target"].append(pairs.targets.lengths)
            progress.advance(len(places))
    if not index["places"]:
        raise nothing_to_train_on(corpora, report)
    arrays: dict[str, Any] = {name: np.concatenate(parts) for name, parts in index.items()}
    np.savez(folder / "index.npz", **arrays, decisions=json.dumps(report.decisions))


def tokenized_chunks(
    corpora: list[Corpus], vocabularies: Vocabularies, data: DataConfig, report: Report
) -> Iterator[tuple[np.ndarray, TokenPairs]]:
    """Yield the places and the token ids of up to `CHUNK` pairs at a time."""
    for number, corpus in enumerate(corpora):
        pairs = pairs_with_text(corpus, data.bad_lines, report)
        while chunk := list(itertools.islice(pairs, CHUNK)):
            lines, sources, targets = zip(*chunk, strict=True)
            ids = encode(Split(sources, targets), vocabularies, data)
            for line, *pair in zip(lines, *ids, strict=True):
                if data.long_pairs == "truncate" and truncate(pair, data.max_length):
                    report.add("truncated", f"{corpus.names[0]}:{line}")
            places = np.array([(number, line) for line in lines], np.int32)
            yield places, TokenPairs(*map(Ragged.from_rows, ids))


def truncate(pair: list[list[int]], limit: int) -> bool:
    """Cut both texts to `limit` ids, EOS included; return whether one was longer."""
    is_longer = any(len(ids) > limit for ids in pair)
    for ids in pair:
        del ids[limit - 1 : -1]
    return is_longer


def pairs_with_text(corpus: Corpus, policy: str, report: Report) -> Iterator[tuple[int, str, str]]:
    """Yield the line number and the texts of each pair; report pairs with an empty side."""
    for number, source, target in read(corpus, policy, report):
        if source.strip() and target.strip():
            yield number, source, target
        else:
            report.add("empty", f"{corpus.names[0]}:{number}")


def open_entry(folder: Path) -> tuple[TokenPairs, np.ndarray, Report]:
    """Return pairs, places and report of an entry; `UserError` if a file is missing or cut."""
    sides = []
    try:
        with (folder / "index.npz").open("rb") as file:
            index = dict(np.load(file))
        for side in SIDES:
            shape = (int(index[side].sum()),)
            ids = np.memmap(folder / f"{side}.ids", np.int32, "r", shape=shape)
            sides.append(Ragged.from_lengths(ids, index[side]))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(
            f"{folder}: corrupt cache entry ({error}); delete this folder and rerun"
        ) from error
    return TokenPairs(*sides), index["places"], Report(json.loads(str(index["decisions"])))


def text_key(corpora: list[Corpus], data: DataConfig) -> list:
    """Return everything that determines the text: the bytes of the files and how they are read.

    A file's name determines its format, and the languages select columns. The options of the data
    set may change the text, and a user's files may do anything. Folders are not included.
    """
    digests = [digest for corpus in corpora for _, digest in corpus.hashes]
    names = [path.name for corpus in corpora for path in corpus.files]
    return [digests, names, data.languages, data.bad_lines, component_key(data.name, data.scorer)]


def component_key(*texts: str) -> list:
    """Return component strings without folders, and the hashes of the user's files."""
    return [*map(components.without_folders, texts), components.hashes_of(texts)]


def cache_folder(data: DataConfig) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(data.cache or Path(cache) / "jformer")


def cached(data: DataConfig, kind: str, depends_on: Any, build: Callable[[Path], None]) -> Path:
    """Return the folder of a cache entry, which `build` fills if it does not exist yet."""
    key = hashlib.sha256(json.dumps([VERSION, kind, depends_on]).encode()).hexdigest()[:24]
    root = cache_folder(data)
    folder, partial = root / f"{kind}-{key}", root / f"{kind}-{key}.partial"
    try:
        if not folder.exists():
            root.mkdir(parents=True, exist_ok=True)
            with FileLock(root / f"{kind}-{key}.lock"):
                if not folder.exists():  # otherwise another run has just built it
                    shutil.rmtree(partial, ignore_errors=True)  # from a killed run
                    partial.mkdir()
                    build(partial)
                    partial.rename(folder)
            with contextlib.suppress(FileNotFoundError):  # another process removed it
                remove_old_entries(root)
    except OSError as error:
        raise UserError(
            f"config.data.cache={root}: cannot be written ({error.strerror or error}); "
            f"set config.data.cache=FOLDER"
        ) from error
    with contextlib.suppress(OSError):  # the entry may be another user's
        os.utime(folder)  # the time of its last use
    return folder


def remove_old_entries(root: Path) -> None:
    """Remove the least recently used tokens beyond `MAX_CACHE_BYTES`."""
    folders = [path.parent for path in root.glob("tokens-*/index.npz")]
    total = 0
    for folder in sorted(folders, key=os.path.getmtime, reverse=True):
        total += sum(path.stat().st_size for path in folder.iterdir())
        unused = time.time() - os.path.getmtime(folder)
        if total > MAX_CACHE_BYTES and unused > UNUSED_SECONDS:
            log.info("removing %s, unused for a week, from the cache", folder)
            shutil.rmtree(folder, ignore_errors=True)
