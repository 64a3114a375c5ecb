"""Translation and scoring of a stream of lines, in order and in bounded memory.

Lines are processed in windows of `config.decode.read_ahead`: read, decoded sorted by length, and
written. Long outputs, which finish last in a search, cost less in a large window.

A translation of a file into a file can resume. Its outputs go to FILE.partial, whose first line
identifies the job: everything that the lines depend on. A kill loses the work on one window. FILE
is complete when FILE.partial is gone.
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

from jformer.console import Progress, say
from jformer.data.corpora import Corpus, Report, decode_lines, read
from jformer.decoding.scoring import pharaoh
from jformer.decoding.translate import Hypothesis, warn_of_lines
from jformer.errors import RunError, UserError
from jformer.files import writing
from jformer.run import Run, Scored

Texts = Sequence[tuple[str, Iterable[bytes]]]  # names and lines of parallel texts


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
def open_output(name: str) -> Iterator[Output]:
    """Open --output=NAME, or standard output without a name."""
    target = f"--output={name}" if name else "standard output"
    path = name or sys.stdout.fileno()
    with open(path, "wb", buffering=0, closefd=bool(name)) as file:
        yield Output(file, target)


@contextlib.contextmanager
def open_resumable(name: str, job: dict[str, Any]) -> Iterator[Output]:
    """Open NAME.partial to begin or resume a job; copy its lines to NAME after the last one.

    Raises `UserError` if another job began the file.
    """
    partial, target = Path(f"{name}.partial"), f"--output={name}"
    with partial.open("ab", buffering=0) as file:
        yield Output(file, target, resume(file, partial, job))
    with writing(target, RunError), partial.open("rb") as lines, open(name, "wb") as complete:
        lines.readline()  # the job
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
    if done:
        say(f"resuming after line {done:,}")
    else:
        file.write(head)
    return done


def translate_stream(
    run: Run, texts: Texts, output: Output, format: str, total: int | None
) -> None:
    """Write the translations of all lines except the first `output.done`.

    `texts` are the sources and, optionally, a prefix for each.
    """
    rows = enumerate(parallel(texts), start=1)
    progress, cut = Progress("line", total, output.done), Report()
    for window in windows(rows, output.done, run):
        numbers, columns = zip(*window, strict=True)
        sources, *starts = zip(*columns, strict=True)
        start = starts[0] if starts else None
        found = run.hypotheses(sources, start, format != "text", numbers[0], cut)
        lines = zip(numbers, sources, found, strict=True)
        output.write("".join(translation_line(format, *line) for line in lines))
        progress.advance(len(window))
    progress.close()
    warn_of_lines(cut)


def parallel(texts: Texts) -> Iterator[list[str]]:
    """Yield line i of all texts; `UserError` names a bad or a missing line."""
    sides = [decode_lines(lines, name) for name, lines in texts]
    for number, row in enumerate(itertools.zip_longest(*sides), start=1):
        if None in row:
            name, _ = texts[row.index(None)]
            raise UserError(f"{name}:{number}: missing line; the files must be parallel")
        yield [*row]


def score_stream(run: Run, corpus: Corpus, output: Output, format: str) -> tuple[float, int]:
    """Write the scores of all pairs; return the sum of log-probabilities and the token count."""
    total, tokens = 0.0, 0
    for window in windows(read(corpus), 0, run):
        numbers, sources, targets = zip(*window, strict=True)
        scored = run.score(sources, targets, numbers[0])
        lines = zip(numbers, sources, targets, scored, strict=True)
        output.write("".join(score_line(format, *line) for line in lines))
        total += sum(pair.log_prob for pair in scored)
        tokens += sum(len(pair.token_log_probs) for pair in scored)
    return total, tokens


def windows(items: Iterator[Any], done: int, run: Run) -> Iterator[list[Any]]:
    """Yield lists of successive items, without the first `done`."""
    rest = itertools.islice(items, done, None)
    while window := list(itertools.islice(rest, run.config.decode.read_ahead)):
        yield window


def translation_line(format: str, number: int, source: str, n_best: list[Hypothesis]) -> str:
    if format == "text":
        # A line break inside a translation would shift all lines after it against the input.
        return n_best[0].text.replace("\n", " ") + "\n"
    outputs = []
    for hypothesis in n_best:
        fields = dataclasses.asdict(hypothesis)
        fields |= {"alignment": pharaoh(hypothesis.alignment or []), "source": None, "output": None}
        outputs.append({key: value for key, value in fields.items() if value is not None})
    return as_json(line=number, source=source, outputs=outputs)


def score_line(format: str, number: int, source: str, target: str, scored: Scored) -> str:
    if format == "text":
        return f"{scored.log_prob:.6f}\n"
    return as_json(line=number, source=source, target=target, **dataclasses.asdict(scored))


def as_json(**fields: Any) -> str:
    return json.dumps(fields, ensure_ascii=False) + "\n"
