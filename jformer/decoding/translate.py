"""Translation of texts: sub-word ids, search, and hypotheses in the order of the texts.

In float32 the output for a text does not depend on the other texts, their order or `batch_size`. In
bfloat16 it can, because products of other shapes round differently.
"""

import dataclasses
import logging
import zlib
from collections.abc import Sequence

import numpy as np

from jformer.components import find, name_of
from jformer.config import EOS, PAD, DecodeConfig
from jformer.data.corpora import Report
from jformer.data.vocabulary import Vocabularies
from jformer.decoding.constraints import Constraint, Rules
from jformer.decoding.pool import Decoder, Request, slots_for
from jformer.decoding.prefixes import begins_with, encode_prefixes, ranking
from jformer.decoding.search import Hypotheses
from jformer.errors import RunError, UserError

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One output for a text.

    Its tokens, their log-probabilities and the alignment are set only with `details=True`. A blank
    text has none.
    """

    text: str
    score: float  # log_prob with the length penalty, by which the search ranks
    log_prob: float  # of its tokens, and of EOS if it is complete
    complete: bool  # whether it ended with EOS, not at its length limit
    source: Sequence[int] = ()  # ids without EOS, cut to config.data.max_length
    output: Sequence[int] = ()  # ids without EOS
    tokens: list[str] | None = None
    token_log_probs: list[float] | None = None  # one more than tokens, for EOS
    alignment: list[tuple[int, int]] | None = None  # indices of source word and target word
    well_formed: bool | None = None  # whether the output needed no repair, if known


@dataclasses.dataclass(frozen=True)
class Candidates:
    """The hypotheses for a text, from which a component of `config.decode.choose` selects one."""

    source: str
    hypotheses: Sequence[Hypothesis]  # the best by score first
    target_language: str


def highest_score(candidates: Candidates) -> int:
    """Return the index of the candidate with the highest score."""
    return 0


def hypotheses(
    decoder: Decoder,
    vocabularies: Vocabularies,
    texts: Sequence[str],
    prefixes: Sequence[str] | None = None,
    first_line: int = 1,
    target_language: str = "en",
    report: Report | None = None,
) -> list[list[Hypothesis]]:
    """Return up to `n_best` hypotheses for each text; a blank text gets its prefix, or "".

    If `choose` is not score, the result is a single hypothesis, chosen from these. Each output
    begins with its prefix. `first_line` is the line number of texts[0] in messages. A choice by
    BLEU requires the `target_language`. Cut lines are counted in `report`; without a report, a
    warning names them.
    """
    counts = Report() if report is None else report
    prefixes = prefixes or [""] * len(texts)
    config, constraint = decoder.config, constraint_of(decoder.config, vocabularies)
    requests = encode(decoder, vocabularies, constraint, texts, prefixes, first_line, counts)
    ranks_V = ranking(vocabularies.target).ranks_V if any(prefixes) else None
    rules = Rules(constraint, ranks_V, vocabularies.target.language_token)
    found = decoder.find([*requests.values()], rules)
    outputs = [[blank(prefix)] for prefix in prefixes]
    for (n, request), raw in zip(requests.items(), found, strict=True):
        outputs[n] = to_hypotheses(raw, request.source, vocabularies, config, first_line + n)
    if config.choose != "score":
        choose = find("config.decode.choose", "choice", config.choose)
        for n, text in enumerate(texts):
            index = choose(Candidates(text, outputs[n], target_language))
            outputs[n] = [outputs[n][index]]
    for n, prefix in enumerate(prefixes):
        if prefix and not begins_with(outputs[n][0].text, prefix, vocabularies.target):
            counts.add("prefix", f"line {first_line + n}")
    if report is None:
        warn_of_lines(counts)
    return outputs


def constraint_of(config: DecodeConfig, vocabularies: Vocabularies) -> Constraint:
    key = "config.decode.constraint"
    constraint = find(key, "constraint", config.constraint)(vocabularies.target)
    if constraint.needs_beam and name_of(config.search) != "beam":
        raise UserError(f"{key}={config.constraint}: requires config.decode.search=beam")
    return constraint


def warn_of_lines(report: Report) -> None:
    """Log the counts of a report, one line per reason."""
    for line in report.lines() if report.decisions else ():
        log.warning(line)


def encode(
    decoder: Decoder,
    vocabularies: Vocabularies,
    constraint: Constraint,
    texts: Sequence[str],
    prefixes: Sequence[str],
    first_line: int,
    report: Report,
) -> dict[int, Request]:
    """Return a request for each text that is not blank, by its index.

    A source that is too long is cut and reported.
    """
    max_length = decoder.max_length - 1
    numbers = [n for n, text in enumerate(texts) if text.strip()]
    sources = vocabularies.source.encode([texts[n] for n in numbers])
    starts = encode_prefixes([prefixes[n] for n in numbers], vocabularies.target)
    requests = {}
    for n, source, prefix in zip(numbers, sources, starts, strict=True):
        text = texts[n]
        if len(source) > max_length:
            report.add("cut", f"line {first_line + n}")
            source = source[:max_length]
            text = vocabularies.source.decode(source)
        seed = zlib.crc32(np.asarray(source, np.int32).tobytes()) >> 1  # fits int32
        given, progress = constraint.encode(text, source)
        requests[n] = Request(source, prefix.ids, seed, prefix.spans, given, progress)
    return requests


def to_hypotheses(
    raw: Hypotheses, source: list[int], vocabularies: Vocabularies, config: DecodeConfig, line: int
) -> list[Hypothesis]:
    """Return up to `n_best` hypotheses with their texts."""
    if np.isnan(raw.scores_W).any():
        raise RunError(
            f"line {line}: the model's logits are not finite, so there is no best output; try "
            f"another checkpoint, or model.dtype=float32"
        )
    result: list[Hypothesis] = []
    for tokens_T, score, log_prob in zip(raw.tokens_WT, raw.scores_W, raw.sums_W, strict=True):
        if score > -np.inf and len(result) < config.n_best:
            ids = tokens_T[tokens_T != PAD].tolist()
            complete = ids[-1:] == [EOS]
            ids = ids[:-1] if complete else ids
            text = vocabularies.target.decode(ids)
            result.append(Hypothesis(text, float(score), float(log_prob), complete, source, ids))
    if not result:
        raise UserError(
            f"line {line}: no output is possible with "
            f"config.decode.constraint={config.constraint} and this prefix"
        )
    return result


def blank(prefix: str) -> Hypothesis:
    """Return the output for a blank text."""
    return Hypothesis(prefix, 0.0, 0.0, True, tokens=[], token_log_probs=[], alignment=[])


def warm_up(
    decoder: Decoder, vocabularies: Vocabularies, lengths: Sequence[int], batch: int
) -> None:
    """Compile the searches for up to `batch` sentences with these numbers of source tokens."""
    constraint = constraint_of(decoder.config, vocabularies)
    rules = Rules(constraint, None, vocabularies.target.language_token)
    # A search of one token compiles the same program as a complete search.
    short = dataclasses.replace(decoder.config, max_length=1)
    decoder = dataclasses.replace(decoder, config=short)
    for length in lengths:
        ids = [EOS + 1] * min(length, decoder.max_length - 1)
        request = Request(ids, [], 0, (), *constraint.encode("", ids))
        for slots in sorted({slots_for(n) for n in range(1, batch + 1)}):
            decoder.find([request] * min(slots, decoder.slots), rules)
