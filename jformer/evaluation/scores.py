"""Scores of plain-text hypotheses against references, each with its signature.

sacreBLEU's BLEU (cased and lowercased), chrF and TER are comparable between papers. BLEU uses
sacreBLEU's tokenizer for the target language: in text without spaces, 13a would treat a sentence as
one word, and a good translation would score 0. BLEU on Moses' words is for comparison with older
results: with compounds split for the paper's Table 2, in lower case for the Multi30k literature.
References are streams: one list per translator, each as long as the hypotheses.
"""

import importlib.metadata
import json
import math
import re
from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from jformer.errors import UserError

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
MAX_SAMPLED = 20_000_000  # pairs in all samples, which sacreBLEU keeps in memory: 50 to 90 B each
COMPOUND = re.compile(r"(\S)-(\S)")
# Languages of sacreBLEU's tokenizers, by the first part of their codes, which are not always ISO's:
# cn, jp. Thai, Lao, Khmer, Burmese, Tibetan and Dzongkha use `char`; all other languages use 13a.
LANGUAGES = {
    "zh": "zh zho chi cmn cn yue wuu nan hak gan lzh",
    "ja-mecab": "ja jpn jp",
    "ko-mecab": "ko kor",
    "char": "th tha lo lao km khm my mya bur bo bod tib dz dzo",
}
TOKENIZER_OF = {code: name for name, codes in LANGUAGES.items() for code in codes.split()}


def language_of(code: str) -> str:
    """Return the language of a locale: `de` of `de_AT`, `zh` of `zh-Hans`."""
    return re.split("[-_]", code.lower())[0]


def tokenizer_for(target_language: str) -> str:
    """Return the name of sacreBLEU's tokenizer for a language.

    Raises `UserError` if its packages are not installed.
    """
    tokenizer = TOKENIZER_OF.get(language_of(target_language), "13a")
    try:
        BLEU(tokenize=tokenizer)
    except (RuntimeError, AssertionError) as error:  # MeCab or its dictionary is missing
        raise UserError(
            f"BLEU for config.data.target_language={target_language} needs MeCab: "
            f'pip install "sacrebleu[{tokenizer[:2]}]"'
        ) from error
    return tokenizer


def bootstrap_samples(number: int) -> int:
    """Return the number of samples for a number of pairs: fewer if memory requires it."""
    return min(SAMPLES, MAX_SAMPLED // number)


def ter_for(target_language: str) -> dict[str, TER]:
    """Return TER, by characters for Chinese and Japanese; {} if a language has no word spaces."""
    tokenizer = TOKENIZER_OF.get(language_of(target_language))
    if tokenizer == "char":
        return {}
    asian = tokenizer in ("zh", "ja-mecab")
    return {"ter": TER(normalized=asian, asian_support=asian)}


def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    target_language: str,
) -> dict[str, Any]:
    """Return the scores in `LABELS` and their signatures.

    The interval is the 95 % bootstrap interval [low, high] of `bleu`. A language without spaces
    lacks the scores that need words.
    """
    text = [hypotheses, *references]
    tokenizer = tokenizer_for(target_language)
    samples = bootstrap_samples(len(hypotheses))
    scores = measure("bleu", BLEU(tokenize=tokenizer), text, samples=samples)
    metrics: dict[str, Any] = {
        # `force` silences a second warning about text that looks tokenised.
        "bleu_lowercase": BLEU(lowercase=True, force=True, tokenize=tokenizer),
        "chrf": CHRF(),
        **ter_for(target_language),
    }
    for name, metric in metrics.items():
        scores |= measure(name, metric, text)
    language = language_of(target_language)
    if TOKENIZER_OF.get(language) in (None, "ko-mecab"):  # words are separated by spaces
        scores |= moses_scores(text, language)
    return scores


def moses_scores(text: Sequence[Sequence[str]], language: str) -> dict[str, Any]:
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
    name: str,
    metric: BLEU | CHRF | TER,
    text: Sequence[Sequence[str]],
    preprocessing: dict[str, str] | None = None,
    samples: int = 1,
) -> dict[str, Any]:
    """Return a score, its interval if there are samples, and its signature."""
    hypotheses, *references = text
    result = metric.corpus_score(hypotheses, references, samples)
    signature = metric.get_signature()
    scores = {name: result.score}
    if samples > 1:
        details = json.loads(result.format(width=6, signature=str(signature), is_json=True))
        # sacreBLEU leaves both out if all samples score 0.
        mean, half = details.get("confidence_mean", 0.0), details.get("confidence_var", 0.0)
        scores[f"{name}_interval"] = interval(mean, half)
    for key, value in (preprocessing or {}).items():
        signature.update(key, value)
    return {**scores, signature_key(name): str(signature)}


def signature_key(name: str) -> str:
    """Return the key of a score's signature; the key of bleu's signature is `signature`."""
    return "signature" if name == "bleu" else f"signature_{name.removeprefix('bleu_')}"


def interval(mean: float, half: float, highest: float = 100.0) -> list[float]:
    """Return [low, high], clipped to possible scores: sacreBLEU's is symmetric about the mean."""
    return [max(mean - half, 0.0), min(mean + half, highest)]


def moses_words(text: Sequence[Sequence[str]], language: str) -> list[list[str]]:
    """Return the lines as Moses' words separated by spaces, like Tensor2Tensor's get_ende_bleu.sh.

    The script replaces typographic punctuation, then runs tokenizer.perl, which also escapes: '
    becomes &apos;. Escapes rename words one to one on both sides and change no score. The script
    replaces punctuation in outputs only, because its references are already tokenised. Here both
    sides are plain text and treated alike; otherwise no typographic apostrophe would ever match. On
    newstest2014 the Perl tokenizer yields the same score in German, and one within 0.003 in
    English.
    """
    from sacremoses import MosesPunctNormalizer, MosesTokenizer  # the import takes a second

    punctuation, tokenizer = MosesPunctNormalizer(), MosesTokenizer(language)

    def words(line: str) -> str:
        return tokenizer.tokenize(punctuation.replace_unicode_punct(line), return_str=True)

    return [[words(line) for line in stream] for stream in text]


def split_compounds(words: str) -> str:
    """Turn `rich-text format` into `rich ##AT##-##AT## text format`, as in GNMT's scores.

    In `a-b-c` only the first hyphen is split: matches do not overlap, as in the script.
    """
    return COMPOUND.sub(r"\1 ##AT##-##AT## \2", words)


def compare(
    ours: Sequence[str],
    theirs: Sequence[str],
    references: Sequence[Sequence[str]],
    names: tuple[str, str] = ("ours", "theirs"),
    target_language: str = "en",
) -> dict[str, dict[str, Any]]:
    """Return a `verdict` and a `signature` for each of `bleu`, `chrf` and `ter`.

    sacreBLEU's paired bootstrap (Koehn, 2004) scores both systems on the same samples of the
    sentences, drawn with replacement. The seed is $SACREBLEU_SEED, or 12345. The p-value is the
    probability of a difference at least as large if both systems were equally good. Each system has
    the `mean` and the `interval` (95 %) of its scores on the samples.
    """
    metrics: dict[str, Any] = {
        "bleu": BLEU(force=True, tokenize=tokenizer_for(target_language)),
        "chrf": CHRF(),
        **ter_for(target_language),
    }
    systems = list(zip(names, (ours, theirs), strict=True))
    samples = bootstrap_samples(len(ours))
    signatures, columns = PairedTest(systems, metrics, references, "bs", samples)()
    # The first column has the names; the others, in the order of `metrics`, have keys like chrF2.
    _, *results = columns.values()
    return {
        name: {**tested(name, names, pair), "signature": str(signature)}
        for name, pair, signature in zip(metrics, results, signatures.values(), strict=True)
    }


def tested(metric: str, names: tuple[str, str], results: Sequence[Any]) -> dict[str, Any]:
    """Return the verdict on sacreBLEU's results for two systems."""
    # TER is a rate of edits: lower is better, and it can exceed 100.
    is_rate = metric == "ter"
    highest = math.inf if is_rate else 100.0
    systems = []
    for result in results:
        score, mean, half = (float(x) for x in (result.score, result.mean, result.ci))
        systems.append({"score": score, "mean": mean, "interval": interval(mean, half, highest)})
    # For equal scores sacreBLEU counts the samples that differ by more than 0. A system compared
    # with itself has no such samples, and p would be 1/1001.
    p_value = 1.0 if results[0].score == results[1].score else float(results[1].p_value)
    return verdict(names, systems, p_value, lower_is_better=is_rate)


def verdict(
    names: tuple[str, str],
    systems: Sequence[dict[str, Any]],
    p_value: float,
    lower_is_better: bool = False,
) -> dict[str, Any]:
    """Return `systems` with their names, the `p_value`, and the `better` system, if any."""
    ours, theirs = (system["score"] for system in systems)
    first_is_better = ours < theirs if lower_is_better else ours > theirs
    return {
        "systems": [{"name": n, **system} for n, system in zip(names, systems, strict=True)],
        "p_value": p_value,
        "better": "" if ours == theirs else names[0 if first_is_better else 1],
        "significant": p_value < SIGNIFICANT,
    }
