"""Token ids of corpora: made once, kept in a cache on disk, and memory-mapped.

An entry of the cache is a folder, named by a hash of everything its content depends on: the bytes
of the files, how they are read, the vocabulary, the settings. Paths are not among these. An entry
is written under a temporary name and renamed when it is complete, under a lock. So a killed run
leaves no partial entry, and of two concurrent runs the second waits.

The text is streamed: memory does not grow with the corpus, except for two lengths and a line
number per pair.
"""

import bisect
import contextlib
import dataclasses
import hashlib
import itertools
import json
import logging
import mmap
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from filelock import AcquireReturnProxy, FileLock, Timeout
from numpy.typing import ArrayLike

from jformer import components
from jformer.config import EOS, DataConfig
from jformer.console import Progress
from jformer.data.corpora import Corpus, Report, Split, read
from jformer.data.vocabulary import Vocabularies, Vocabulary
from jformer.errors import UserError
from jformer.files import sha256_of

log = logging.getLogger(__name__)

VERSION = 5  # of the entry format and of what is read from a file; changing it makes new entries
MAX_CACHE_BYTES = 50 * 2**30  # about ten corpora as large as WMT14 English-French
UNUSED_SECONDS = 7 * 24 * 3600  # before an entry may be removed, so that no run is using it
CHUNK = 10_000  # pairs tokenized together
VOCABULARY_SAMPLE = 2_000_000  # maximum number of pairs to learn a vocabulary from
SIDES = ("source", "target")
KINDS = ("vocabulary", "tokens")  # of entries


@dataclasses.dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of different lengths in one array; row i is `flat[offsets[i] : offsets[i + 1]]`."""

    flat: np.ndarray  # both arrays may be memory-mapped files
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
        for array in (self.flat, self.offsets):
            if isinstance(array.base, mmap.mmap):  # else a large corpus would count as memory
                array.base.madvise(mmap.MADV_DONTNEED)
        return Ragged.from_lengths(taken, lengths)


class TokenPairs(NamedTuple):
    """Pairs of token ids. Both sides end in EOS, as labels do; a batch adds the target's BOS."""

    sources: Ragged
    targets: Ragged

    def lengths(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the source and target positions, S and T, that each pair takes."""
        return self.sources.lengths[rows], self.targets.lengths[rows]


def choose(first: np.ndarray, a: Ragged, b: Ragged) -> Ragged:
    """Return row i of `a` where `first[i]` is true, and of `b` elsewhere."""
    if first.all():
        return a
    both = Ragged(np.append(a.flat, b.flat), np.append(a.offsets, a.offsets[-1] + b.offsets[1:]))
    rows = np.arange(len(first))
    return both.take(np.where(first, rows, len(a) + rows))


@dataclasses.dataclass(frozen=True)
class Tokenized:
    """Token ids of the training pairs without an empty side, and the origin of each pair."""

    pairs: TokenPairs
    lines: np.ndarray  # line number of each pair in its corpus
    ends: list[int]  # cumulative number of pairs at the end of each corpus
    names: list[str]  # of each corpus in messages
    report: Report

    def name(self, pair: int) -> str:
        """Return the file and the line of a pair."""
        return f"{self.names[bisect.bisect_right(self.ends, pair)]}:{self.lines[pair]}"


def make_vocabularies(corpora: list[Corpus], content: str, data: DataConfig) -> Vocabularies:
    """Learn vocabularies from evenly spaced training pairs, or load the files that `data` names.

    `content` is the corpora's `content_hash`.
    """
    external = [Vocabulary.from_file(Path(x)).hash if x else "" for x in data.vocabulary_files]
    tokenizers = component_key(data.tokenizer, data.target_tokenizer)
    settings = [data.vocabulary_size, data.joint_vocabulary, data.bad_lines, tokenizers, external]

    def build(folder: Path) -> None:
        if all(external):  # saved all the same: reloaded, the scores of a unigram change slightly
            Vocabularies.train(lambda: (), data).save(folder)
            return
        total, began = count_rows(corpora), time.monotonic()
        every = max(1, -(-total // VOCABULARY_SAMPLE))
        which = f"every {every}th of {total:,}" if every > 1 else f"{total:,}"
        log.info("vocabulary  learning from %s pairs ...", which)

        def pairs() -> Iterator[tuple[str, str]]:
            rows = (row for corpus in corpora for row in read(corpus, data.bad_lines, Report()))
            return (row[1:] for row in itertools.islice(rows, 0, None, every))

        Vocabularies.train(pairs, data).save(folder)
        log.info("vocabulary  took %.0f s", time.monotonic() - began)

    depends_on = [content, reading_options(corpora, data), settings]
    folder = cached(data, "vocabulary", depends_on, build)
    return Vocabularies.load(folder, data.joint_vocabulary)


def tokenize_corpora(
    corpora: list[Corpus], content: str, vocabularies: Vocabularies, data: DataConfig
) -> Tokenized:
    """Return all pairs of the corpora, concatenated; truncated if `data.long_pairs` says so.

    `content` is the corpora's `content_hash`.
    """
    limit = data.max_length if data.long_pairs == "truncate" else None
    options = reading_options(corpora, data)

    def build(folder: Path) -> None:
        write_tokens(folder, corpora, vocabularies, data, limit)

    depends_on = [content, options, vocabularies.hash, data.bad_lines, limit]
    folder = cached(data, "tokens", depends_on, build)
    meta, arrays = open_entry(folder)
    pairs = TokenPairs(*(Ragged(arrays[f"{x}.ids"], arrays[f"{x}.offsets"]) for x in SIDES))
    # The files may have been elsewhere when the entry was made.
    moved = dict(zip(meta["names"], names_of(corpora), strict=True))
    for decision in meta["decisions"].values():
        parts = (place.rpartition(":") for place in decision["first"])
        decision["first"] = [f"{moved[path]}:{line}" for path, _, line in parts]
    names = [corpus.names[0] for corpus in corpora]
    return Tokenized(pairs, arrays["lines"], meta["ends"], names, Report(meta["decisions"]))


def select_training_pairs(tokenized: Tokenized, data: DataConfig) -> np.ndarray:
    """Return the pairs to train on, repeated by `data.weights`; report those that are too long."""
    S, T = (side.lengths for side in tokenized.pairs)
    short = (data.max_length >= S) & (data.max_length >= T)
    for pair in np.flatnonzero(~short):
        tokenized.report.add("too_long", tokenized.name(int(pair)))
    if not short.any():
        reasons = "; ".join(tokenized.report.lines())
        raise UserError(f"{tokenized.names[0]}: no pair to train on; {reasons}")
    pairs_of_corpora = np.diff(tokenized.ends, prepend=0)
    weights = np.repeat(data.corpus_weights(len(pairs_of_corpora)), pairs_of_corpora)
    return np.repeat(np.arange(len(short), dtype=np.int32), weights * short)


def tokenize(split: Split, vocabularies: Vocabularies, data: DataConfig) -> TokenPairs:
    """Return the token ids of a split to be scored, without skipping or cutting any text."""
    sides = encode(split.sources, split.targets, vocabularies, data)
    return TokenPairs(*map(Ragged.from_rows, sides))


def encode(
    sources: Sequence[str], targets: Sequence[str], vocabularies: Vocabularies, data: DataConfig
) -> list[list[list[int]]]:
    """Return the ids of both sides, each text with EOS."""
    texts = model_sources(sources, vocabularies, data), targets
    ids = [vocabulary.encode(side) for vocabulary, side in zip(vocabularies, texts, strict=True)]
    return [[[*row, EOS] for row in side] for side in ids]


def model_sources(
    sentences: Sequence[str], vocabularies: Vocabularies, data: DataConfig
) -> list[str]:
    """Return the sources as the model reads them, which the scorer decides."""
    scorer = components.find("config.data.scorer", "scorer", data.scorer)
    return [scorer.source(sentence, vocabularies) for sentence in sentences]


def truncate(ids: list[int], limit: int) -> list[int]:
    return ids if len(ids) <= limit else [*ids[: limit - 1], EOS]


def count_rows(corpora: list[Corpus]) -> int:
    return sum(1 for corpus in corpora for _ in corpus.rows())


def names_of(corpora: list[Corpus]) -> list[str]:
    return [name for corpus in corpora for name in corpus.names]


def write_tokens(
    folder: Path,
    corpora: list[Corpus],
    vocabularies: Vocabularies,
    data: DataConfig,
    limit: int | None,
) -> None:
    """Write all files of a cache entry, with at most `limit` ids of each text."""
    began, total = time.monotonic(), count_rows(corpora)
    log.info("tokenizing  %s pairs ...", f"{total:,}")
    dtypes = {"lines": "uint32"}
    for side, vocabulary in zip(SIDES, vocabularies, strict=True):
        dtypes[f"{side}.ids"] = "uint16" if vocabulary.size <= 2**16 else "int32"
        dtypes[f"{side}.offsets"] = "int64"
    report, sizes, ends = Report(), dict.fromkeys(dtypes, 0), []
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(contextlib.closing(Progress("pair", total)))
        files = {name: stack.enter_context((folder / name).open("wb")) for name in dtypes}

        def write(name: str, values: np.ndarray | Sequence[int]) -> None:
            files[name].write(np.asarray(values, dtypes[name]).data)
            sizes[name] += len(values)

        for side in SIDES:
            write(f"{side}.offsets", [0])
        for corpus in corpora:
            pairs = pairs_with_text(corpus, data.bad_lines, report)
            while part := list(itertools.islice(pairs, CHUNK)):
                numbers, sources, targets = zip(*part, strict=True)
                sides = encode(sources, targets, vocabularies, data)
                if limit:
                    for number, *pair in zip(numbers, *sides, strict=True):
                        if max(map(len, pair)) > limit:
                            report.add("truncated", f"{corpus.names[0]}:{number}")
                    sides = [[truncate(ids, limit) for ids in rows] for rows in sides]
                for side, texts in zip(SIDES, map(Ragged.from_rows, sides), strict=True):
                    write(f"{side}.offsets", sizes[f"{side}.ids"] + texts.offsets[1:])
                    write(f"{side}.ids", texts.flat)
                write("lines", numbers)
                progress.advance(len(part))
            ends.append(sizes["lines"])
    if not sizes["lines"]:
        names = ", ".join(" and ".join(dict.fromkeys(corpus.names)) for corpus in corpora)
        raise UserError(f"{names}: no pair to train on; {'; '.join(report.lines())}")
    meta = {
        "arrays": {name: [dtypes[name], sizes[name]] for name in dtypes},
        "ends": ends,
        "decisions": report.decisions,
        "names": names_of(corpora),
    }
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    log.info("tokenizing  took %.0f s; kept in %s", time.monotonic() - began, folder.parent)


def pairs_with_text(corpus: Corpus, policy: str, report: Report) -> Iterator[tuple[int, str, str]]:
    """Yield the line number and the texts of each pair; report those with an empty side."""
    for number, source, target in read(corpus, policy, report):
        if source.strip() and target.strip():
            yield number, source, target
        else:
            report.add("empty", f"{corpus.names[0]}:{number}")


def open_entry(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the description and the arrays of tokenized text; `UserError` if a file is cut."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        return meta, {
            name: np.memmap(folder / name, dtype, "r", shape=(size,))
            for name, (dtype, size) in meta["arrays"].items()
        }
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder}: damaged cache entry ({error}); delete this folder and run again"
        ) from error


def content_hashes(corpora: list[Corpus]) -> list[tuple[str, str]]:
    """Return `(name, hash of all bytes)` of each file, and of each corpus in memory.

    A file that changed in any way counts as another corpus.
    """
    hashes = []
    for corpus in corpora:
        for path in corpus.files:
            try:
                hashes.append((str(path), sha256_of(path)))
            except OSError as error:
                raise UserError(f"{path}: cannot be read ({error.strerror})") from error
        if not corpus.files:
            digest = hashlib.sha256()
            for row in corpus.rows():
                digest.update(json.dumps(row).encode() + b"\n")
            hashes.append((corpus.names[0], digest.hexdigest()))
    return hashes


def content_hash(corpora: list[Corpus]) -> str:
    """Return the hashes of all text in one string, for use in the keys of cache entries."""
    return " ".join(content for _, content in content_hashes(corpora))


def reading_options(corpora: list[Corpus], data: DataConfig) -> list:
    """Return what decides the text of files besides their bytes, but not their paths.

    If a file has both sides, the languages select columns. The options of the data set decide the
    text of trees, and a user's files may do anything.
    """
    markup = [corpus.markup for corpus in corpora]
    has_columns = any(source == target for source, target in (corpus.names for corpus in corpora))
    languages = [data.source_language, data.target_language] if has_columns else []
    return [markup, languages, component_key(data.name, data.scorer)]


def component_key(*texts: str) -> list:
    """Return component strings without folders, and the hashes of the user's files."""
    hashes = {name: file.hash for name, file in components.files_of(texts).items()}
    return [*map(components.without_folders, texts), hashes]


def cache_folder(data: DataConfig) -> Path:
    if data.cache:
        return Path(data.cache)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jformer"
    except RuntimeError as error:
        raise UserError(
            "config.data.cache is empty, and this user has no home directory for a cache; "
            "set config.data.cache=FOLDER"
        ) from error


def cached(data: DataConfig, kind: str, depends_on: Any, build: Callable[[Path], None]) -> Path:
    """Return the folder of a cache entry, which `build` fills if it does not exist yet."""
    key = hashlib.sha256(json.dumps([VERSION, kind, depends_on]).encode()).hexdigest()[:24]
    root = cache_folder(data)
    folder, partial = root / f"{kind}-{key}", root / f"{kind}-{key}.partial"
    try:
        if not folder.exists():
            root.mkdir(parents=True, exist_ok=True)
            with acquire(root / f"{kind}-{key}.lock"):
                if not folder.exists():  # else another run has built it in the meantime
                    shutil.rmtree(partial, ignore_errors=True)  # left by a run that was killed
                    partial.mkdir()
                    build(partial)
                    partial.rename(folder)
            with contextlib.suppress(FileNotFoundError):  # another process removes them
                remove_old_entries(root)
    except OSError as error:
        raise UserError(
            f"config.data.cache={root}: cannot be written ({error.strerror or error}); "
            f"set config.data.cache=FOLDER"
        ) from error
    with contextlib.suppress(OSError):  # the entry may be another user's
        os.utime(folder)  # the time of its last use
    return folder


def acquire(path: Path) -> AcquireReturnProxy:
    """Return the context in which this process holds a lock; log a line if it has to wait."""
    lock = FileLock(path)
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        log.info("waiting for another run that prepares the same data (%s)", path)
        return lock.acquire()


def remove_old_entries(root: Path) -> None:
    """Remove the entries used least recently, beyond `MAX_CACHE_BYTES`."""
    folders = [path for kind in KINDS for path in root.glob(f"{kind}-{'[0-9a-f]' * 24}")]
    used = {folder: folder.stat().st_mtime for folder in folders}
    total = 0
    for folder in sorted(folders, key=used.__getitem__, reverse=True):
        total += sum(path.stat().st_size for path in folder.iterdir())
        if total > MAX_CACHE_BYTES and used[folder] < time.time() - UNUSED_SECONDS:
            log.info("removing %s, unused for a week, from the cache", folder)
            shutil.rmtree(folder, ignore_errors=True)
