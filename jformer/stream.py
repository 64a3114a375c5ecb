"""Translation and scoring of a stream of lines, in order and in bounded memory.

Lines are processed in windows: read, decoded in the order of their lengths, and written. A window
takes about half a minute, but has at least `MIN_LINES` lines, at most `config.decode.read_ahead`.
A kill loses little work. Long outputs, which end last in a search, are few in a large window.
"""

import dataclasses
import itertools
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jformer.console import Progress
from jformer.data.corpora import Corpus, Report, decode_line, read, read_lines
from jformer.decoding.scoring import pharaoh
from jformer.decoding.translate import warn_of_lines
from jformer.errors import UserError
from jformer.files import is_special
from jformer.output import Output
from jformer.run import Run, Scored, Translation

SECONDS_AT_RISK = 30
MIN_LINES = 1000
TAB_OR_END = str.maketrans("\t\n", "  ")
VISIBLE = str.maketrans(" \t\n", "\u2581" * 3)


def check_lines(names: Sequence[str], bad_lines: str) -> int | None:
    """Return how many lines the first of these files has; None if it is a pipe or not named.

    Raises `UserError` for a bad line, or if one file has fewer lines, before any work.
    """
    files = [name for name in names if name and not is_special(name)]
    rows = parallel([(name, read_lines(Path(name))) for name in files], bad_lines)
    number = sum(1 for _ in rows)
    return number if names[0] in files else None


def check_pairs(corpus: Corpus, bad_lines: str) -> None:
    """Raise `UserError` for a bad line, or if there are no pairs, before any work."""
    if not sum(1 for _ in read(corpus, bad_lines, Report(), strict=True)):
        raise UserError(f"{' and '.join(corpus.names)}: must have sentences, but are empty")


def translate_stream(
    run: Run,
    lines: Iterable[bytes],
    place: str,
    prefixes: Iterable[bytes] | None,
    output: Output,
    format: str,
    total: int | None,
) -> None:
    """Write the translations of all `lines` but the first `output.done`.

    Errors name a line by `place` and its number. `prefixes` must have one line for each.
    """
    sides = [(place, lines)] if prefixes is None else [(place, lines), ("prefix", prefixes)]
    rows = parallel(sides, run.config.data.bad_lines)
    numbered = enumerate(itertools.islice(rows, output.done, None), start=output.done + 1)
    progress, cut = Progress("line", total, output.done), Report()
    try:
        for window in windows(numbered, run):
            numbers, columns = zip(*window, strict=True)
            sources, *starts = zip(*columns, strict=True)
            start = starts[0] if starts else None
            found = run.hypotheses(sources, start, format != "text", numbers[0], cut)
            output.write("".join(map(TRANSLATIONS[format], numbers, sources, found)))
            progress.advance(len(window))
        progress.close()
    finally:
        warn_of_lines(cut)  # also if a signal stops the command: its next start has other lines


def parallel(sides: Sequence[tuple[str, Iterable[bytes]]], bad_lines: str) -> Iterator[list[str]]:
    """Yield the texts of line i of all sides; `UserError` names a bad or a missing line."""
    policy, report = bad_lines.replace("skip", "error"), Report()  # each line has its output
    rows = itertools.zip_longest(*(lines for _, lines in sides))
    for number, row in enumerate(rows, start=1):
        texts_of_row = []
        for (name, _), line in zip(sides, row, strict=True):
            place = f"{name}:{number}"
            if line is None:
                raise UserError(f"{place}: missing; the files must be parallel")
            texts_of_row.append(decode_line(line, place, number == 1, policy, report) or "")
        yield texts_of_row


def score_stream(run: Run, corpus: Corpus, output: Output, format: str) -> tuple[float, int]:
    """Write the scores of all pairs but the first `output.done`.

    Return the sum of their log-probabilities and their token count.
    """
    total, tokens = 0.0, 0
    pairs = read(corpus, run.config.data.bad_lines, Report(), strict=True)
    for window in windows(itertools.islice(pairs, output.done, None), run):
        numbers, sources, targets = zip(*window, strict=True)
        scored = run.score(sources, targets, numbers[0])
        output.write("".join(map(SCORES[format], numbers, sources, targets, scored)))
        total += sum(pair.log_prob for pair in scored)
        tokens += sum(len(pair.token_log_probs) for pair in scored)
    return total, tokens


def windows(items: Iterator[Any], run: Run) -> Iterator[list[Any]]:
    max_size = run.config.decode.read_ahead
    size = min(MIN_LINES, max_size)
    while window := list(itertools.islice(items, size)):
        start = time.monotonic()
        yield window
        pace = len(window) / (time.monotonic() - start)
        size = min(max(MIN_LINES, int(pace * SECONDS_AT_RISK)), max_size)


def text_row(number: int, source: str, translations: Sequence[Translation]) -> str:
    # A line break inside a translation would shift all lines after it against the input.
    return translations[0].text.replace("\n", " ") + "\n"


def json_row(number: int, source: str, translations: Sequence[Translation]) -> str:
    outputs = []
    for translation in translations:
        fields = dataclasses.asdict(translation)
        fields["alignment"] = pharaoh(translation.alignment or [])
        outputs.append({key: value for key, value in fields.items() if value is not None})
    return as_json(line=number, source=source, outputs=outputs)


def tsv_rows(number: int, source: str, translations: Sequence[Translation]) -> str:
    """Return a row per hypothesis: line, rank, score, log-probability, text, tokens, alignment.

    Spaces inside tokens are shown as U+2581.
    """
    rows = []
    for rank, each in enumerate(translations, start=1):
        numbers = (number, rank, f"{each.score:.6f}", f"{each.log_prob:.6f}")
        links = pharaoh(each.alignment or [])
        rows.append(tsv(*numbers, each.text, visible(each.tokens or []), links))
    return "".join(rows)


def score_row(number: int, source: str, target: str, scored: Scored) -> str:
    return f"{scored.log_prob:.6f}\n"


def score_json(number: int, source: str, target: str, scored: Scored) -> str:
    return as_json(line=number, source=source, target=target, **dataclasses.asdict(scored))


def score_tsv(number: int, source: str, target: str, scored: Scored) -> str:
    log_probs = " ".join(f"{x:.4f}" for x in scored.token_log_probs)
    numbers = (number, f"{scored.log_prob:.6f}", f"{scored.perplexity:.4f}")
    return tsv(*numbers, visible(scored.tokens), log_probs)


def as_json(**fields: Any) -> str:
    return json.dumps(fields, ensure_ascii=False) + "\n"


def tsv(*fields: Any) -> str:
    return "\t".join(str(field).translate(TAB_OR_END) for field in fields) + "\n"


def visible(tokens: Sequence[str]) -> str:
    return " ".join(token.translate(VISIBLE) for token in tokens)


TRANSLATIONS = {"text": text_row, "jsonl": json_row, "tsv": tsv_rows}
SCORES = {"text": score_row, "jsonl": score_json, "tsv": score_tsv}
