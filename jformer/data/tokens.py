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
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from filelock import FileLock, Timeout
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
# Parts of a file's name that decide how its text is read. The languages select columns of some.
COLUMNS = (".tsv", ".parquet", ".arrow")
READ_BY_NAME = (*COLUMNS, ".tags.", ".sgm", ".xml", ".gz")


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
    places: list[str]  # name of each corpus in messages
    report: Report

    def place(self, pair: int) -> str:
        return f"{self.places[bisect.bisect_right(self.ends, pair)]}:{self.lines[pair]}"


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
        if not total:
            places = " and ".join(place for corpus in corpora for place in corpus.places)
            raise UserError(f"{places}: empty files; pairs to train on are needed there")
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
    with naming_damage(folder):
        return Vocabularies.load(folder, data.joint_vocabulary)


def tokenize_corpora(
    corpora: list[Corpus], content: str, vocabularies: Vocabularies, data: DataConfig
) -> Tokenized:
    """Return all pairs of the corpora, concatenated; truncated if `data.long_pairs` says so.

    `content` is the corpora's `content_hash`.
    """
    options, limit = reading_options(corpora, data), truncated_length(data)
    depends_on = [content, options, vocabularies.hash, data.bad_lines, limit]

    def build(folder: Path) -> None:
        write_tokens(folder, corpora, vocabularies, data)

    folder = cached(data, "tokens", depends_on, build)
    with naming_damage(folder):
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        sides = map(open_side, itertools.repeat(folder), SIDES, meta["dtypes"])
        pairs = TokenPairs(*sides)
        lines = np.load(folder / "lines.npy", mmap_mode="r")
    report = report_of(meta["decisions"], corpora)
    places = [corpus.places[0] for corpus in corpora]
    return Tokenized(pairs, lines, meta["ends"], places, report)


def select_training_pairs(tokenized: Tokenized, data: DataConfig) -> np.ndarray:
    """Return the pairs to train on, repeated by `data.weights`; report those that are too long."""
    S, T = (side.lengths for side in tokenized.pairs)
    short = (data.max_length >= S) & (data.max_length >= T)
    for pair in np.flatnonzero(~short):
        tokenized.report.add("too_long", tokenized.place(int(pair)))
    if not short.any():
        reasons = "; ".join(tokenized.report.lines())
        raise UserError(f"{tokenized.places[0]}: no pair to train on; {reasons}")
    pairs_of_corpora = np.diff(tokenized.ends, prepend=0)
    weights = np.repeat(data.corpus_weights(len(pairs_of_corpora)), pairs_of_corpora)
    return np.repeat(np.arange(len(short), dtype=np.int32), weights * short)


def tokenize(split: Split, vocabularies: Vocabularies, data: DataConfig) -> TokenPairs:
    """Return the token ids of a split to be scored, without skipping or cutting any text."""
    sources = model_sources(split.sources, vocabularies, data)
    return TokenPairs(
        with_eos(vocabularies.source.encode(sources)),
        with_eos(vocabularies.target.encode(split.targets)),
    )


def model_sources(
    sentences: Iterable[str], vocabularies: Vocabularies, data: DataConfig
) -> list[str]:
    """Return the sources as the model reads them, which the scorer decides."""
    scorer = components.find("config.data.scorer", "scorer", data.scorer)
    return [scorer.source(sentence, vocabularies) for sentence in sentences]


def with_eos(rows: list[list[int]], limit: int | None = None) -> Ragged:
    """Append EOS to the ids of each text; cut each to at most `limit` ids with EOS."""
    kept = None if limit is None else limit - 1
    return Ragged.from_rows([[*ids[:kept], EOS] for ids in rows])


def truncated_length(data: DataConfig) -> int | None:
    """Return how many ids of a text are kept, with EOS; None if all of them are."""
    return data.max_length if data.long_pairs == "truncate" else None


def count_rows(corpora: list[Corpus]) -> int:
    return sum(1 for corpus in corpora for _ in corpus.rows())


def write_tokens(
    folder: Path, corpora: list[Corpus], vocabularies: Vocabularies, data: DataConfig
) -> None:
    """Write all files of a cache entry."""
    began, total, limit = time.monotonic(), count_rows(corpora), truncated_length(data)
    log.info("tokenizing  %s pairs ...", f"{total:,}")
    dtypes = ["uint16" if vocabulary.size <= 2**16 else "int32" for vocabulary in vocabularies]
    reports = [Report() for _ in corpora]
    pairs_of_corpora = [0] * len(corpora)
    lines: list[np.ndarray] = []
    lengths: list[list[np.ndarray]] = [[], []]
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(contextlib.closing(Progress("pair", total)))
        files = [stack.enter_context((folder / f"{side}.ids").open("wb")) for side in SIDES]
        for which, numbers, split in chunks(corpora, data.bad_lines, reports):
            sources = model_sources(split.sources, vocabularies, data)
            encoded = [vocabularies.source.encode(sources)]
            encoded.append(vocabularies.target.encode(split.targets))
            if limit:
                for number, *pair in zip(numbers, *encoded, strict=True):
                    if max(map(len, pair)) >= limit:
                        reports[which].add("truncated", f"{corpora[which].places[0]}:{number}")
            for i, rows in enumerate(encoded):
                texts = with_eos(rows, limit)
                files[i].write(texts.flat.astype(dtypes[i]).data)
                lengths[i].append(texts.lengths)
            lines.append(np.array(numbers, np.uint32))
            pairs_of_corpora[which] += len(numbers)
            progress.advance(len(numbers))
    decisions = [decisions_of(*each) for each in zip(reports, corpora, strict=True)]
    if not lines:
        places = ", ".join(corpus.places[0] for corpus in corpora)
        reasons = "; ".join(report_of(decisions, corpora).lines())
        raise UserError(f"{places}: no pair to train on; {reasons}")
    np.save(folder / "lines.npy", np.concatenate(lines))
    for side, parts in zip(SIDES, lengths, strict=True):
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(parts), dtype=np.int64)])
        np.save(folder / f"{side}_offsets.npy", offsets)
    ends = list(itertools.accumulate(pairs_of_corpora))
    meta = {"dtypes": dtypes, "ends": ends, "decisions": decisions}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    log.info("tokenizing  took %.0f s; kept in %s", time.monotonic() - began, folder.parent)


def chunks(
    corpora: list[Corpus], policy: str, reports: list[Report]
) -> Iterator[tuple[int, list[int], Split]]:
    """Yield the index of a corpus with the line numbers and the texts of some of its pairs.

    Pairs with an empty side are left out and reported.
    """
    for which, (corpus, report) in enumerate(zip(corpora, reports, strict=True)):
        pairs = read(corpus, policy, report)
        while part := list(itertools.islice(pairs, CHUNK)):
            kept = []
            for pair in part:
                if pair[1].strip() and pair[2].strip():
                    kept.append(pair)
                else:
                    report.add("empty", f"{corpus.places[0]}:{pair[0]}")
            if kept:
                numbers, sources, targets = map(list, zip(*kept, strict=True))
                yield which, numbers, Split(sources, targets)


def decisions_of(report: Report, corpus: Corpus) -> dict[str, dict]:
    """Return the decisions about a corpus with `[side, line]` for each place, without paths."""

    def position(place: str) -> list[int]:
        path, _, line = place.rpartition(":")
        return [corpus.places.index(path), int(line)]

    return {
        reason: {**entry, "first": [position(place) for place in entry["first"]]}
        for reason, entry in report.decisions.items()
    }


def report_of(decisions: list[dict[str, dict]], corpora: list[Corpus]) -> Report:
    """Return the report of `decisions_of` each corpus, with the present paths of the corpora."""
    report = Report()
    for corpus, of_corpus in zip(corpora, decisions, strict=True):
        for reason, entry in of_corpus.items():
            places = [f"{corpus.places[side]}:{line}" for side, line in entry["first"]]
            for place in places:
                report.add(reason, place)
            report.decisions[reason]["count"] += entry["count"] - len(places)
    return report


def open_side(folder: Path, side: str, dtype: str) -> Ragged:
    """Open the ids of one side; raise `ValueError` if a file is shorter than it should be."""
    offsets = np.load(folder / f"{side}_offsets.npy", mmap_mode="r")
    flat = np.memmap(folder / f"{side}.ids", dtype, "r")
    if len(flat) != offsets[-1]:
        raise ValueError(f"{side}.ids has {len(flat):,} ids instead of {offsets[-1]:,}")
    return Ragged(flat, offsets)


def content_hashes(corpora: list[Corpus]) -> list[tuple[str, str]]:
    """Return `(name, hash of all bytes)` of each file, and of each corpus in memory.

    A file that changed in any way counts as another corpus.
    """

    def of_file(path: Path) -> str:
        try:
            return sha256_of(path)
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from error

    files = [path for corpus in corpora for path in corpus.files]
    with ThreadPoolExecutor(2) as pool:
        hashes = list(zip(map(str, files), pool.map(of_file, files), strict=True))
    in_memory = [corpus for corpus in corpora if not corpus.files]
    return hashes + [(corpus.places[0], hash_of_rows(corpus)) for corpus in in_memory]


def content_hash(corpora: list[Corpus]) -> str:
    """Return the hashes of all text in one string, for use in the keys of cache entries."""
    return " ".join(content for _, content in content_hashes(corpora))


def hash_of_rows(corpus: Corpus) -> str:
    """Return the SHA-256 of text in memory: phrases, or a small data set of the hub."""
    digest = hashlib.sha256()
    for row in corpus.rows():
        digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()


def reading_options(corpora: list[Corpus], data: DataConfig) -> list:
    """Return what decides the text of files besides their bytes: parts of names, and options.

    The options of the data set decide the text of trees, and a user's files may do anything.
    """
    markers = [
        [[marker for marker in READ_BY_NAME if marker in path.name] for path in corpus.files]
        for corpus in corpora
    ]
    by_language = bool(components.parse(data.name).file) or any(
        marker in COLUMNS for corpus in markers for file in corpus for marker in file
    )
    languages = [data.source_language, data.target_language] if by_language else []
    return [markers, languages, component_key(data.name, data.scorer)]


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
            with lock(root / f"{kind}-{key}.lock"):
                if not folder.exists():  # else another run has built it in the meantime
                    shutil.rmtree(partial, ignore_errors=True)  # left by a run that was killed
                    partial.mkdir()
                    build(partial)
                    partial.rename(folder)
            remove_old_entries(root)
    except OSError as error:
        raise UserError(
            f"config.data.cache={root}: cannot be written ({error.strerror or error}); "
            f"set config.data.cache=FOLDER"
        ) from error
    with contextlib.suppress(OSError):  # the entry may be another user's
        os.utime(folder)  # the time of its last use
    return folder


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold a lock; log a line if another process has it."""
    held = FileLock(path)
    try:
        held.acquire(timeout=0)
    except Timeout:
        log.info("waiting for another run that prepares the same data (%s)", path)
        held.acquire()
    try:
        yield
    finally:
        held.release()


def remove_old_entries(root: Path) -> None:
    """Remove the entries used least recently, beyond `MAX_CACHE_BYTES`."""
    found = [path for kind in KINDS for path in root.glob(f"{kind}-{'[0-9a-f]' * 24}*")]
    folders = [path for path in found if path.is_dir()]
    used = {folder: folder.stat().st_mtime for folder in folders}
    total = 0
    for folder in sorted(folders, key=used.__getitem__, reverse=True):
        total += sum(path.stat().st_size for path in folder.iterdir())
        if total > MAX_CACHE_BYTES and used[folder] < time.time() - UNUSED_SECONDS:
            log.info("removing %s, unused for a week, from the cache", folder)
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def naming_damage(folder: Path) -> Iterator[None]:
    """Raise a failure to open a cache entry as a `UserError` that names its folder."""
    try:
        yield
    except (OSError, ValueError, LookupError, UserError) as error:
        reason = error.__cause__ or error
        raise UserError(
            f"{folder}: damaged cache entry ({reason}); delete this folder and run the same "
            f"command again"
        ) from error
