"""Translation and scoring of a stream of lines, in order and in bounded memory.

Lines are processed in windows of `config.decode.read_ahead`: read, decoded sorted by length, and
written. A kill loses the work on one window. Long outputs, which finish last in a search, cost less
in a large window.

Outputs go to FILE.partial, whose first line identifies the job: everything that the lines depend
on. The same command resumes after the last whole line. FILE is complete when FILE.partial is gone.
"""

import contextlib
import dataclasses
import io
import itertools
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jformer.console import Progress
from jformer.data.corpora import Corpus, Report, decode_lines, read, read_lines
from jformer.decoding.scoring import pharaoh
from jformer.decoding.translate import Hypothesis, warn_of_lines
from jformer.errors import RunError, UserError
from jformer.files import is_special, writing
from jformer.run import Run, Scored


@dataclasses.dataclass(frozen=True)
class Output:
    """An open file, pipe or terminal that already has the outputs of `done` input lines."""

    file: io.FileIO
    target: str  # names the file in errors
    done: int = 0

    def write(self, text: str) -> None:
        """Write whole lines, without a buffer."""
        data = text.encode()
        with writing(self.target, RunError):
            while data:
                data = data[self.file.write(data) :]


@contextlib.contextmanager
def open_output(name: str, job: dict[str, Any]) -> Iterator[Output]:
    """Open a file to write or to resume, or standard output without a name.

    A device or a pipe is written directly, as is the output of an empty `job`, one of whose inputs
    can be read only once. Raises `UserError` if another job began the file.
    """
    target = f"--output={name}" if name else "standard output"
    if not name or not job or is_special(name):
        path = name or sys.stdout.fileno()
        with open(path, "wb", buffering=0, closefd=bool(name)) as file:
            yield Output(file, target)
        return
    partial = Path(f"{name}.partial")
    with partial.open("ab", buffering=0) as file:
        yield Output(file, target, resume(file, partial, job))
        with partial.open("rb") as lines, writing(target, RunError):
            lines.readline()
            with open(name, "wb") as complete:
                shutil.copyfileobj(lines, complete)
        partial.unlink()


def resume(file: io.FileIO, path: Path, job: dict[str, Any]) -> int:
    """Keep the whole lines of the file; return how many input lines are done."""
    head = json.dumps(job).encode() + b"\n"
    done = size = 0
    with path.open("rb") as lines:
        if not head.startswith(lines.readline()):  # a kill can cut it
            raise UserError(
                f"{path}: another command began it (see its first line); delete it to start "
                f"over, or choose another --output"
            )
        for line in lines:
            if line.endswith(b"\n"):
                done, size = done + 1, size + len(line)
    file.truncate(len(head) + size if done else 0)
    if not done:
        file.write(head)
    return done


def check_lines(names: Sequence[str], bad_lines: str) -> int | None:
    """Return the number of lines of the first of these files; None for a pipe or no name.

    Raises `UserError` for a bad line, or if one file has fewer lines, before any work.
    """
    files = [name for name in names if name and not is_special(name)]
    rows = parallel([(name, read_lines(Path(name))) for name in files], bad_lines)
    number = sum(1 for _ in rows)
    return number if names[0] in files else None


def translate_stream(
    run: Run,
    lines: Iterable[bytes],
    name: str,
    prefixes: Iterable[bytes] | None,
    output: Output,
    format: str,
    total: int | None,
) -> None:
    """Write the translations of all `lines` except the first `output.done`.

    Errors call line i `name:i`. `prefixes` must have one line per line of input.
    """
    sides = [(name, lines)] if prefixes is None else [(name, lines), ("prefix", prefixes)]
    rows = enumerate(parallel(sides, run.config.data.bad_lines), start=1)
    progress, cut = Progress("line", total, output.done), Report()
    for window in windows(rows, output, run):
        numbers, columns = zip(*window, strict=True)
        sources, *starts = zip(*columns, strict=True)
        start = starts[0] if starts else None
        found = run.hypotheses(sources, start, format != "text", numbers[0], cut)
        output.write("".join(map(TRANSLATIONS[format], numbers, sources, found)))
        progress.advance(len(window))
    progress.close()
    warn_of_lines(cut)


def parallel(sides: Sequence[tuple[str, Iterable[bytes]]], bad_lines: str) -> Iterator[list[str]]:
    """Yield the texts of line i of all sides; `UserError` names a bad or a missing line."""
    texts = [decode_lines(lines, name, bad_lines) for name, lines in sides]
    for number, row in enumerate(itertools.zip_longest(*texts), start=1):
        if None in row:
            name, _ = sides[row.index(None)]
            raise UserError(f"{name}:{number}: missing line; the files must be parallel")
        yield [*row]


def score_stream(run: Run, corpus: Corpus, output: Output, format: str) -> tuple[float, int]:
    """Write the scores of all pairs but the first `output.done`.

    Return the sum of their log-probabilities and their token count.
    """
    total, tokens = 0.0, 0
    pairs = read(corpus, run.config.data.bad_lines, Report(), strict=True)
    for window in windows(pairs, output, run):
        numbers, sources, targets = zip(*window, strict=True)
        scored = run.score(sources, targets, numbers[0])
        output.write("".join(map(SCORES[format], numbers, sources, targets, scored)))
        total += sum(pair.log_prob for pair in scored)
        tokens += sum(len(pair.token_log_probs) for pair in scored)
    return total, tokens


def windows(items: Iterator[Any], output: Output, run: Run) -> Iterator[list[Any]]:
    """Yield lists of successive items, except items that the output already has."""
    rest = itertools.islice(items, output.done, None)
    while window := list(itertools.islice(rest, run.config.decode.read_ahead)):
        yield window


def text_line(number: int, source: str, hypotheses: Sequence[Hypothesis]) -> str:
    # A line break inside a translation would shift all lines after it against the input.
    return hypotheses[0].text.replace("\n", " ") + "\n"


def json_line(number: int, source: str, hypotheses: Sequence[Hypothesis]) -> str:
    outputs = []
    for hypothesis in hypotheses:
        fields = dataclasses.asdict(hypothesis)
        fields |= {"alignment": pharaoh(hypothesis.alignment or []), "source": None, "output": None}
        outputs.append({key: value for key, value in fields.items() if value is not None})
    return as_json(line=number, source=source, outputs=outputs)


def score_text(number: int, source: str, target: str, scored: Scored) -> str:
    return f"{scored.log_prob:.6f}\n"


def score_json(number: int, source: str, target: str, scored: Scored) -> str:
    return as_json(line=number, source=source, target=target, **dataclasses.asdict(scored))


def as_json(**fields: Any) -> str:
    return json.dumps(fields, ensure_ascii=False) + "\n"


TRANSLATIONS = {"text": text_line, "jsonl": json_line}
SCORES = {"text": score_text, "jsonl": score_json}
