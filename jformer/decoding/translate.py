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
from jformer.data.vocabulary import Vocabularies
from jformer.decoding.constraints import Rules, encode_prefix, ranking
from jformer.decoding.pool import Decoder, Request, slots_for
from jformer.decoding.scoring import align, score_pairs, words_of
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
    details: bool = False,
    target_language: str = "en",
) -> list[list[Hypothesis]]:
    """Return up to `n_best` hypotheses for each text; a blank text gets its prefix, or "".

    If `choose` is not score, the result is a single hypothesis, chosen from these. A choice by BLEU
    requires the `target_language`. Warnings count cut texts and outputs without their prefix.
    """
    config, rules = decoder.config, rules_of(decoder.config, vocabularies)
    prefixes = [""] * len(texts) if prefixes is None else prefixes
    requests = encode(decoder, vocabularies, rules, texts, prefixes)
    found = decoder.find([*requests.values()], rules)
    outputs = [
        [Hypothesis(prefix, 0.0, 0.0, True, tokens=[], token_log_probs=[], alignment=[])]
        for prefix in prefixes
    ]
    for (n, request), raw in zip(requests.items(), found, strict=True):
        outputs[n] = to_hypotheses(raw, texts[n], request.source, vocabularies, config)
    if config.choose != "score":
        choose = find("config.decode.choose", "choice", config.choose)
        for text, n_best in zip(texts, outputs, strict=True):
            n_best[:] = [n_best[choose(Candidates(text, n_best, target_language))]]
    lost = [
        prefix
        for prefix, (best, *_) in zip(prefixes, outputs, strict=True)
        if not best.text.lstrip().startswith(prefix.strip())
    ]
    warn("outputs without their prefix", lost)
    if details:
        add_details(decoder, vocabularies, outputs)
    return outputs


def rules_of(config: DecodeConfig, vocabularies: Vocabularies) -> Rules:
    """Return the rules of all searches with these vocabularies."""
    key, target = "config.decode.constraint", vocabularies.target
    constraint = find(key, "constraint", config.constraint)(target)
    if constraint.needs_beam and name_of(config.search) != "beam":
        raise UserError(f"{key}={config.constraint}: requires config.decode.search=beam")
    return Rules(constraint, ranking(target).ranks_V, target.language_token)


def encode(
    decoder: Decoder,
    vocabularies: Vocabularies,
    rules: Rules,
    texts: Sequence[str],
    prefixes: Sequence[str],
) -> dict[int, Request]:
    """Return a request for each text that is not blank, by its index; long texts are cut."""
    max_length = decoder.max_length - 1
    sources = vocabularies.source.encode(texts)
    requests, cut = {}, []
    for n, (text, source, prefix) in enumerate(zip(texts, sources, prefixes, strict=True)):
        if not text.strip():
            continue
        if len(source) > max_length:
            cut.append(text)
            source = source[:max_length]
            text = vocabularies.source.decode(source)
        seed = zlib.crc32(np.asarray(source, np.int32).tobytes()) >> 1  # fits int32
        prefix_ids, spans = encode_prefix(prefix, vocabularies.target)
        given, progress = rules.constraint.encode(text, source)
        requests[n] = Request(source, prefix_ids, seed, spans, given, progress)
    warn("texts cut to config.data.max_length tokens; split long texts into sentences", cut)
    return requests


def warn(message: str, texts: Sequence[str]) -> None:
    """Log the number of texts, and the beginnings of the first."""
    if texts:
        log.warning(f"{len(texts):,} {message} ({', '.join(repr(x[:40]) for x in texts[:3])})")


def to_hypotheses(
    raw: Hypotheses, text: str, source: list[int], vocabularies: Vocabularies, config: DecodeConfig
) -> list[Hypothesis]:
    """Return up to `n_best` hypotheses with their texts."""
    if np.isnan(raw.scores_W).any() or np.max(raw.scores_W) == -np.inf:
        raise RunError(
            f"{text[:60]!r}: no output has a finite score; try another checkpoint, "
            f"model.dtype=float32, or another constraint or prefix"
        )
    result: list[Hypothesis] = []
    for tokens_T, score, log_prob in zip(raw.tokens_WT, raw.scores_W, raw.sums_W, strict=True):
        if score > -np.inf and len(result) < config.n_best:
            ids = tokens_T[tokens_T != PAD].tolist()
            complete = ids[-1:] == [EOS]
            ids = ids[:-1] if complete else ids
            output = vocabularies.target.decode(ids)
            result.append(Hypothesis(output, float(score), float(log_prob), complete, source, ids))
    return result


def add_details(
    decoder: Decoder, vocabularies: Vocabularies, outputs: list[list[Hypothesis]]
) -> None:
    """Add tokens, their log-probabilities and a word alignment to all hypotheses of a search."""
    pairs = [(x.source, x.output) for n_best in outputs for x in n_best if x.tokens is None]
    # The last layer but one aligns best (Garg et al. 2019, arXiv 1909.02074).
    layer = max(1, min(model.config.decoder_layers for model in decoder.models) - 1)
    scored = iter(score_pairs(decoder, pairs, layer))
    for n_best in outputs:
        for i, hypothesis in enumerate(n_best):
            if hypothesis.tokens is None:
                forced = next(scored)
                target_words_T = words_of(hypothesis.output, vocabularies.target)
                source_words_S = words_of(hypothesis.source, vocabularies.source)
                n_best[i] = dataclasses.replace(
                    hypothesis,
                    tokens=vocabularies.target.tokens(hypothesis.output),
                    token_log_probs=forced.log_probs_T.tolist(),
                    alignment=align(forced.weights_TS, target_words_T, source_words_S),
                )


def warm_up(
    decoder: Decoder, vocabularies: Vocabularies, lengths: Sequence[int], batch: int
) -> None:
    """Compile the searches for up to `batch` sentences with these numbers of source tokens."""
    rules = rules_of(decoder.config, vocabularies)
    # A search of one token compiles the same program as a complete search.
    short = dataclasses.replace(decoder.config, max_length=1)
    decoder = dataclasses.replace(decoder, config=short)
    for length in lengths:
        ids = [EOS + 1] * min(length, decoder.max_length - 1)
        request = Request(ids, [], 0, (), *rules.constraint.encode("", ids))
        for slots in sorted({slots_for(n) for n in range(1, batch + 1)}):
            decoder.find([request] * min(slots, decoder.config.batch_size), rules)
