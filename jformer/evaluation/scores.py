"""Hypotheses and references to scores, on plain text as it came out, each with its signature.

sacreBLEU's BLEU on the words of 13a, with and without case, its chrF and its TER are for comparing.
The paper's tokenised BLEU, on Moses' words and with compounds split, is for Table 2 and what was
measured like it; in lower case it is that of Multi30k's literature. References are streams: one
list a translator, each as long as the hypotheses.
"""

import importlib.metadata
import json
import re
from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics import BLEU, CHRF, TER

from jformer.errors import UserError

# The scores, in the order of a report, with the keys of their signatures.
SIGNATURES = {
    "bleu": "signature",
    "bleu_lowercase": "signature_lowercase",
    "bleu_moses": "signature_moses",
    "bleu_moses_lowercase": "signature_moses_lowercase",
    "bleu_moses_compounds": "signature_moses_compounds",
    "chrf": "signature_chrf",
    "ter": "signature_ter",
}
SAMPLES = 1000  # of the bootstrap
MOST_PAIRS = 20_000  # for it: sacreBLEU holds all samples at once, 50 to 90 kB a pair
COMPOUND = re.compile(r"(\S)-(\S)")


def score(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], target_language: str
) -> dict[str, Any]:
    """All of `SIGNATURES`, and `bleu_interval`: [low, high] of `bleu` at 95 %, by the bootstrap.

    More than `MOST_PAIRS` have no interval: it would be narrow anyway.
    """
    check_streams(hypotheses, references)
    plain = [hypotheses, *references]
    # `de_AT` is tokenised as `de`. A language that Moses does not know gets English abbreviations.
    language = re.split("[-_]", target_language)[0]
    words = moses_words(plain, language)
    # The literature's order; Moses sees by case where a sentence ends.
    lowercase = moses_words([[line.lower() for line in stream] for stream in plain], language)
    compounds = [[split_compounds(line) for line in stream] for stream in words]
    # As Moses' multi-bleu.perl. `force`: without the warning that this is tokenised.
    multi_bleu = BLEU(tokenize="none", smooth_method="none", force=True)
    done = {"tok": f"moses-{language}", "punctuation": "replaced"}
    done["sacremoses"] = importlib.metadata.version("sacremoses")
    return {
        **measure("bleu", BLEU(), plain, samples=SAMPLES if len(hypotheses) <= MOST_PAIRS else 1),
        **measure("bleu_lowercase", BLEU(lowercase=True, force=True), plain),
        **measure("bleu_moses", multi_bleu, words, done),
        **measure("bleu_moses_lowercase", multi_bleu, lowercase, {**done, "case": "lc"}),
        **measure("bleu_moses_compounds", multi_bleu, compounds, {**done, "compounds": "split"}),
        **measure("chrf", CHRF(), plain),
        **measure("ter", TER(), plain),
    }


def bleu(hypotheses: Sequence[str], targets: Sequence[str]) -> float:
    """`bleu` of `score` and no more, against one reference: cheap enough to run while training."""
    check_streams(hypotheses, [targets])
    return BLEU(force=True).corpus_score(hypotheses, [targets]).score


def check_streams(hypotheses: Sequence[str], others: Sequence[Sequence[str]]) -> None:
    """Each stream must be a list as long as the others: sacreBLEU would cut all to the shortest."""
    if any(isinstance(stream, str) for stream in (hypotheses, *others)):
        raise TypeError("a stream is a list of sentences, got one string; references are streams")
    if not (hypotheses and others):
        raise UserError("nothing to score: there are no sentences, or no references")
    for stream in others:
        if len(stream) != len(hypotheses):
            raise UserError(
                f"{len(hypotheses)} translations, and {len(stream)} lines of a reference or of "
                f"another system: line i of one must belong to line i of the other"
            )


def measure(
    name: str,
    metric: Any,
    streams: Sequence[Sequence[str]],
    done: dict[str, str] | None = None,
    samples: int = 1,
) -> dict[str, Any]:
    """A score and its signature, which also says what was `done` to the text before."""
    hypotheses, *references = streams
    found = metric.corpus_score(hypotheses, references, samples)
    signature = metric.get_signature()
    result = {name: found.score}
    if samples > 1:
        told = json.loads(found.format(width=6, signature=str(signature), is_json=True))
        # It tells none where all samples score nothing.
        mean, half = told.get("confidence_mean", 0.0), told.get("confidence_var", 0.0)
        result[f"{name}_interval"] = interval(mean, half)
    for part, value in (done or {}).items():
        signature.update(part, value)
    return {**result, SIGNATURES[name]: str(signature)}


def interval(mean: float, half: float, most: float = 100.0) -> list[float]:
    """[low, high] within what a score can be: sacreBLEU's is symmetric about the samples' mean."""
    return [max(mean - half, 0.0), min(mean + half, most)]


def moses_words(streams: Sequence[Sequence[str]], language: str) -> list[list[str]]:
    """Lines of Moses' words with a space between, as Tensor2Tensor's get_ende_bleu.sh makes them.

    It replaces typographic punctuation, then runs tokenizer.perl, which also escapes: ' becomes
    &apos;. Escapes rename words one to one on both sides, and move no score. The script does the
    first to outputs alone, beside references that others had tokenised; here all is plain text and
    goes one way, or no typographic apostrophe would ever match. On newstest2014 the words of Moses'
    own Perl give the same score in German, and one within 0.003 in English.
    """
    from sacremoses import MosesPunctNormalizer, MosesTokenizer  # takes a second

    punctuation, tokenizer = MosesPunctNormalizer(), MosesTokenizer(language)

    def words(line: str) -> str:
        return tokenizer.tokenize(punctuation.replace_unicode_punct(line), return_str=True)

    return [[words(line) for line in stream] for stream in streams]


def split_compounds(words: str) -> str:
    """`rich-text format` becomes `rich ##AT##-##AT## text format`, as in GNMT's scores.

    In `a-b-c` only the first hyphen: matches do not overlap, and the script's do not either.
    """
    return COMPOUND.sub(r"\1 ##AT##-##AT## \2", words)
