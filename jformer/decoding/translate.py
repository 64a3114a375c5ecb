"""Translation of texts: sub-word ids, search, and hypotheses in the order of the texts.

In float32 the output for a text does not depend on the other texts, their order or `batch_size`. In
bfloat16 it can, because products of other shapes round differently.
"""

import dataclasses
import logging
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jformer.components import find, name_of
from jformer.config import EOS, PAD, DecodeConfig
from jformer.data.corpora import Report
from jformer.data.vocabulary import Vocabularies
from jformer.decoding.constraints import Constraint, Rules
from jformer.decoding.pool import Decoder, Request, slots_for
from jformer.decoding.prefixes import Prefix, begins_with, encode_prefixes, ranking
from jformer.decoding.search import Hypotheses
from jformer.decoding.sentences import join_texts, pieces
from jformer.errors import RunError, UserError

log = logging.getLogger(__name__)


class Part(NamedTuple):
    """The source and the output of one search, as ids without EOS."""

    source: list[int]
    output: list[int]
    first_word: int  # index in the text of the word in which the source begins


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One output for a text. If the text was split, score and log_prob are sums over its parts.

    Tokens, their log-probabilities and the alignment are set only with `details=True`.
    """

    text: str
    score: float  # log_prob with the length penalty, by which the search ranks
    log_prob: float  # of its tokens, and of EOS if it is complete
    complete: bool  # whether it ended with EOS, not at its length limit
    parts: tuple[Part, ...] = ()  # more than one if the text was split, none if it is blank
    tokens: list[str] | None = None
    token_log_probs: list[float] | None = None  # one more than tokens, for EOS (of each part)
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
    prefixes, counts = prefixes or [""] * len(texts), report or Report()
    config, constraint = decoder.config, constraint_of(decoder.config, vocabularies)
    encoded = list(encode(decoder, vocabularies, texts, prefixes, first_line, counts))
    requests = []
    for _, text, _, ids, start in encoded:
        seed = zlib.crc32(np.asarray(ids, np.int32).tobytes()) >> 1  # fits int32
        given, progress = constraint.encode(text, ids)
        requests.append(Request(ids, start.ids, seed, start.spans, given, progress))
    ranks_V = ranking(vocabularies.target).ranks_V if any(prefixes) else None
    found = decoder.find(requests, Rules(constraint, ranks_V, vocabularies.target.language_token))
    parts: list[list[list[Hypothesis]]] = [[] for _ in texts]
    for i, (n, _, first_word, source, _) in enumerate(encoded):
        if np.isnan(found[i].scores_W).any():
            raise RunError(
                f"line {first_line + n}: the model's logits are not finite, so there is "
                f"no best output; try another checkpoint, or model.dtype=float32"
            )
        part = as_texts(found[i], source, first_word, vocabularies, config.n_best)
        if not part:
            raise UserError(
                f"line {first_line + n}: no output is possible with "
                f"config.decode.constraint={config.constraint} and this prefix"
            )
        parts[n].append(part)
    blank = [Hypothesis(prefix, 0.0, 0.0, True) for prefix in prefixes]
    outputs = [join(each) if each else [blank[n]] for n, each in enumerate(parts)]
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
    texts: Sequence[str],
    prefixes: Sequence[str],
    first_line: int,
    report: Report,
) -> Iterator[tuple[int, str, int, list[int], Prefix]]:
    """Yield the number of a text, a part of it, the part's first word, its ids and its prefix.

    A source that is too long is cut and reported, or split into several parts. A blank text has no
    part.
    """
    max_length = decoder.max_length - 1
    numbers = [n for n, text in enumerate(texts) if text.strip()]
    sources = vocabularies.source.encode([texts[n] for n in numbers])
    starts = encode_prefixes([prefixes[n] for n in numbers], vocabularies.target)
    for n, source, prefix in zip(numbers, sources, starts, strict=True):
        if len(prefix.ids) > max_length:
            raise UserError(
                f"line {first_line + n}: its prefix has {len(prefix.ids)} tokens; must be at most "
                f"{max_length} (config.data.max_length)"
            )
        parts = [(source, 0, texts[n])]
        if len(source) > max_length and decoder.config.long_texts == "split":
            parts = list(pieces(texts[n], max_length, vocabularies.source.encode))
        elif len(source) > max_length:
            report.add("cut", f"line {first_line + n}")
            cut = source[:max_length]
            parts = [(cut, 0, vocabularies.source.decode(cut))]
        for ids, first_word, text in parts:
            yield n, text, first_word, ids, prefix
            prefix = Prefix([], [])


def as_texts(
    raw: Hypotheses, source: list[int], first_word: int, vocabularies: Vocabularies, n: int
) -> list[Hypothesis]:
    result: list[Hypothesis] = []
    for tokens_T, score, log_prob in zip(raw.tokens_WT, raw.scores_W, raw.sums_W, strict=True):
        if score > -np.inf and len(result) < n:
            ids = tokens_T[tokens_T != PAD].tolist()
            complete = ids[-1:] == [EOS]
            ids = ids[:-1] if complete else ids
            text, part = vocabularies.target.decode(ids), Part(source, ids, first_word)
            result.append(Hypothesis(text, float(score), float(log_prob), complete, (part,)))
    return result


def join(parts: Sequence[list[Hypothesis]]) -> list[Hypothesis]:
    """Join the hypotheses of a text's parts by rank: the best of each, then the second best."""
    if len(parts) == 1:
        return parts[0]
    return [
        Hypothesis(
            join_texts(part.text for part in rank),
            sum(part.score for part in rank),
            sum(part.log_prob for part in rank),
            all(part.complete for part in rank),
            tuple(pair for part in rank for pair in part.parts),
        )
        for rank in zip(*parts, strict=False)
    ]


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
