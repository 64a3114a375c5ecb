"""Parallel text, from files of several formats, as a stream of pairs; and what bad lines become.

Only `\\n` ends a line: a U+2028 or a form feed inside a sentence must not shift all that follow. A
byte order mark at the beginning of a file and a carriage return at the end of a line are no text
and are removed; a last line may lack its `\\n`. Everything else stays as it is. What is removed,
replaced or left out is counted, with the first places.
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

from jformer.errors import UserError

# The two sides; any other number of fields is a bad line, and None no pair but the file's markup.
Row = Sequence[bytes | str | None] | None
# Of the talks of IWSLT's `train.tags.*`, on the same lines of both sides.
TAG = re.compile(
    rb"\s*</?(doc|url|title|talkid|speaker|keywords|reviewer|translator|description)\b"
)
SEGMENT = re.compile(rb"<seg\b[^>]*>(.*?)</seg\s*>", re.DOTALL | re.IGNORECASE)

# Reasons, in the order of a report, with what they did; "skipped" leaves a pair out.
DECISIONS = {
    "empty": "pairs skipped: a side is empty",
    "not_utf8": "pairs skipped: not UTF-8",
    "columns": "lines skipped: not two columns",
    "markup": "lines skipped: markup, or names of columns",
    "too_long": "pairs skipped: more tokens than config.data.max_length",
    "truncated": "pairs cut to config.data.max_length tokens",
    "replaced": "lines with bytes that are not UTF-8, replaced with U+FFFD",
    "carriage_return": "lines without the carriage return at their end",
    "byte_order_mark": "lines without the byte order mark at their beginning",
}
PLACES_KEPT = 3


@dataclasses.dataclass(frozen=True)
class Split:
    """Text at hand. Line i of one side is the translation of line i of the other."""

    sources: list[str]
    targets: list[str]
    places: Sequence[str] = ()  # of each pair, for messages; none, where it was read from no file

    def __len__(self) -> int:
        return len(self.sources)


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Text to be read as often as needed, which never stands in memory as a whole."""

    places: tuple[str, str]  # what an error calls line i of a side: f"{place}:{i}"
    files: tuple[Path, ...]  # that hold the text; none, where it is in memory
    rows: Callable[[], Iterator[Row]]


class Report:
    """What was decided about lines and pairs: how often, and where first."""

    def __init__(self, decisions: dict[str, dict] | None = None):
        self.decisions: dict[str, dict] = decisions or {}

    def add(self, reason: str, place: str, times: int = 1) -> None:
        entry = self.decisions.setdefault(reason, {"count": 0, "first": []})
        entry["count"] += times
        if len(entry["first"]) < PLACES_KEPT:
            entry["first"].append(place)

    def skipped(self) -> dict[str, int]:
        """`{reason: pairs or lines left out}`."""
        return {r: entry["count"] for r, entry in self._in_order() if "skip" in DECISIONS[r]}

    def lines(self) -> list[str]:
        """One line a reason, or one that says that there was none."""
        entries = self._in_order()
        told = [f"{e['count']:,} {DECISIONS[r]} ({', '.join(e['first'])})" for r, e in entries]
        return told or ["nothing skipped or changed"]

    def _in_order(self) -> list[tuple[str, dict]]:
        return [(r, self.decisions[r]) for r in DECISIONS if r in self.decisions]


def open_corpus(name: str, source_language: str, target_language: str) -> Corpus:
    """`FILE.tsv` (or `.gz`), `FILE.parquet`, or PREFIX for `PREFIX.en` and `PREFIX.de`."""
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
    """The columns that a first line names by the languages, else the first two; of any number."""
    wanted = [source_language.encode(), target_language.encode()]

    def rows() -> Iterator[Row]:
        columns = [0, 1]
        for number, line in enumerate(texts(path), start=1):
            fields = line.split(b"\t")
            if number == 1:
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
            yield [fields[i] for i in columns] if len(fields) > max(columns) else fields[:1]

    return Corpus((str(path), str(path)), (path,), rows)


def open_parquet(path: Path, source_language: str, target_language: str) -> Corpus:
    """Columns named by the languages, or a column `translation` that holds them."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(f"{path}: needs the package pyarrow: pip install 'jformer[hub]'") from error

    def cannot(error: Exception) -> UserError:
        return UserError(f"{path}: no Parquet file with text ({' '.join(str(error).split())})")

    faults = (OSError, pyarrow.ArrowException)
    languages = [source_language, target_language]
    nested = [f"translation.{language}" for language in languages]
    try:
        empty = pyarrow.parquet.read_schema(path).empty_table().flatten()
        columns = nested if {*nested} <= {*empty.column_names} else languages
        if not {*columns} <= {*empty.column_names}:
            raise UserError(f"{path}: has the columns {empty.column_names}; needs {languages}")
        # As bytes, so that what is not UTF-8 goes the way of all other lines.
        as_bytes = pyarrow.schema([(column, pyarrow.large_binary()) for column in columns])
        empty.select(columns).cast(as_bytes)
    except faults as error:
        raise cannot(error) from error

    def rows() -> Iterator[Row]:
        try:
            for batch in pyarrow.parquet.ParquetFile(path).iter_batches(columns=columns):
                table = pyarrow.Table.from_batches([batch]).flatten().select(columns)
                yield from zip(*(side.to_pylist() for side in table.cast(as_bytes)), strict=True)
        except faults as error:
            raise cannot(error) from error

    return Corpus((str(path), str(path)), (path,), rows)


def in_memory(name: str, split: Split) -> Corpus:
    """A corpus of text that is in memory anyway."""
    return Corpus((name, name), (), lambda: zip(split.sources, split.targets, strict=True))


def find_file(name: str) -> Path:
    if path := look_for(name):
        return path
    raise UserError(f"{name}: no such file, and no {name}.gz either; check the prefix and suffix")


def look_for(name: str) -> Path | None:
    """`name` itself, or packed by gzip, or with its sentences in the `<seg>` of SGML or XML."""
    found = [Path(name + suffix) for suffix in ("", ".gz", ".sgm", ".sgm.gz", ".xml", ".xml.gz")]
    return next((existing(path) for path in found if os.path.exists(path)), None)


def existing(path: Path) -> Path:
    # Not `path.is_dir()` and so on, which raise OSError where a name is too long.
    if os.path.isdir(path):
        raise UserError(f"{path}: is a directory; a text file is needed there")
    if not os.path.isfile(path):
        raise UserError(f"{path}: no such file")
    return path


def texts(path: Path) -> Iterator[bytes]:
    """The lines of a file without their `\\n`, or the segments of SGML or XML; by its name."""
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
    """A binary file goes line by line, and to it only `\\n` ends one."""
    return (line[:-1] if line.endswith(b"\n") else line for line in file)


def unescape(segment: bytes) -> bytes:
    """The text of a segment, in one line."""
    with contextlib.suppress(UnicodeDecodeError):  # for the bad-line policy to judge
        segment = html.unescape(segment.decode("utf-8")).encode("utf-8")
    return b" ".join(segment.split())


def read(
    corpus: Corpus, policy: str, report: Report, whole: bool = False
) -> Iterator[tuple[int, str, str]]:
    """Line number, source and target of each pair; bad lines by `policy`: error, replace or skip.

    With `whole` no pair is left out: what would be skipped is an error.
    """
    policy = "error" if whole and policy == "skip" else policy
    for number, row in enumerate(corpus.rows(), start=1):
        if row is None or len(row) != 2:
            place = f"{corpus.places[0]}:{number}"
            if row is not None and (policy == "error" or whole):
                way_out = "mend it, or for training text set --config.data.bad_lines=skip"
                raise UserError(f"{place}: not two columns with a tab between; {way_out}")
            report.add("markup" if row is None else "columns", place)
            continue
        pair: list[str] = []
        for line, side in zip(row, corpus.places, strict=True):
            text = clean(line, f"{side}:{number}", number == 1, policy, report)
            if text is None:
                break  # it counts as one pair, whatever its other side is
            pair.append(text)
        else:
            yield number, pair[0], pair[1]


def clean(
    line: bytes | str | None, place: str, begins: bool, policy: str, report: Report
) -> str | None:
    """The text of a line, or None where its pair is to be skipped."""
    if isinstance(line, bytes):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            if policy == "error":
                raise UserError(
                    f"{place}: not UTF-8 (byte 0x{line[error.start]:02x} at position "
                    f"{error.start} of the line); mend it, or set --config.data.bad_lines to "
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
    """Text of one language, a line for each line; bad bytes are replaced or an error."""
    policy, report = policy.replace("skip", "error"), Report()
    numbered = enumerate(lines, start=1)
    return [clean(line, f"{place}:{n}", n == 1, policy, report) or "" for n, line in numbered]
