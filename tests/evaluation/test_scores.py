"""Scores are sacreBLEU's and Moses' own, and say how they were made."""

import json
import math
from collections import Counter

import pytest

from jformer.evaluation import scores
from jformer.evaluation.scores import moses_words, score, split_compounds
from tests.evaluation.noise import sacrebleu, sentences, worsened

REFERENCE = sentences(61)
OTHER_REFERENCE = worsened(REFERENCE, 0.2, seed=3)
OUTPUT = worsened(REFERENCE, 0.3)
MATCH = pytest.approx  # of floats; sacreBLEU's command prints 6 decimals

each_references = pytest.mark.parametrize("references", [[REFERENCE], [REFERENCE, OTHER_REFERENCE]])


@each_references
@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("-m bleu --confidence", {"bleu": "signature"}),
        ("-m bleu -lc", {"bleu_lowercase": "signature_lowercase"}),
        ("-m chrf ter", {"chrf": "signature_chrf", "ter": "signature_ter"}),
    ],
)
def test_scores_and_signatures_equal_those_of_sacrebleus_own_command(
    tmp_path, references, options, names
):
    printed = json.loads(sacrebleu(tmp_path, references, [OUTPUT], *options.split()))
    found = score(OUTPUT, references, "de")
    results = printed if isinstance(printed, list) else [printed]
    for (name, signature), expected in zip(names.items(), results, strict=True):
        assert found[name] == MATCH(expected["score"], abs=1e-6)
        assert found[signature] == expected["signature"]
        if "confidence_mean" in expected:
            mean, half = expected["confidence_mean"], expected["confidence_var"]
            assert found["bleu_interval"] == MATCH([mean - half, mean + half], abs=1e-6)


def multi_bleu(hypotheses: list[str], references: list[list[str]]) -> float:
    """BLEU of words between spaces by its definition (Papineni et al., 2002), not smoothed."""
    matches, totals, length, closest = Counter(), Counter(), 0, 0
    for hypothesis, *others in zip(hypotheses, *references, strict=True):
        words, sides = hypothesis.split(), [other.split() for other in others]
        length += len(words)
        closest += min((abs(len(words) - len(side)), len(side)) for side in sides)[1]
        for n in (1, 2, 3, 4):
            grams, *seen = (
                Counter(zip(*(side[i:] for i in range(n)), strict=False))
                for side in (words, *sides)
            )
            totals[n] += sum(grams.values())
            matches[n] += sum(min(k, max(s[gram] for s in seen)) for gram, k in grams.items())
    precision = math.prod(matches[n] / totals[n] for n in (1, 2, 3, 4)) ** 0.25
    return 100 * precision * min(1.0, math.exp(1 - closest / length))


@each_references
def test_bleu_of_moses_words_is_bleu_by_its_definition(references):
    streams = moses_words([OUTPUT, *references], "de")
    split = [[split_compounds(line) for line in stream] for stream in streams]
    lower = moses_words([[line.lower() for line in side] for side in (OUTPUT, *references)], "de")
    found = score(OUTPUT, references, "de")
    for name, (outputs, *others) in (
        ("bleu_moses", streams),
        ("bleu_moses_compounds", split),
        ("bleu_moses_lowercase", lower),
    ):
        assert found[name] == MATCH(multi_bleu(outputs, others), abs=1e-9)


def test_bleu_of_moses_words_is_not_smoothed_and_its_signature_says_so():
    found = score(["a b c x d e f"], [["a b c d e f"]], "en_GB")
    assert found["bleu_moses"] == 0  # three words in a row match, and no four
    assert found["bleu"] > 0
    assert "tok:moses-en|smooth:none|punctuation:replaced|sacremoses:" in found["signature_moses"]
    assert "case:lc" in found["signature_moses_lowercase"]
    assert "compounds:split" in found["signature_moses_compounds"]


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        # What Moses' own tokenizer.perl makes of them.
        ("de", "bzw. Haus, geht's 3,5 km?", "bzw. Haus , geht &apos; s 3,5 km ?"),
        # After Moses' replace-unicode-punctuation.perl.
        ("de", "\u201cgut\u201d\u2026 geht\u2019s", "&quot; gut &quot; ... geht &apos; s"),
    ],
)
def test_text_is_cut_into_the_words_of_moses(language, text, expected):
    assert moses_words([[text]], language) == [[expected]]


@pytest.mark.parametrize(
    ("hypotheses", "targets"),
    [(["", ""], ["der Hund", "das Haus"]), (["Hund"], ["Hund"]), (["der Hund"], [""])],
)
def test_empty_and_single_sentences_have_scores(hypotheses, targets):
    found = score(hypotheses, [targets], "de")
    numbers = [found[name] for name in scores.LABELS if name in found]
    assert all(math.isfinite(number) for number in numbers if not isinstance(number, list))
    assert all(0 <= end <= 100 for end in found["bleu_interval"])
