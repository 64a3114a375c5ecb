"""Readers of parallel text in several file formats.

Only `\\n` ends a line: U+2028 or a form feed inside a sentence must not shift the lines after it.
A byte order mark at the beginning of a file and a carriage return at the end of a line are removed.
All other text stays as it is. A line is bad if it is not UTF-8 or has a wrong number of columns.
"""

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import html
import itertools
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jformer.errors import UserError, import_extra
from jformer.files import sha256_of

# Source and target; () if the columns are wrong, and None for markup instead of text.
Row = tuple[bytes | str, ...] | None
Languages = tuple[str, str]  # of source and target
# Metadata of the talks in IWSLT's `train.tags.*`, on the same lines of both sides.
TAG = re.compile(
    rb"\s*</?(doc|url|title|talkid|speaker|keywords|reviewer|translator|description)\b"
)
SEGMENT = re.compile(rb"<seg\b[^>]*>(.*?)</seg\s*>", re.DOTALL | re.IGNORECASE)
SUFFIXES = ("", ".gz", ".sgm", ".sgm.gz", ".xml", ".xml.gz")  # of the file of one side

FIX = "fix the line, or, for training data only, set config.data.bad_lines=skip"


@dataclasses.dataclass(frozen=True)
class Split:
    """Parallel text in memory; line i of one side is the translation of line i of the other."""

    sources: Sequence[str]
    targets: Sequence[str]
    gold: Sequence[Any] = ()  # for each pair, if a scorer needs more than the target's text
    more_references: Sequence[Sequence[str]] = ()  # one list per further translator

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def references(self) -> list[Sequence[str]]:
        return [self.targets, *self.more_references]

    @property
    def sha256(self) -> str:
        """Hash all lines; stored scores are valid for the same text only."""
        lines = [[*side] for side in (self.sources, *self.references)]
        lines += [[*map(str, self.gold)]] if self.gold else []
        return hashlib.sha256(json.dumps(lines).encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Parallel text that can be streamed repeatedly, without reading all of it into memory."""

    names: tuple[str, str]  # for each side; messages call its line i f"{name}:{i}"
    files: tuple[Path, ...]  # with the text; empty if it is in memory
    rows: Callable[[], Iterator[Row]]
    gold: Callable[[], list[Any]] | None = None  # see Split

    @functools.cached_property
    def hashes(self) -> list[tuple[str, str]]:
        """Return `(name, hash of all bytes)` of each file, or of the text in memory."""
        if self.files:
            return [(str(path), sha256_of(path)) for path in self.files]
        digest = hashlib.sha256()
        for row in self.rows():
            digest.update(json.dumps(row).encode() + b"\n")
        return [(self.names[0], digest.hexdigest())]


@dataclasses.dataclass
class Report:
    """Counts of skipped pairs by reason, with the first three locations."""

    decisions: dict[str, dict] = dataclasses.field(default_factory=dict)

    def add(self, reason: str, name: str) -> None:
        entry = self.decisions.setdefault(reason, {"count": 0, "first": []})
        entry["count"] += 1
        entry["first"] = [*entry["first"], name][:3]

    def __str__(self) -> str:
        skipped = [
            f"{entry['count']:,} pairs skipped: {reason} ({', '.join(entry['first'])})"
            for reason, entry in self.decisions.items()
        ]
        return "; ".join(skipped) or "nothing skipped or changed"


def open_corpus(name: str, source_language: str, target_language: str) -> Corpus:
    """Open `FILE.tsv`, `FILE.tsv.gz`, `FILE.parquet`, or PREFIX for `PREFIX.en` and `PREFIX.de`."""
    languages = (source_language, target_language)
    if name.endswith((".tsv", ".tsv.gz")):
        return open_tsv(require_file(Path(name)), languages)
    if name.endswith(".parquet"):
        path = require_file(Path(name))
        table = open_tables(name, languages, "parquet", data_files=name)["train"]
        return dataclasses.replace(table, names=(name, name), files=(path,))
    return open_files(*(find_side(f"{name}.{language}") for language in languages))


def find_side(name: str) -> Path:
    """Return the file `name`, or its .gz, or its SGML or XML with sentences in `<seg>`."""
    for suffix in SUFFIXES:
        if os.path.isfile(name + suffix):
            return Path(name + suffix)
    raise UserError(f"{name}: not found, nor with .gz, .sgm or .xml at the end")


def open_files(source: Path, target: Path) -> Corpus:
    """Open one file per side."""
    tagged = ".tags." in source.name

    def rows() -> Iterator[Row]:
        for one, other in itertools.zip_longest(read_lines(source), read_lines(target)):
            if one is None or other is None:
                raise UserError(f"{source} and {target} must have the same number of lines")
            yield None if tagged and TAG.match(one) and TAG.match(other) else (one, other)

    return Corpus((str(source), str(target)), (source, target), rows)


def open_tsv(path: Path, languages: Languages) -> Corpus:
    """Open the columns that a header names by language, or else the first two.

    Every line must have as many columns as the first: a tab inside a sentence would shift them.
    """

    def rows() -> Iterator[Row]:
        lines = (line.split(b"\t") for line in read_lines(path))
        first = next(lines, [])
        names = [field.decode("utf-8-sig", "replace").strip() for field in first]
        found = [names.index(language) for language in languages if language in names]
        if len(found) == 1:
            raise UserError(f"{path}: line 1 must name both languages or neither")
        source, target = found or (0, 1)
        for fields in itertools.chain([first], lines):
            if found and fields is first:
                yield None
            elif len(fields) == len(first) > 1:
                yield fields[source], fields[target]
            else:
                yield ()

    return Corpus((str(path), str(path)), (path,), rows)


def open_tables(name: str, languages: Languages, path: str, **options: Any) -> dict[str, Corpus]:
    """Return the tables of a data set by split, which the package `datasets` loads."""
    tables = load_tables(name, languages, path, options)
    return {
        split: open_table(table, f"{name}/{split}", languages) for split, table in tables.items()
    }


def load_tables(name: str, languages: Languages, path: str, options: dict[str, Any]) -> Any:
    """Return the tables by split that the package `datasets` loads from `path`.

    The configuration is SOURCE-TARGET, TARGET-SOURCE or the default, the first that exists.
    """
    advice = "; see docs/data.md, also for config.data.directory=FOLDER without a network"
    datasets = import_extra("datasets", f"{name}: reading it", "datasets", advice)
    try:
        for pair in (languages, languages[::-1]):
            with contextlib.suppress(ValueError):  # this configuration does not exist
                return datasets.load_dataset(path, "-".join(pair), **options)
        return datasets.load_dataset(path, None, **options)
    # Errors of the network, of files and of formats have no common class.
    except Exception as error:
        reason = " ".join(str(error.__cause__ or error).split())
        raise UserError(f"{name}: cannot be loaded ({reason}){advice}") from error


def open_table(table: Any, name: str, languages: Languages) -> Corpus:
    """Open a table with a column per language, or with both in its column `translation`."""
    files = tuple(Path(file["filename"]) for file in table.cache_files)
    table = table.flatten()
    choices = [languages, tuple(f"translation.{language}" for language in languages)]
    if "en" in languages:  # as in sentence-transformers/parallel-sentences-*
        choices.append(tuple("english" if x == "en" else "non_english" for x in languages))
    pair = next((pair for pair in choices if {*pair} <= {*table.column_names}), None)
    if pair is None:
        columns = ", ".join(table.column_names)
        raise UserError(f"{name}: must have columns {' and '.join(languages)}; it has {columns}")

    def rows() -> Iterator[Row]:
        for batch in table.iter(batch_size=1000):
            for source, target in zip(*(batch[column] for column in pair), strict=True):
                yield source or "", target or ""  # None if a cell is empty

    return Corpus((name, name), files, rows)


def in_memory(name: str, split: Split) -> Corpus:
    """Return a corpus of text that is already in memory."""
    return Corpus((name, name), (), lambda: zip(split.sources, split.targets, strict=True))


def require_file(path: Path) -> Path:
    """Return the path, or raise `UserError` if it is not a file."""
    if not os.path.isfile(path):  # unlike Path.is_file, also for a name that is too long
        raise UserError(f"{path}: not found, or not a file")
    return path


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file with their `\\n`, or the segments of an .sgm or .xml file."""
    plain = path.name.removesuffix(".gz")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            if plain.endswith((".sgm", ".xml")):
                yield from (unescape(segment[1]) for segment in SEGMENT.finditer(file.read()))
            else:
                yield from file
    except (OSError, EOFError, zlib.error) as error:  # the last two: a cut or corrupt gzip file
        raise UserError(f"{path}: cannot be read ({error})") from error


def unescape(segment: bytes) -> bytes:
    """Return the text of a segment on one line, with decoded character references."""
    text = html.unescape(segment.decode("utf-8", "surrogateescape"))
    return b" ".join(text.encode("utf-8", "surrogateescape").split())


def read(
    corpus: Corpus, bad_lines: str = "error", report: Report | None = None
) -> Iterator[tuple[int, str, str]]:
    """Yield line number, source and target of each pair; markup is skipped.

    A bad line is a `UserError`, or skipped if `bad_lines` is skip. The `report` of training text
    counts skipped lines; with a report, pairs with an empty side are skipped as well.
    """
    for number, row in enumerate(corpus.rows(), start=1):
        if row is None:
            continue
        place = f"{corpus.names[0]}:{number}"
        try:
            source, target = decode_row(row, corpus.names, number)
        except UserError:
            if bad_lines == "error":
                raise
            if report:
                report.add("bad_line", place)
            continue
        if report and not (source.strip() and target.strip()):
            report.add("empty", place)
        else:
            yield number, source, target


def decode_row(row: tuple[bytes | str, ...], names: Sequence[str], number: int) -> list[str]:
    """Return the texts of a row; `UserError` if the line is bad."""
    if not row:
        reason = "must have at least two columns, and as many as line 1"
        raise UserError(f"{names[0]}:{number}: {reason}; {FIX}")
    return [decode(line, name, number) for line, name in zip(row, names, strict=True)]


def decode(line: bytes | str, name: str, number: int) -> str:
    """Return the text of line `number` of a file; `UserError` if it is not UTF-8."""
    try:
        text = line if isinstance(line, str) else line.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{name}:{number}: not UTF-8; {FIX}") from error
    if number == 1:
        text = text.removeprefix("\ufeff")
    return text.removesuffix("\n").removesuffix("\r")


def decode_lines(lines: Iterable[bytes], name: str) -> Iterator[str]:
    """Yield one text per line, in one language; `UserError` if a line is not UTF-8."""
    for number, line in enumerate(lines, start=1):
        yield decode(line, name, number)
