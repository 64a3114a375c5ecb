"""Translation and scoring of a stream of lines, in order and window by window.

A window has `config.decode.read_ahead` lines, which are read, decoded sorted by length, and
written. Long outputs, which finish last in a search, cost less in a large window.

A translation of a file into a file can resume. Its outputs go to FILE.partial, whose first line
identifies the job: everything that the lines depend on. A kill loses the work on one window. FILE
is complete when FILE.partial is gone.
"""

import contextlib
import itertools
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from jformer.console import Progress, say
from jformer.data.corpora import Corpus, decode_lines, read
from jformer.decoding.scoring import pharaoh
from jformer.decoding.translate import Hypothesis
from jformer.errors import RunError, UserError
from jformer.files import writing
from jformer.run import Run, Scored

Texts = Sequence[tuple[str, Iterable[bytes]]]  # names and lines of parallel texts


@contextlib.contextmanager
def open_output(name: str, job: dict[str, Any] | None = None) -> Iterator[tuple[BinaryIO, int]]:
    """Open --output=NAME, or standard output; yield the file and how many input lines are done.

    With a job, the file is NAME.partial, which is copied to NAME after the last line.
    """
    path = f"{name}.partial" if job else name or sys.stdout.fileno()
    with writing(f"--output={name}" if name else "standard output", RunError):
        with open(path, "ab+" if job else "wb", closefd=bool(name)) as file:
            yield file, resume(file, job) if job else 0
        if job:
            with open(path, "rb") as lines, open(name, "wb") as complete:
                lines.readline()  # the job
                shutil.copyfileobj(lines, complete)
            os.unlink(f"{name}.partial")


def resume(file: BinaryIO, job: dict[str, Any]) -> int:
    """Begin the file of a job, or keep its whole lines; return how many input lines are done.

    Raises `UserError` if another job began the file.
    """
    head = json.dumps(job).encode() + b"\n"
    file.seek(0)
    first = file.readline()
    if first.endswith(b"\n") and first != head:
        raise UserError(f"{file.name}: another command began it; delete it to start over")
    sizes = [len(line) for line in file if line.endswith(b"\n")]  # a kill can cut the last one
    file.truncate(len(head) + sum(sizes) if first == head else 0)
    if first != head:
        file.write(head)
    if sizes:
        say(f"resuming after line {len(sizes):,}")
    return len(sizes)


def write(file: BinaryIO, lines: Iterable[str]) -> None:
    """Write whole lines, so that a reader sees them at once."""
    file.write("".join(lines).encode())
    file.flush()


def translate_stream(
    run: Run, texts: Texts, file: BinaryIO, format: str, total: int | None, done: int
) -> None:
    """Write the translations of all lines except the first `done`.

    `texts` are the sources and, optionally, a prefix for each.
    """
    rows = itertools.islice(parallel(texts), done, None)
    progress = Progress("line", total, done)
    for window in windows(rows, run.config.decode.read_ahead):
        numbers, sources, *starts = zip(*window, strict=True)
        prefixes = starts[0] if starts else None
        found = run.hypotheses(sources, prefixes, details=format != "text")
        outputs = zip(numbers, sources, found, strict=True)
        write(file, [translation_line(format, *output) for output in outputs])
        progress.advance(len(window))
    progress.close()


def parallel(texts: Texts) -> Iterator[tuple[Any, ...]]:
    """Yield the number and the texts of each line; `UserError` names a bad or a missing line."""
    sides = [decode_lines(lines, name) for name, lines in texts]
    for number, row in enumerate(itertools.zip_longest(*sides), start=1):
        if None in row:
            name, _ = texts[row.index(None)]
            raise UserError(f"{name}:{number}: missing line; the files must be parallel")
        yield number, *row


def score_stream(run: Run, corpus: Corpus, file: BinaryIO, format: str) -> tuple[float, int]:
    """Write the scores of all pairs; return the sum of log-probabilities and the token count."""
    total, tokens = 0.0, 0
    for window in windows(read(corpus), run.config.decode.read_ahead):
        numbers, sources, targets = zip(*window, strict=True)
        scored = run.score(sources, targets)
        pairs = zip(numbers, sources, targets, scored, strict=True)
        write(file, [score_line(format, *pair) for pair in pairs])
        total += sum(pair.log_prob for pair in scored)
        tokens += sum(len(pair.token_log_probs) for pair in scored)
    return total, tokens


def windows(rows: Iterator[Any], size: int) -> Iterator[list[Any]]:
    """Yield lists of successive rows."""
    while window := list(itertools.islice(rows, size)):
        yield window


def translation_line(format: str, number: int, source: str, n_best: list[Hypothesis]) -> str:
    if format == "text":
        # A line break inside a translation would shift all lines after it against the input.
        return n_best[0].text.replace("\n", " ") + "\n"
    outputs = []
    for hypothesis in n_best:
        fields = {name: x for name, x in vars(hypothesis).items() if x is not None}
        del fields["source"], fields["output"]
        fields["alignment"] = pharaoh(hypothesis.alignment or [])
        outputs.append(fields)
    return as_json(line=number, source=source, outputs=outputs)


def score_line(format: str, number: int, source: str, target: str, scored: Scored) -> str:
    if format == "text":
        return f"{scored.log_prob:.6f}\n"
    return as_json(line=number, source=source, target=target, **vars(scored))


def as_json(**fields: Any) -> str:
    return json.dumps(fields, ensure_ascii=False) + "\n"
