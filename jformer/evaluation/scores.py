"""Scores of plain-text hypotheses against references, each with its signature.

sacreBLEU's BLEU (cased and lowercased), chrF and TER are comparable between papers. BLEU uses its
tokenizer for the target language: 13a would treat a sentence without spaces as one word. BLEU on
Moses' words is for comparison with older results: with compounds split for the paper's Table 2, in
lower case for the Multi30k literature. `references` has one list per translator.
"""

import importlib.metadata
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest

Texts = Sequence[str]
LABELS = {  # labels of the scores, in the order of a table
    "bleu": "BLEU",
    "bleu_interval": "  95 % interval",
    "bleu_lowercase": "BLEU, lowercase",
    "bleu_moses": "BLEU, Moses' words",
    "bleu_moses_lowercase": "BLEU, Moses' words, lowercase",
    "bleu_moses_compounds": "BLEU, and compounds split",
    "chrf": "chrF",
    "ter": "TER",
}
SIGNIFICANT = 0.05
SAMPLES = 1000  # of the bootstrap
COMPOUND = re.compile(r"(\S)-(\S)")
# sacreBLEU's tokenizers by the first part of a language code. All other languages use 13a.
TOKENIZERS = {
    **dict.fromkeys(("zh", "zho", "chi", "cmn", "cn", "yue"), "zh"),
    **dict.fromkeys(("ja", "jpn", "jp"), "ja-mecab"),
    **dict.fromkeys(("ko", "kor"), "ko-mecab"),
    # Thai, Lao, Khmer, Burmese and Tibetan have no spaces between words.
    **dict.fromkeys(("th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bo", "bod"), "char"),
}


def language_of(code: str) -> str:
    """Return the language of a locale: `de` of `de_AT`, `zh` of `zh-Hans`."""
    return re.split("[-_]", code.lower())[0]


def tokenizer_for(target_language: str) -> str:
    """Return the name of sacreBLEU's tokenizer for a language.

    sacreBLEU raises `RuntimeError`, which says what to install, if the tokenizer needs MeCab.
    """
    tokenizer = TOKENIZERS.get(language_of(target_language), "13a")
    BLEU(tokenize=tokenizer)
    return tokenizer


def metrics_for(target_language: str) -> dict[str, Metric]:
    """Return BLEU, chrF and, unless a language has neither spaces nor CJK characters, TER."""
    tokenizer = tokenizer_for(target_language)
    metrics: dict[str, Metric] = {"bleu": BLEU(tokenize=tokenizer), "chrf": CHRF()}
    if tokenizer != "char":
        asian = tokenizer in ("zh", "ja-mecab")
        metrics["ter"] = TER(normalized=asian, asian_support=asian)
    return metrics


def score(hypotheses: Texts, references: Sequence[Texts], target_language: str) -> dict[str, Any]:
    """Return the scores in `LABELS` and their signatures.

    The interval is the 95 % bootstrap interval [low, high] of `bleu`. A language without spaces
    lacks the scores that need words.
    """
    text = [hypotheses, *references]
    tokenizer = tokenizer_for(target_language)
    metrics = metrics_for(target_language)
    # `force` silences a second warning about text that looks tokenised.
    metrics["bleu_lowercase"] = BLEU(lowercase=True, force=True, tokenize=tokenizer)
    scores: dict[str, Any] = {}
    for name, metric in metrics.items():
        scores |= measure(name, metric, text)
    if tokenizer in ("13a", "ko-mecab"):  # words are separated by spaces
        scores |= moses_scores(text, language_of(target_language))
    return scores


def moses_scores(text: Sequence[Texts], language: str) -> dict[str, Any]:
    """Return the scores on Moses' words; unknown languages use Moses' English abbreviations."""
    words = moses_words(text, language)
    # Lower case before tokenising, as in the literature: Moses finds sentence ends by case.
    lowercase = moses_words([[line.lower() for line in stream] for stream in text], language)
    compounds = [[split_compounds(line) for line in stream] for stream in words]
    # The settings of Moses' multi-bleu.perl; `force` silences the warning about tokenised text.
    multi_bleu = BLEU(tokenize="none", smooth_method="none", force=True)
    steps = {
        "tok": f"moses-{language}",
        "punctuation": "replaced",
        "sacremoses": importlib.metadata.version("sacremoses"),
    }
    return {
        **measure("bleu_moses", multi_bleu, words, steps),
        **measure("bleu_moses_lowercase", multi_bleu, lowercase, {**steps, "case": "lc"}),
        **measure("bleu_moses_compounds", multi_bleu, compounds, {**steps, "compounds": "split"}),
    }


def measure(
    name: str, metric: Metric, text: Sequence[Texts], steps: Mapping[str, str] = {}
) -> dict[str, Any]:
    """Return a score, its interval for `bleu`, and its signature.

    `steps` describes the preprocessing of the text in the signature.
    """
    hypotheses, *references = text
    samples = SAMPLES if name == "bleu" else 1
    result = metric.corpus_score(hypotheses, references, samples)
    signature = metric.get_signature()
    scores = {name: result.score}
    if samples > 1:
        details = json.loads(result.format(width=6, signature=str(signature), is_json=True))
        # sacreBLEU leaves both out if all samples score 0.
        mean, half = details.get("confidence_mean", 0.0), details.get("confidence_var", 0.0)
        scores[f"{name}_interval"] = interval(mean, half)
    for key, value in steps.items():
        signature.update(key, value)
    return {**scores, signature_key(name): str(signature)}


def signature_key(name: str) -> str:
    """Return the key of a score's signature; the key of bleu's signature is `signature`."""
    return "signature" if name == "bleu" else f"signature_{name.removeprefix('bleu_')}"


def interval(mean: float, half: float) -> list[float]:
    return [max(mean - half, 0.0), mean + half]  # no score is negative


def moses_words(text: Sequence[Texts], language: str) -> list[list[str]]:
    """Return the lines as Moses' words separated by spaces, like Tensor2Tensor's get_ende_bleu.sh.

    The script replaces typographic punctuation in the outputs, then runs tokenizer.perl, which also
    escapes: ' becomes &apos;. Here both sides are plain text and treated alike. On newstest2014 the
    Perl tokenizer yields the same score in German, and one within 0.003 in English.
    """
    from sacremoses import MosesPunctNormalizer, MosesTokenizer  # the import takes a second

    punctuation, tokenizer = MosesPunctNormalizer(), MosesTokenizer(language)

    def words(line: str) -> str:
        return tokenizer.tokenize(punctuation.replace_unicode_punct(line), return_str=True)

    return [[words(line) for line in stream] for stream in text]


def split_compounds(words: str) -> str:
    """Turn `rich-text format` into `rich ##AT##-##AT## text format`, as in GNMT's scores."""
    return COMPOUND.sub(r"\1 ##AT##-##AT## \2", words)


def compare(
    ours: Texts, theirs: Texts, references: Sequence[Texts], names: tuple[str, str], language: str
) -> dict[str, dict[str, Any]]:
    """Return a `verdict` and a `signature` for each of `bleu`, `chrf` and `ter`.

    sacreBLEU's paired bootstrap (Koehn, 2004) scores both systems on the same samples of the
    sentences. The seed is $SACREBLEU_SEED, or 12345. Each system has the `mean` and the `interval`
    (95 %) of its scores on the samples.
    """
    metrics = metrics_for(language)
    systems = list(zip(names, (ours, theirs), strict=True))
    signatures, columns = PairedTest(systems, metrics, references, "bs", SAMPLES)()
    # The first column has the names; the others, in the order of `metrics`, have keys like chrF2.
    results: list[Any] = [*columns.values()][1:]
    verdicts = {}
    for metric, pair, signature in zip(metrics, results, signatures.values(), strict=True):
        scored = []
        for name, result in zip(names, pair, strict=True):
            score, mean, half = (float(x) for x in (result.score, result.mean, result.ci))
            ends = interval(mean, half)
            scored.append({"name": name, "score": score, "mean": mean, "interval": ends})
        # For equal scores sacreBLEU counts the samples that differ by more than 0. A system
        # compared with itself has no such samples, and p would be 1/1001.
        p_value = 1.0 if scored[0]["score"] == scored[1]["score"] else float(pair[1].p_value)
        found = verdict(scored, p_value, lower_is_better=metric == "ter")
        verdicts[metric] = {**found, "signature": str(signature)}
    return verdicts


def verdict(systems: list[dict], p_value: float, lower_is_better: bool = False) -> dict[str, Any]:
    """Return the `systems`, the `p_value`, and the `better` system; empty if p >= 0.05."""
    first, second = systems
    first_is_better = (first["score"] < second["score"]) == lower_is_better
    winner = first if first_is_better else second
    better = winner["name"] if p_value < SIGNIFICANT else ""
    return {"systems": systems, "p_value": p_value, "better": better}
