"""Token ids of corpora: built once, cached on disk and memory-mapped.

A cache entry is a folder, named by a hash of everything that its content depends on. It is written
under a temporary name and renamed when complete, under a lock. A killed run therefore leaves no
partial entry, and of two concurrent runs the second waits.

The text is streamed: memory only grows by a few numbers per pair.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from filelock import FileLock

from jformer import components
from jformer.backend import cache_folder
from jformer.config import EOS, DataConfig
from jformer.console import Progress
from jformer.data.corpora import Corpus, Report, Split, read
from jformer.data.vocabulary import Vocabularies, Vocabulary
from jformer.errors import UserError
from jformer.files import writing

log = logging.getLogger(__name__)

VERSION = 9  # of the entries and the reading of files; raise it to rebuild all entries
MAX_CACHE_BYTES = 50 * 2**30  # about five times WMT14 English-French
CHUNK = 10_000  # pairs tokenized together


@dataclasses.dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of different lengths in one array; row i is `flat[offsets[i] : offsets[i + 1]]`."""

    flat: np.ndarray  # may be a memory-mapped file
    lengths: np.ndarray

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]]) -> Self:
        flat = np.fromiter(itertools.chain.from_iterable(rows), np.int32)
        return cls(flat, np.array([len(row) for row in rows], np.int32))

    @functools.cached_property
    def offsets(self) -> np.ndarray:
        return np.append(0, np.cumsum(self.lengths, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.lengths)

    def rows(self) -> list[list[int]]:
        ids = self.flat.tolist()
        return [ids[begin:end] for begin, end in itertools.pairwise(self.offsets.tolist())]

    def take(self, rows: np.ndarray) -> "Ragged":
        """Return the given rows, in memory."""
        lengths = self.lengths[rows]
        shifts = self.offsets[rows] - np.cumsum(lengths) + lengths
        taken = self.flat.take(np.repeat(shifts, lengths) + np.arange(lengths.sum()))
        return Ragged(taken, lengths)


class TokenPairs(NamedTuple):
    """Pairs of token ids. Both sides end in EOS, as labels do; a batch adds the target's BOS."""

    sources: Ragged
    targets: Ragged

    def lengths(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the source and target positions, S and T, that each pair takes."""
        return self.sources.lengths[rows], self.targets.lengths[rows]


class Tokenized(NamedTuple):
    """Token ids of the training text."""

    pairs: TokenPairs
    rows: np.ndarray  # an epoch: indices of pairs, repeated by `data.weights`, without long pairs
    places: np.ndarray  # (pairs, 2): the index of each pair's corpus, and the line
    report: Report


def make_vocabularies(corpora: list[Corpus], data: DataConfig) -> Vocabularies:
    """Learn vocabularies from all training text, or load the files that `data` names."""
    files = [Vocabulary.load(Path(x)).hash if x else "" for x in data.vocabulary_files]
    key = [text_key(corpora, data), data.vocabulary_size, data.joint_vocabulary, files]

    def texts() -> Iterator[tuple[str, str]]:
        for corpus in corpora:
            for _, source, target in read(corpus, data.bad_lines):
                yield source, target

    def build(folder: Path) -> None:
        log.info("vocabulary  into %s ...", folder.parent)
        # A loaded vocabulary is saved as well, because saving rounds the scores of a unigram.
        Vocabularies.train(texts, data).save(folder)

    return Vocabularies.load(cached(data, "vocabulary", key, build), data.joint_vocabulary)


def tokenize_corpora(
    corpora: list[Corpus], vocabularies: Vocabularies, data: DataConfig
) -> Tokenized:
    """Return all pairs of the corpora, concatenated; `UserError` if none can be trained on."""

    def build(folder: Path) -> None:
        write_tokens(folder, corpora, vocabularies, data)

    folder = cached(data, "tokens", [text_key(corpora, data), vocabularies.hash], build)
    report = Report(json.loads((folder / "report.json").read_text()))
    index = np.fromfile(folder / "index", np.int32).reshape(-1, 4)
    places, lengths = index[:, :2], index[:, 2:]
    files = [folder / "source", folder / "target"]
    sizes = [file.stat().st_size for file in files]
    if sizes != (4 * lengths.sum(axis=0)).tolist():
        raise UserError(f"{folder}: corrupt cache entry; delete this folder and rerun")
    fits = (lengths <= data.max_length).all(axis=1)
    weights = np.array(data.corpus_weights(len(corpora)))
    repeats = weights[places[:, 0]] * fits
    rows = np.repeat(np.arange(len(places), dtype=np.int32), repeats)
    for corpus, line in places[~fits]:
        report.add("above_max_length", f"{corpora[corpus].names[0]}:{line}")
    if not len(rows):
        names = ", ".join(corpus.names[0] for corpus in corpora)
        raise UserError(f"{names}: no pair to train on; {report}")
    ids = [np.memmap(file, np.int32, "r") for file in files]
    return Tokenized(TokenPairs(*map(Ragged, ids, lengths.T)), rows, places, report)


def write_tokens(
    folder: Path, corpora: list[Corpus], vocabularies: Vocabularies, data: DataConfig
) -> None:
    """Write int32 files: the ids of each side; each pair's corpus, line and both lengths."""
    log.info("tokenizing  into %s ...", folder.parent)
    report = Report()
    with (
        contextlib.closing(Progress("pair", None)) as progress,
        (folder / "source").open("wb") as source_file,
        (folder / "target").open("wb") as target_file,
        (folder / "index").open("wb") as index_file,
    ):
        for number, corpus in enumerate(corpora):
            pairs = read(corpus, data.bad_lines, report)
            while chunk := list(itertools.islice(pairs, CHUNK)):
                lines, sources, targets = zip(*chunk, strict=True)
                ids = tokenize(Split(sources, targets), vocabularies, data)
                columns = [[number] * len(lines), lines, ids.sources.lengths, ids.targets.lengths]
                source_file.write(ids.sources.flat.data)
                target_file.write(ids.targets.flat.data)
                index_file.write(np.array(columns, np.int32).T.tobytes())
                progress.advance(len(lines))
    (folder / "report.json").write_text(json.dumps(report.decisions))


def tokenize(split: Split, vocabularies: Vocabularies, data: DataConfig) -> TokenPairs:
    """Return the token ids of all texts, without cutting any."""
    texts = model_sources(split.sources, vocabularies, data), split.targets
    sides = [vocabulary.encode(side) for vocabulary, side in zip(vocabularies, texts, strict=True)]
    return TokenPairs(*(Ragged.from_rows([[*ids, EOS] for ids in side]) for side in sides))


def model_sources(
    sentences: Sequence[str], vocabularies: Vocabularies, data: DataConfig
) -> list[str]:
    """Return the sources as the model reads them, converted by the scorer."""
    scorer = components.find("config.data.scorer", "scorer", data.scorer)
    return [scorer.source(sentence, vocabularies) for sentence in sentences]


def text_key(corpora: list[Corpus], data: DataConfig) -> list:
    """Return everything that determines the text, without folders.

    A file's name determines its format, and the languages select columns.
    """
    digests = [digest for corpus in corpora for _, digest in corpus.hashes]
    names = [path.name for corpus in corpora for path in corpus.files]
    parts = [data.name, data.scorer, data.tokenizer, data.target_tokenizer]
    own = components.hashes_of(parts)
    parts = [components.without_folders(part) for part in parts]
    return [digests, names, data.languages, data.bad_lines, parts, own]


def cached(data: DataConfig, kind: str, depends_on: Any, build: Callable[[Path], None]) -> Path:
    """Return the folder of a cache entry, which `build` fills if it does not exist yet."""
    key = hashlib.sha256(json.dumps([VERSION, depends_on]).encode()).hexdigest()[:24]
    root = Path(data.cache or cache_folder())
    folder, partial = root / f"{kind}-{key}", root / f"{kind}-{key}.partial"
    if not folder.exists():
        with writing(f"config.data.cache={root}"):
            root.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock"):
                if not folder.exists():  # otherwise another run has just built it
                    shutil.rmtree(partial, ignore_errors=True)  # from a killed run
                    partial.mkdir()
                    build(partial)
                    partial.rename(folder)
    with contextlib.suppress(OSError):  # the cache may be another user's
        os.utime(folder)  # the time of its last use
        remove_old_entries(root)
    return folder


def remove_old_entries(root: Path) -> None:
    """Remove the tokens beyond `MAX_CACHE_BYTES` of those used later."""
    total = 0
    folders = [path.parent for path in root.glob("tokens-*/report.json")]
    for folder in sorted(folders, key=os.path.getmtime, reverse=True):
        if total > MAX_CACHE_BYTES:
            log.info("removing %s from the cache", folder)
            shutil.rmtree(folder, ignore_errors=True)
        else:
            total += sum(path.stat().st_size for path in folder.iterdir())
