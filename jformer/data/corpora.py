"""Readers of parallel text in several file formats, and the policy for bad lines.

Only `\\n` ends a line: a U+2028 or a form feed inside a sentence must not shift the lines after it.
A byte order mark at the beginning of a file and a carriage return at the end of a line are removed;
the last line may lack its `\\n`. All other text stays as it is. Whatever is removed, replaced or
skipped is counted, and its first places are kept for the report.
"""

import contextlib
import dataclasses
import gzip
import html
import itertools
import os
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jformer.errors import UserError, import_extra

# Source and target; the whole line if its number of columns is wrong; None for markup or a header.
Row = Sequence[bytes | str | None] | None
# Metadata of the talks in IWSLT's `train.tags.*`, on the same lines of both sides.
TAG = re.compile(
    rb"\s*</?(doc|url|title|talkid|speaker|keywords|reviewer|translator|description)\b"
)
SEGMENT = re.compile(rb"<seg\b[^>]*>(.*?)</seg\s*>", re.DOTALL | re.IGNORECASE)

# The message of each reason, in the order of a report; "skipped" marks those that drop a pair.
DECISIONS = {
    "empty": "pairs skipped: a side is empty",
    "not_utf8": "pairs skipped: not UTF-8",
    "columns": "lines skipped: fewer than two columns, or not as many as the first line",
    "markup": "lines skipped: markup, or names of columns",
    "too_long": "pairs skipped: more tokens than config.data.max_length",
    "truncated": "pairs cut to config.data.max_length tokens",
    "replaced": "lines with bytes that are not UTF-8, replaced with U+FFFD",
    "carriage_return": "lines without the carriage return at their end",
    "byte_order_mark": "lines without the byte order mark at their beginning",
    "cut": "lines cut to config.data.max_length tokens; config.decode.long_texts=split translates "
    "all of them",
    "prefix": "outputs without the prefix of their line, which the vocabulary cannot express",
}
PLACES_KEPT = 3


@dataclasses.dataclass(frozen=True)
class Split:
    """Parallel text in memory; line i of one side is the translation of line i of the other."""

    sources: list[str]
    targets: list[str]
    places: Sequence[str] = ()  # of each pair, for messages; empty if not read from a corpus
    gold: Sequence[Any] = ()  # of each pair, for a scorer that needs more than the target's text

    def __len__(self) -> int:
        return len(self.sources)


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Parallel text that can be streamed repeatedly, without reading all of it into memory."""

    places: tuple[str, str]  # of each side; messages call its line i f"{place}:{i}"
    files: tuple[Path, ...]  # that hold the text; empty if it is in memory
    rows: Callable[[], Iterator[Row]]
    gold: Callable[[], list[Any]] | None = None  # see Split


class Report:
    """Counts of the decisions about lines and pairs, with the first places of each."""

    def __init__(self, decisions: dict[str, dict] | None = None):
        self.decisions: dict[str, dict] = decisions or {}

    def add(self, reason: str, place: str, times: int = 1) -> None:
        entry = self.decisions.setdefault(reason, {"count": 0, "first": []})
        entry["count"] += times
        if len(entry["first"]) < PLACES_KEPT:
            entry["first"].append(place)

    def skipped(self) -> dict[str, int]:
        """Return `{reason: number of pairs or lines left out}`."""
        return {r: entry["count"] for r, entry in self._in_order() if "skip" in DECISIONS[r]}

    def lines(self) -> list[str]:
        """Return one line per reason, or a line that says that nothing was skipped or changed."""
        entries = self._in_order()
        told = [f"{e['count']:,} {DECISIONS[r]} ({', '.join(e['first'])})" for r, e in entries]
        return told or ["nothing skipped or changed"]

    def _in_order(self) -> list[tuple[str, dict]]:
        return [(r, self.decisions[r]) for r in DECISIONS if r in self.decisions]


def open_corpus(name: str, source_language: str, target_language: str) -> Corpus:
    """Open `FILE.tsv` (or `.tsv.gz`), `FILE.parquet`, or PREFIX for `PREFIX.en` and `PREFIX.de`."""
    if name.endswith((".tsv", ".tsv.gz")):
        return open_tsv(existing(Path(name)), source_language, target_language)
    if name.endswith(".parquet"):
        return open_parquet(existing(Path(name)), source_language, target_language)
    paths = [find_file(f"{name}.{language}") for language in (source_language, target_language)]
    return open_files(*paths)


def open_files(source: Path, target: Path) -> Corpus:
    def rows() -> Iterator[Row]:
        sides = texts(source), texts(target)
        for number, (one, other) in enumerate(itertools.zip_longest(*sides)):
            if one is None or other is None:
                longer = number + 1 + sum(1 for side in sides for _ in side)
                counts = (number, longer) if one is None else (longer, number)
                raise UserError(
                    f"{source} has {counts[0]} lines and {target} has {counts[1]}: "
                    f"line i of one must translate line i of the other"
                )
            tagged = tags and TAG.match(one) and TAG.match(other)
            yield None if tagged else (one, other)

    tags = ".tags." in source.name
    return Corpus((str(source), str(target)), (source, target), rows)


def open_tsv(path: Path, source_language: str, target_language: str) -> Corpus:
    """Open the columns that a header names by the languages, or else the first two.

    Every line must have as many columns as the first: a tab inside a sentence shifts the others.
    """
    wanted = [source_language.encode(), target_language.encode()]

    def rows() -> Iterator[Row]:
        columns, width = [0, 1], 0
        for number, line in enumerate(texts(path), start=1):
            fields = line.split(b"\t")
            if number == 1:
                width = len(fields)
                names = [field.removeprefix(BOM_UTF8).strip() for field in fields]
                if {*wanted} <= {*names}:
                    columns = [names.index(name) for name in wanted]
                    yield None
                    continue
                if {*wanted} & {*names}:
                    raise UserError(
                        f"{path}: its first line names one of {source_language} and "
                        f"{target_language} and not the other; name both, or neither"
                    )
            yield [fields[i] for i in columns] if len(fields) == width > 1 else [line]

    return Corpus((str(path), str(path)), (path,), rows)


def open_parquet(path: Path, source_language: str, target_language: str) -> Corpus:
    """Open the columns named by the languages, or those within a struct column `translation`."""
    pyarrow = import_extra("pyarrow", f"{path}: Parquet", "pyarrow")
    from pyarrow import parquet

    @contextlib.contextmanager
    def reading() -> Iterator[None]:
        try:
            yield
        except (OSError, pyarrow.ArrowException) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{path}: no Parquet file with text ({reason})") from error

    columns = [source_language, target_language]
    with reading():
        empty = parquet.read_schema(path).empty_table().flatten()
        nested = [f"translation.{language}" for language in columns]
        if {*nested} <= {*empty.column_names}:
            columns = nested
        if not {*columns} <= {*empty.column_names}:
            raise UserError(f"{path}: has the columns {empty.column_names}; needs {columns}")
        # Read as bytes, so that invalid UTF-8 is handled by the bad-line policy.
        as_bytes = pyarrow.schema([(column, pyarrow.large_binary()) for column in columns])
        empty.select(columns).cast(as_bytes)

    def rows() -> Iterator[Row]:
        with reading():
            for batch in parquet.ParquetFile(path).iter_batches(columns=columns):
                table = pyarrow.Table.from_batches([batch]).flatten().select(columns)
                yield from zip(*(side.to_pylist() for side in table.cast(as_bytes)), strict=True)

    return Corpus((str(path), str(path)), (path,), rows)


def in_memory(name: str, split: Split) -> Corpus:
    """Return a corpus of text that is already in memory."""
    return Corpus((name, name), (), lambda: zip(split.sources, split.targets, strict=True))


def find_file(name: str) -> Path:
    if path := look_for(name):
        return path
    raise UserError(f"{name}: no such file, and no {name}.gz either; check the prefix and suffix")


def look_for(name: str) -> Path | None:
    """Return the file `name`, or its .gz, or its SGML or XML with sentences in `<seg>`, or None."""
    found = [Path(name + suffix) for suffix in ("", ".gz", ".sgm", ".sgm.gz", ".xml", ".xml.gz")]
    return next((existing(path) for path in found if os.path.exists(path)), None)


def existing(path: Path) -> Path:
    # Not `path.is_dir()` and `path.is_file()`, which raise OSError if a name is too long.
    if os.path.isdir(path):
        raise UserError(f"{path}: is a directory; a text file is needed there")
    if not os.path.isfile(path):
        raise UserError(f"{path}: no such file")
    return path


def texts(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file without their `\\n`, or the segments of an .sgm or .xml file."""
    plain = path.name.removesuffix(".gz")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            if plain.endswith((".sgm", ".xml")):
                yield from (unescape(segment[1]) for segment in SEGMENT.finditer(file.read()))
            else:
                yield from without_ends(file)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: damaged gzip file ({error}); fetch or pack it again") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error


def without_ends(file: Iterable[bytes]) -> Iterator[bytes]:
    """Return the lines without their `\\n`, the only line end of a file opened in binary mode."""
    return (line.removesuffix(b"\n") for line in file)


def unescape(segment: bytes) -> bytes:
    """Return the text of a segment on one line, with its character references decoded."""
    with contextlib.suppress(UnicodeDecodeError):  # left to the bad-line policy
        segment = html.unescape(segment.decode("utf-8")).encode("utf-8")
    return b" ".join(segment.split())


def read(
    corpus: Corpus, policy: str, report: Report, whole: bool = False
) -> Iterator[tuple[int, str, str]]:
    """Yield line number, source and target of each pair; `policy` is error, replace or skip.

    With `whole` a bad line that would be skipped is an error.
    """
    policy = "error" if whole and policy == "skip" else policy
    for number, row in enumerate(corpus.rows(), start=1):
        if row is None or len(row) != 2:
            place = f"{corpus.places[0]}:{number}"
            if row is not None and (policy == "error" or whole):
                raise UserError(
                    f"{place}: must have two columns or more, and as many as the first line; look "
                    f"for tabs, or set config.data.bad_lines=skip (training data only)"
                )
            report.add("markup" if row is None else "columns", place)
            continue
        pair: list[str] = []
        for line, side in zip(row, corpus.places, strict=True):
            text = clean(line, f"{side}:{number}", number == 1, policy, report)
            if text is None:
                break  # the pair is counted once, whatever its other side is
            pair.append(text)
        else:
            yield number, pair[0], pair[1]


def clean(
    line: bytes | str | None, place: str, begins: bool, policy: str, report: Report
) -> str | None:
    """Return the text of a line, or None if its pair is to be skipped."""
    if isinstance(line, bytes):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            if policy == "error":
                raise UserError(
                    f"{place}: not UTF-8 (byte 0x{line[error.start]:02x} at position "
                    f"{error.start} of the line); mend it, or set config.data.bad_lines to "
                    f"replace, or for training text to skip"
                ) from error
            report.add("replaced" if policy == "replace" else "not_utf8", place)
            if policy == "skip":
                return None
            text = line.decode("utf-8", "replace")
    else:
        text = line or ""
    if begins and text.startswith("\ufeff"):
        report.add("byte_order_mark", place)
        text = text[1:]
    if text.endswith("\r"):
        report.add("carriage_return", place)
        text = text[:-1]
    return text


def read_text(lines: Iterable[bytes], place: str, policy: str) -> list[str]:
    """Return one text per line, in one language; invalid UTF-8 is replaced or an error."""
    policy, report = policy.replace("skip", "error"), Report()
    numbered = enumerate(lines, start=1)
    return [clean(line, f"{place}:{n}", n == 1, policy, report) or "" for n, line in numbered]
