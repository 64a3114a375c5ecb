"""Scores of plain-text hypotheses against references, each with its signature.

sacreBLEU's BLEU (cased and lowercased), its chrF and its TER are comparable between papers. BLEU
uses sacreBLEU's tokenizer for the target language: in text without spaces 13a would take a sentence
for a word, and a good translation would score 0. Tokenised BLEU on Moses' words is for comparison
with older results: with compounds split for the paper's Table 2, in lower case for the Multi30k
literature. References are streams: one list per translator, each as long as the hypotheses.
"""

import dataclasses
import importlib.metadata
import itertools
import json
import math
import re
from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics import BLEU, CHRF, TER

from jformer.errors import UserError


@dataclasses.dataclass(frozen=True)
class Metric:
    label: str  # of its row in the table of scores
    signature: str = ""  # key of its signature, if it has one
    short: str = ""  # name in a report of runs and in experiments/LOG.md
    digits: int = 2  # after the decimal point, there


# Every score, in the order of a table.
METRICS = {
    "bleu": Metric("BLEU", "signature", "BLEU"),
    "bleu_interval": Metric("  95 % interval"),
    "bleu_lowercase": Metric("BLEU, without case", "signature_lowercase", "lc"),
    "bleu_moses": Metric("BLEU, Moses' words", "signature_moses"),
    "bleu_moses_lowercase": Metric("BLEU, Moses' words, lowercase", "signature_moses_lowercase"),
    "bleu_moses_compounds": Metric("BLEU, and compounds split", "signature_moses_compounds"),
    "chrf": Metric("chrF", "signature_chrf", "chrF"),
    "ter": Metric("TER", "signature_ter"),
    "f1": Metric("labelled F1", short="F1"),
    "f1_interval": Metric("  95 % interval"),
    "precision": Metric("  precision"),
    "recall": Metric("  recall"),
    "f1_short": Metric("  F1 up to 40 words"),
    "exact_match": Metric("exact match, %"),
    "crossing_brackets": Metric("crossing brackets a sentence"),
    "no_crossing": Metric("sentences without, %"),
    "tag_accuracy": Metric("tag accuracy"),
    "well_formed": Metric("well-formed without repair, %", short="well-formed"),
    "perplexity": Metric("perplexity", short="PPL", digits=3),
}
SIGNATURES = {name: metric.signature for name, metric in METRICS.items() if metric.signature}
REPORTED = ("bleu", "bleu_lowercase", "chrf", "f1", "perplexity")  # in a report of runs
SAMPLES = 1000  # of the bootstrap
MOST_PAIRS = 20_000  # for the bootstrap: sacreBLEU holds all samples at once, 50 to 90 kB per pair
# Upper bounds of the groups that are scored apart, in words of the source.
LONGEST = (10, 20, 30, 40, 60, math.inf)
COMPOUND = re.compile(r"(\S)-(\S)")
# Languages by the first part of their codes, which name files and so are not always ISO's: cn, jp.
CHINESE = {"zh", "zho", "chi", "cmn", "cn", "yue", "wuu", "nan", "hak", "gan", "lzh"}
JAPANESE, KOREAN = {"ja", "jpn", "jp"}, {"ko", "kor"}
# Thai, Lao, Khmer, Burmese, Tibetan, Dzongkha.
BY_CHARACTER = {"th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bur"}
BY_CHARACTER |= {"bo", "bod", "tib", "dz", "dzo"}
WITHOUT_SPACES = CHINESE | JAPANESE | BY_CHARACTER
TOKENIZERS = ("13a", "zh", "ja-mecab", "ko-mecab", "char")


def language_of(code: str) -> str:
    """Return the language of a locale: `de` of `de_AT`, `zh` of `zh-Hans`."""
    return re.split("[-_]", code.lower())[0]


def tokenizer_for(target_language: str) -> str:
    """Return the name of sacreBLEU's tokenizer for a language, with the packages installed here.

    A run asks once and keeps the answer, so that another machine does not change its BLEU.
    """
    language = language_of(target_language)
    if language in CHINESE:
        return "zh"
    for languages, mecab in ((JAPANESE, "ja-mecab"), (KOREAN, "ko-mecab")):
        if language in languages:
            return mecab if is_installed(mecab) else "char"
    return "char" if language in BY_CHARACTER else "13a"


def is_installed(tokenizer: str) -> bool:
    try:
        BLEU(tokenize=tokenizer)
    except (RuntimeError, AssertionError):  # no MeCab; another dictionary than sacreBLEU's
        return False
    return True


def check_tokenizer(tokenizer: str) -> None:
    """Raise `UserError` unless the packages of a tokenizer are installed."""
    if not is_installed(tokenizer):
        raise UserError(
            f"BLEU of this run needs sacreBLEU's tokenizer {tokenizer}, which is not installed: "
            f'pip install "sacrebleu[{tokenizer[:2]}]"'
        )


def ter_for(target_language: str) -> TER | None:
    """Return TER with Chinese and Japanese cut into characters; None if it cannot find words."""
    language = language_of(target_language)
    if language in BY_CHARACTER:
        return None
    asian = language in WITHOUT_SPACES
    return TER(normalized=asian, asian_support=asian)


def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    target_language: str,
    tokenizer: str = "",
) -> dict[str, Any]:
    """Return the scores and signatures of `SIGNATURES`, and the `bleu_interval`.

    The interval is [low, high] of `bleu` at 95 % by the bootstrap. More than `MOST_PAIRS` pairs
    have none: it would be narrow anyway. `tokenizer` is by default the one for the language. Scores
    of words between spaces are missing for a language that has none.
    """
    check_streams(hypotheses, references)
    plain = [hypotheses, *references]
    tokenizer = tokenizer or tokenizer_for(target_language)
    samples = SAMPLES if len(hypotheses) <= MOST_PAIRS else 1
    scores = {
        **measure("bleu", BLEU(tokenize=tokenizer), plain, samples=samples),
        **measure("bleu_lowercase", BLEU(True, force=True, tokenize=tokenizer), plain),
        **measure("chrf", CHRF(), plain),
    }
    if ter := ter_for(target_language):
        scores |= measure("ter", ter, plain)
    if (language := language_of(target_language)) not in WITHOUT_SPACES:
        scores |= moses_scores(plain, language)
    return scores


def moses_scores(plain: Sequence[Sequence[str]], language: str) -> dict[str, Any]:
    """Return the scores on Moses' words; unknown languages get Moses' English abbreviations."""
    words = moses_words(plain, language)
    # Lower case before tokenising, as in the literature: Moses finds sentence ends by case.
    lowercase = moses_words([[line.lower() for line in stream] for stream in plain], language)
    compounds = [[split_compounds(line) for line in stream] for stream in words]
    # The settings of Moses' multi-bleu.perl; `force` silences the warning about tokenised text.
    multi_bleu = BLEU(tokenize="none", smooth_method="none", force=True)
    done = {"tok": f"moses-{language}", "punctuation": "replaced"}
    done["sacremoses"] = importlib.metadata.version("sacremoses")
    return {
        **measure("bleu_moses", multi_bleu, words, done),
        **measure("bleu_moses_lowercase", multi_bleu, lowercase, {**done, "case": "lc"}),
        **measure("bleu_moses_compounds", multi_bleu, compounds, {**done, "compounds": "split"}),
    }


def by_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    tokenizer: str = "13a",
) -> list[dict[str, Any]]:
    """Return `words`, `pairs`, `bleu`, `chrf` and `length_ratio` of each group that has pairs.

    They show whether a model fails on long sentences. Words are separated by whitespace, so a
    language written without spaces falls into one group.

    `words` is a range such as "11-20" or "61+". The ratio is BLEU's own, of the hypotheses' words
    to those of the references closest in length; below 1 the brevity penalty applies.
    """
    check_streams(hypotheses, [sources, *references])
    words = [max(1, len(source.split())) for source in sources]
    groups = []
    for above, longest in itertools.pairwise((0, *LONGEST)):
        lines = [i for i, number in enumerate(words) if above < number <= longest]
        if not lines:
            continue
        hypotheses_here, *references_here = (
            [stream[i] for i in lines] for stream in (hypotheses, *references)
        )
        metric = BLEU(force=True, tokenize=tokenizer)
        bleu = metric.corpus_score(hypotheses_here, references_here)
        groups.append(
            {
                "words": f"{above + 1}+" if longest == math.inf else f"{above + 1}-{longest}",
                "pairs": len(lines),
                "bleu": bleu.score,
                "chrf": CHRF().corpus_score(hypotheses_here, references_here).score,
                "length_ratio": bleu.ratio,
            }
        )
    return groups


def check_streams(hypotheses: Sequence[str], others: Sequence[Sequence[str]]) -> None:
    """Raise unless all streams are lists of one length: sacreBLEU would cut to the shortest."""
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
    """Return a score and its signature, extended by `done`, the preprocessing of the text."""
    hypotheses, *references = streams
    found = metric.corpus_score(hypotheses, references, samples)
    signature = metric.get_signature()
    result = {name: found.score}
    if samples > 1:
        told = json.loads(found.format(width=6, signature=str(signature), is_json=True))
        # sacreBLEU reports neither where all samples score 0.
        mean, half = told.get("confidence_mean", 0.0), told.get("confidence_var", 0.0)
        result[f"{name}_interval"] = interval(mean, half)
    for part, value in (done or {}).items():
        signature.update(part, value)
    return {**result, SIGNATURES[name]: str(signature)}


def interval(mean: float, half: float, most: float = 100.0) -> list[float]:
    """Return [low, high], clipped to possible scores: sacreBLEU's is symmetric about the mean."""
    return [max(mean - half, 0.0), min(mean + half, most)]


def moses_words(streams: Sequence[Sequence[str]], language: str) -> list[list[str]]:
    """Return the lines as Moses' words with spaces between, as Tensor2Tensor's get_ende_bleu.sh.

    The script replaces typographic punctuation, then runs tokenizer.perl, which also escapes: '
    becomes &apos;. Escapes rename words one to one on both sides and change no score. The script
    replaces punctuation in outputs only, as its references are already tokenised. Here both sides
    are plain text and treated alike; otherwise no typographic apostrophe would ever match. On
    newstest2014 the Perl tokenizer gives the same score in German, one within 0.003 in English.
    """
    from sacremoses import MosesPunctNormalizer, MosesTokenizer  # the import takes a second

    punctuation, tokenizer = MosesPunctNormalizer(), MosesTokenizer(language)

    def words(line: str) -> str:
        return tokenizer.tokenize(punctuation.replace_unicode_punct(line), return_str=True)

    return [[words(line) for line in stream] for stream in streams]


def split_compounds(words: str) -> str:
    """Turn `rich-text format` into `rich ##AT##-##AT## text format`, as in GNMT's scores.

    In `a-b-c` only the first hyphen is split: matches do not overlap, nor do the script's.
    """
    return COMPOUND.sub(r"\1 ##AT##-##AT## \2", words)
