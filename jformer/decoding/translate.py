"""Translation of texts: sub-word ids, search, and hypotheses in the order of the texts.

In float32 the output for a text does not depend on the other texts, their order or `batch_size`. In
bfloat16 it can, because products of other shapes round differently.
"""

import dataclasses
import itertools
import logging
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jformer.components import find
from jformer.config import EOS, PAD, DecodeConfig
from jformer.data.corpora import Report
from jformer.data.sentences import join_texts, pieces
from jformer.data.vocabulary import Vocabularies
from jformer.decoding.decoder import Decoder
from jformer.decoding.pool import Request
from jformer.decoding.prefixes import Prefix, begins_with, encode_prefixes, ranking
from jformer.decoding.scoring import score_pairs
from jformer.decoding.search import Hypotheses, Rules, length_penalty
from jformer.errors import RunError, UserError
from jformer.extras.lexicon import Term, edges, kept_pattern, missing, spellings_in
from jformer.model.transformer import Transformer

log = logging.getLogger(__name__)


class Part(NamedTuple):
    """The source and the output of one search, as ids without EOS."""

    source: list[int]
    output: list[int]
    first_word: int  # index in the text of the word in which the source begins


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One output for a text. If the text was split, score and log_prob are sums over its parts."""

    text: str
    score: float  # log_prob with the length penalty, see search.py
    log_prob: float  # of its tokens, and of EOS if it is complete
    complete: bool  # whether it ended with EOS, not at its length limit
    parts: tuple[Part, ...]


@dataclasses.dataclass(frozen=True)
class Candidates:
    """The hypotheses for a text, of which a component of `config.decode.choose` takes one."""

    source: str
    hypotheses: Sequence[Hypothesis]  # the best by score first
    bleu_tokenizer: str


def highest_score(candidates: Candidates) -> int:
    """Return the index of the candidate with the highest score."""
    return 0


def translate(
    model: Transformer,
    params: Any,
    vocabularies: Vocabularies,
    texts: Sequence[str],
    config: DecodeConfig,
    max_length: int,
    bleu_tokenizer: str = "13a",
) -> list[str]:
    """Return the best output for each text."""
    decoder = Decoder((model,), (params,), config, max_length, config.batch_size)
    found = hypotheses(decoder, vocabularies, texts, bleu_tokenizer=bleu_tokenizer)
    return [best[0].text for best in found]


def hypotheses(
    decoder: Decoder,
    vocabularies: Vocabularies,
    texts: Sequence[str],
    prefixes: Sequence[str] | None = None,
    first_line: int = 1,
    terms: Sequence[Term] = (),
    bleu_tokenizer: str = "13a",
    report: Report | None = None,
) -> list[list[Hypothesis]]:
    """Return up to `n_best` hypotheses for each text; a blank text gets its prefix, or "".

    With another `choose` than score it is one, chosen from these. Each output begins with its
    prefix, and contains the target of each of the `terms` whose source its text has, unless the
    length limit comes first. `first_line` is the line number of texts[0] in messages, and
    `bleu_tokenizer` cuts the words for a choice by BLEU. Lines that are cut are counted in
    `report`; without one, a warning names them.
    """
    prefixes, counts = prefixes or [""] * len(texts), Report() if report is None else report
    asked = list(requests_of(decoder, vocabularies, texts, prefixes, first_line, terms, counts))
    requests = [request for *_, request in asked]
    key, config = "config.decode", decoder.config
    constraint = find(f"{key}.constraint", "constraint", config.constraint)
    rules = Rules(
        edges(vocabularies.target) if any(request.terms for request in requests) else None,
        constraint(vocabularies.target),
        ranking(vocabularies.target).ranks_V if any(prefixes) else None,
    )
    found = decoder.find(requests, rules)
    of_parts: list[list[list[Hypothesis]]] = [[] for _ in texts]
    for i, (number, first_word, request) in enumerate(asked):
        if np.isnan(found[i].scores_W).any():
            raise RunError(
                f"line {first_line + number}: the model's logits are not numbers, so there is "
                f"no output to choose; take another checkpoint, or model.dtype=float32"
            )
        hypotheses = as_texts(found[i], request.source, first_word, vocabularies, config.n_best)
        of_parts[number].append(hypotheses)
    blank = [Hypothesis(prefix, 0.0, 0.0, True, ()) for prefix in prefixes]
    joined = [join(parts) if parts else [blank[n]] for n, parts in enumerate(of_parts)]
    if config.choose != "score":
        choose = find(f"{key}.choose", "choice", config.choose)
        candidates = map(Candidates, texts, joined, itertools.repeat(bleu_tokenizer))
        joined = chosen(decoder, vocabularies, joined, [choose(each) for each in candidates])
    warn_of_missing([(joined[n][0].text, request) for n, _, request in asked], vocabularies)
    for n, prefix in enumerate(prefixes):
        if prefix and not begins_with(joined[n][0].text, prefix, vocabularies.target):
            counts.add("prefix", f"line {first_line + n}")
    if report is None:
        warn_of_lines(counts)
    return joined


def warn_of_lines(report: Report) -> None:
    """Log what a report has counted, one line for each reason."""
    for line in report.lines() if report.decisions else ():
        log.warning(line)


def requests_of(decoder: Decoder, vocabularies, texts, prefixes, first_line, terms, report):
    """Yield `(index of the text, index of the first word, Request)`; none for a blank text.

    A source longer than those in training is cut and reported, or split into several requests.
    """
    longest, kept = decoder.max_length - 1, kept_pattern(decoder.keep)
    wanted = [n for n, text in enumerate(texts) if text.strip()]
    sources = vocabularies.source.encode([texts[n] for n in wanted])
    starts = encode_prefixes([prefixes[n] for n in wanted], vocabularies.target)
    for n, source, start in zip(wanted, sources, starts, strict=True):
        if (length := len(start.ids)) > longest:
            most = f"of which at most {longest} can be given (data.max_length)"
            raise UserError(f"line {first_line + n}: its prefix has {length} tokens, {most}")
        parts = [(source, 0)]
        if len(source) > longest and decoder.config.long_texts == "split":
            parts = list(pieces(texts[n], longest, vocabularies.source.encode))
        elif len(source) > longest:
            report.add("cut", f"line {first_line + n}")
            parts = [(source[:longest], 0)]
        words, ends = texts[n].split(), [first_word for _, first_word in parts[1:]]
        for i, ((ids, first_word), end) in enumerate(zip(parts, [*ends, None], strict=True)):
            seed = zlib.crc32(np.asarray(ids, np.int32).tobytes()) >> 1  # fits int32
            own_words = words[first_word:end]
            spelled = spellings_in(" ".join(own_words), terms, kept, vocabularies.target)
            # A sentence that was cut has no more words than tokens are left of it.
            words_left = min(len(own_words), len(ids))
            prefix = start if i == 0 else Prefix([], [])
            request = Request(ids, prefix.ids, seed, spelled, words_left, prefix.spans)
            yield n, first_word, request


def warn_of_missing(outputs: Sequence[tuple[str, Request]], vocabularies: Vocabularies) -> None:
    """Warn of terms of the requests that do not stand in the texts of the outputs."""
    lacking = sum(missing(request.terms, text, vocabularies.target) for text, request in outputs)
    if lacking:
        wanted = sum(len(request.terms) for _, request in outputs)
        log.warning(
            f"{lacking} of {wanted} terms do not stand in the output: its length limit came first "
            f"(config.decode.max_extra_length)"
        )


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


def chosen(
    decoder: Decoder,
    vocabularies: Vocabularies,
    found: Sequence[list[Hypothesis]],
    choices: Sequence[int | str],
) -> list[list[Hypothesis]]:
    """Return one hypothesis per text: by its index, or a new text with the models' score of it."""
    result = [ones[:1] for ones in found]
    new: dict[int, str] = {}
    for number, choice in enumerate(choices):
        if isinstance(choice, str) and len(found[number][0].parts) > 1:
            raise UserError(
                f"config.decode.choose={decoder.config.choose}: returns a new text, which requires "
                f"config.decode.long_texts=cut"
            )
        if isinstance(choice, str) and found[number][0].parts:
            new[number] = choice
        elif isinstance(choice, str):
            continue  # a blank line
        else:
            result[number] = [found[number][choice]]
    sources = [found[number][0].parts[0].source for number in new]
    pairs = list(zip(sources, vocabularies.target.encode([*new.values()]), strict=True))
    scored = score_pairs(decoder.models, decoder.params, pairs, decoder.places)
    for (number, text), (source, ids), forced in zip(new.items(), pairs, scored, strict=True):
        log_prob = float(forced.log_probs_T.sum())
        score = log_prob / length_penalty(len(ids) + 1, decoder.config)
        result[number] = [Hypothesis(text, score, log_prob, True, (Part(source, ids, 0),))]
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
