"""Translation and scoring of a stream of lines, in order and in bounded memory.

Lines are processed in windows: read, decoded in the order of their lengths, and written. A window
takes about half a minute, but has at least `AT_LEAST` lines and at most `READ_AHEAD`.
So a kill loses little work, and the long outputs that a search ends with are few among many.
"""

import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from jformer.console import Progress
from jformer.data.corpora import Corpus, Report, clean, read
from jformer.decoding.alignment import pharaoh
from jformer.decoding.translate import warn_of_lines
from jformer.errors import UserError
from jformer.output import Output
from jformer.run import Run, Scored, Translation

SECONDS_AT_RISK = 30
AT_LEAST = 1000
READ_AHEAD = 10_000
TAB_OR_END = str.maketrans("\t\n", "  ")
VISIBLE = str.maketrans(" \t\n", "\u2581" * 3)


def translate_stream(
    run: Run,
    lines: Iterable[bytes],
    place: str,
    prefixes: Iterable[bytes] | None,
    output: Output,
    format: str,
    total: int | None,
    terms: Sequence[tuple[str, str]] = (),
) -> None:
    """Write the translations of all `lines` but the first `output.done`, which are written already.

    Errors name a line by `place` and its number. `prefixes` must have one line for each.
    """
    policy, report = run.config.data.bad_lines.replace("skip", "error"), Report()
    sides = [lines] if prefixes is None else [lines, prefixes]
    numbered = enumerate(itertools.zip_longest(*sides), start=1)
    progress, cut = Progress("line", total, output.done), Report()
    try:
        for window in windows(itertools.islice(numbered, output.done, None), run):
            columns: list[list[str]] = [[] for _ in sides]
            for number, row in window:
                for column, line, name in zip(columns, row, (place, "prefix"), strict=False):
                    if line is None:
                        raise UserError(f"{name}:{number}: missing; each line must have its prefix")
                    text = clean(line, f"{name}:{number}", number == 1, policy, report)
                    column.append(text or "")
            first, details = window[0][0], format != "text"
            starts = None if prefixes is None else columns[1]
            found = run.hypotheses(columns[0], starts, details, first, terms, cut)
            rows = zip(itertools.count(first), columns[0], found, strict=False)
            output.write("".join(TRANSLATIONS[format](*row) for row in rows))
            progress.advance(len(window))
        progress.close()
    finally:
        warn_of_lines(cut)  # also if a signal stops the command: its next start has other lines


def score_stream(run: Run, corpus: Corpus, output: Output, format: str) -> tuple[float, int]:
    """Write the score of each pair; return the sum of log-probabilities and the token count."""
    total, tokens = 0.0, 0
    pairs = read(corpus, run.config.data.bad_lines, Report(), whole=True)
    for window in windows(pairs, run):
        numbers, sources, targets = zip(*window, strict=True)
        scored = run.score(sources, targets, numbers[0])
        rows = zip(numbers, sources, targets, scored, strict=True)
        output.write("".join(SCORES[format](*row) for row in rows))
        total += sum(one.log_prob for one in scored)
        tokens += sum(len(one.token_log_probs) for one in scored)
    if not tokens:
        raise UserError(f"{' and '.join(corpus.places)}: are empty; sentences are needed there")
    return total, tokens


def windows(items: Iterator[Any], run: Run) -> Iterator[list[Any]]:
    most = READ_AHEAD
    size = min(AT_LEAST, most)
    while window := list(itertools.islice(items, size)):
        began = time.monotonic()
        yield window
        pace = len(window) / (time.monotonic() - began)
        size = min(max(AT_LEAST, int(pace * SECONDS_AT_RISK)), most)


def text_row(number: int, source: str, found: Sequence[Translation]) -> str:
    # A line break inside a translation would shift all lines after it against the input.
    return found[0].text.replace("\n", " ") + "\n"


def json_row(number: int, source: str, found: Sequence[Translation]) -> str:
    outputs = []
    for one in found:
        fields = dataclasses.asdict(one) | {"alignment": pharaoh(one.alignment or [])}
        if one.well_formed is None:
            del fields["well_formed"]  # only a parser's outputs have it
        outputs.append(fields)
    return as_json({"line": number, "source": source, "outputs": outputs})


def tsv_rows(number: int, source: str, found: Sequence[Translation]) -> str:
    """Return a row per hypothesis: line, rank, score, log-probability, text, tokens, alignment.

    Spaces inside tokens are shown as U+2581.
    """
    return "".join(
        tsv(
            number,
            rank,
            f"{one.score:.6f}",
            f"{one.log_prob:.6f}",
            one.text,
            visible(one.tokens or []),
            pharaoh(one.alignment or []),
        )
        for rank, one in enumerate(found, start=1)
    )


def as_json(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def tsv(*fields: Any) -> str:
    return "\t".join(str(field).translate(TAB_OR_END) for field in fields) + "\n"


def visible(tokens: Sequence[str]) -> str:
    return " ".join(token.translate(VISIBLE) for token in tokens)


TRANSLATIONS: dict[str, Callable[[int, str, Sequence[Translation]], str]] = {
    "text": text_row,
    "jsonl": json_row,
    "tsv": tsv_rows,
}
SCORES: dict[str, Callable[[int, str, str, Scored], str]] = {
    "text": lambda number, source, target, one: f"{one.log_prob:.6f}\n",
    "jsonl": lambda number, source, target, one: as_json(
        {"line": number, "source": source, "target": target, **dataclasses.asdict(one)}
    ),
    "tsv": lambda number, source, target, one: tsv(
        number,
        f"{one.log_prob:.6f}",
        f"{one.perplexity:.4f}",
        visible(one.tokens),
        " ".join(f"{x:.4f}" for x in one.token_log_probs),
    ),
}
