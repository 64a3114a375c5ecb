"""Readers of parallel text in several file formats, and the policy for bad lines.

Only `\\n` ends a line: U+2028 or a form feed inside a sentence must not shift the lines after it.
A byte order mark at the beginning of a file and a carriage return at the end of a line are removed.
All other text stays as it is. A `Report` counts the skipped and changed lines of a corpus by
reason, with the first line numbers of each.
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
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jformer.errors import UserError, import_extra
from jformer.files import sha256_of

# Source and target, or the reason in `REASONS` why a line has neither.
Row = tuple[bytes | str, bytes | str] | str
Languages = tuple[str, str]  # of source and target
# Metadata of the talks in IWSLT's `train.tags.*`, on the same lines of both sides.
TAG = re.compile(
    rb"\s*</?(doc|url|title|talkid|speaker|keywords|reviewer|translator|description)\b"
)
SEGMENT = re.compile(rb"<seg\b[^>]*>(.*?)</seg\s*>", re.DOTALL | re.IGNORECASE)
SUFFIXES = ("", ".gz", ".sgm", ".sgm.gz", ".xml", ".xml.gz")  # of the file of one side

# The message of each reason.
REASONS = {
    "empty": "pairs skipped: a side is empty",
    "not_utf8": "lines skipped, with the other side: not UTF-8",
    "columns": "lines skipped: fewer than two columns, or not as many as the first line",
    "markup": "lines skipped: markup, or column names",
    "too_long": "pairs skipped: more tokens than config.data.max_length",  # long_pairs=skip
    "truncated": "pairs cut to config.data.max_length tokens",  # long_pairs=truncate
    "replaced": "lines with bytes that are not UTF-8, replaced with U+FFFD",
    "cut": "lines cut to config.data.max_length tokens; split long texts into sentences first",
    "prefix": "outputs without their line's prefix, which the vocabulary cannot express",
}
NAMES_KEPT = 3


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
        """Return `(name, hash of all bytes)` of each file, or of the text in memory.

        A file that changed in any way counts as a different corpus.
        """
        if self.files:
            return [(str(path), sha256_of(path)) for path in self.files]
        digest = hashlib.sha256()
        for row in self.rows():
            digest.update(json.dumps(row).encode() + b"\n")
        return [(self.names[0], digest.hexdigest())]


@dataclasses.dataclass
class Report:
    """Counts of skipped and changed lines and pairs by reason, with the first locations."""

    decisions: dict[str, dict] = dataclasses.field(default_factory=dict)

    def add(self, reason: str, name: str) -> None:
        entry = self.decisions.setdefault(reason, {"count": 0, "first": []})
        entry["count"] += 1
        if len(entry["first"]) < NAMES_KEPT:
            entry["first"].append(name)

    def lines(self) -> list[str]:
        """Return one line per reason, or a single line if nothing was skipped or changed."""
        lines = [
            f"{entry['count']:,} {REASONS[reason]} ({', '.join(entry['first'])})"
            for reason, entry in self.decisions.items()
        ]
        return lines or ["nothing skipped or changed"]


def open_corpus(name: str, source_language: str, target_language: str) -> Corpus:
    """Open `FILE.tsv`, `FILE.tsv.gz`, `FILE.parquet`, or PREFIX for `PREFIX.en` and `PREFIX.de`."""
    languages = (source_language, target_language)
    for suffix, open_file in FORMATS.items():
        if name.endswith(suffix):
            return open_file(require_file(Path(name)), languages)
    source, target = (find_with_suffix(f"{name}.{language}") for language in languages)
    if source and target:
        return open_files(source, target)
    missing = target_language if source else source_language
    raise UserError(
        f"{name}.{missing}: not found, nor with .gz, .sgm or .xml; set the PREFIX of "
        f"PREFIX.{source_language} and PREFIX.{target_language}, or a .tsv or .parquet file"
    )


def open_files(source: Path, target: Path) -> Corpus:
    """Open one file per side."""
    tagged = ".tags." in source.name

    def rows() -> Iterator[Row]:
        for one, other in itertools.zip_longest(read_lines(source), read_lines(target)):
            if one is None or other is None:
                short, long = (source, target) if one is None else (target, source)
                raise UserError(
                    f"{short} has fewer lines than {long}: line i of both must be the same sentence"
                )
            yield "markup" if tagged and TAG.match(one) and TAG.match(other) else (one, other)

    return Corpus((str(source), str(target)), (source, target), rows)


def open_tsv(path: Path, languages: Languages) -> Corpus:
    """Open the columns that a header names by language, or else the first two.

    Every line must have as many columns as the first: a tab inside a sentence would shift them.
    """

    def rows() -> Iterator[Row]:
        lines = (line.split(b"\t") for line in read_lines(path))
        first = next(lines, [])
        names = [field.removeprefix(BOM_UTF8).strip().decode("utf-8", "replace") for field in first]
        named = [language for language in languages if language in names]
        if len(named) == 1:
            raise UserError(f"{path}: line 1 names only {named[0]}; name both languages or neither")
        source, target = map(names.index, named) if named else (0, 1)
        for fields in itertools.chain([first], lines):
            if named and fields is first:
                yield "markup"
            elif len(fields) == len(first) > 1:
                yield fields[source], fields[target]
            else:
                yield "columns"

    return Corpus((str(path), str(path)), (path,), rows)


def open_parquet(path: Path, languages: Languages) -> Corpus:
    """Open a Parquet file, see `open_table`."""
    tables = load_tables(str(path), languages, "parquet", data_files=str(path))
    return open_table(tables["train"], str(path), (path,), languages)


def load_tables(name: str, languages: Languages, path: str, **options: Any) -> Any:
    """Return the tables by split that the package `datasets` loads from `path` and caches.

    The configuration is SOURCE-TARGET or TARGET-SOURCE, if there is one, or else the default.
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


def open_table(table: Any, name: str, files: tuple[Path, ...], languages: Languages) -> Corpus:
    """Open a table with a column per language, or with both in its column `translation`."""
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


FORMATS = {".tsv": open_tsv, ".tsv.gz": open_tsv, ".parquet": open_parquet}


def find_with_suffix(name: str) -> Path | None:
    """Return the file `name`, or its .gz, or its SGML or XML with sentences in `<seg>`, or None."""
    return next((Path(name + suffix) for suffix in SUFFIXES if os.path.isfile(name + suffix)), None)


def require_file(path: Path) -> Path:
    """Return the path, or raise `UserError` if it is not a file."""
    if not os.path.isfile(path):  # unlike Path.is_file, also for a name that is too long
        raise UserError(f"{path}: not found, or not a file")
    return path


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file without their `\\n`, or the segments of an .sgm or .xml file."""
    plain = path.name.removesuffix(".gz")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            if plain.endswith((".sgm", ".xml")):
                yield from (unescape(segment[1]) for segment in SEGMENT.finditer(file.read()))
            else:
                yield from without_ends(file)
    except (OSError, EOFError, zlib.error) as error:  # the last two: a cut or corrupt gzip file
        raise UserError(f"{path}: cannot be read ({error})") from error


def without_ends(file: Iterable[bytes]) -> Iterator[bytes]:
    """Return the lines without their `\\n`, the only line end of a file opened in binary mode."""
    return (line.removesuffix(b"\n") for line in file)


def unescape(segment: bytes) -> bytes:
    """Return the text of a segment on one line, with decoded character references."""
    text = html.unescape(segment.decode("utf-8", "surrogateescape"))
    return b" ".join(text.encode("utf-8", "surrogateescape").split())


def read(
    corpus: Corpus, policy: str, report: Report, strict: bool = False
) -> Iterator[tuple[int, str, str]]:
    """Yield line number, source and target of each pair; `policy` is error, replace or skip.

    If `strict`, a bad line that would be skipped is an error.
    """
    policy = "error" if strict and policy == "skip" else policy
    for number, row in enumerate(corpus.rows(), start=1):
        names = [f"{name}:{number}" for name in corpus.names]
        if isinstance(row, str):
            if row == "columns" and (policy == "error" or strict):
                raise UserError(
                    f"{names[0]}: must have at least two columns, and as many as the first line; "
                    f"check its tabs, or set config.data.bad_lines=skip (training data only)"
                )
            report.add(row, names[0])
            continue
        source, target = (
            decode_line(line, name, number == 1, policy, report)
            for line, name in zip(row, names, strict=True)
        )
        if source is not None and target is not None:
            yield number, source, target


def decode_line(
    line: bytes | str, name: str, is_first: bool, policy: str, report: Report
) -> str | None:
    """Return the text of a line, or None if its pair must be skipped."""
    if isinstance(line, str):
        text = line
    else:
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            if policy == "error":
                raise UserError(
                    f"{name}: not UTF-8 (byte 0x{line[error.start]:02x} at position "
                    f"{error.start} of the line); fix the line or convert the file, or set "
                    f"config.data.bad_lines=replace, or skip (training data only)"
                ) from error
            report.add("replaced" if policy == "replace" else "not_utf8", name)
            if policy == "skip":
                return None
            text = line.decode("utf-8", "replace")
    return (text.removeprefix("\ufeff") if is_first else text).removesuffix("\r")


def decode_lines(lines: Iterable[bytes], name: str, policy: str) -> Iterator[str]:
    """Yield one text per line, in one language; invalid UTF-8 is replaced or an error."""
    policy = policy.replace("skip", "error")  # an output belongs to each line
    for n, line in enumerate(lines, start=1):
        yield decode_line(line, f"{name}:{n}", n == 1, policy, Report()) or ""
