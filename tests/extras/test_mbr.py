"""Minimum Bayes risk against sacreBLEU, one pair of texts at a time."""

import pytest
from sacrebleu.metrics import BLEU, CHRF

from jformer.decoding.translate import Candidates, Hypothesis
from jformer.extras.mbr import mbr

TEXTS = [
    "ein ein ein ein ein",
    "Zwei Hunde spielen , im Schnee ; und zwei Kinder schauen zu !",
    "Ein  Mann,\tder (auf 3.5 Sofas) schläft...",
    "Ein Mann schläft auf dem Sofa .",
    "Ein Mann liegt auf dem Sofa und schläft .",
    "Ein Mann schläft auf einem Sofa .",
    "",
    "Ein Mann schläft auf dem Sofa .",  # again
    "o",
]
CHINESE = ["我有一只猫。", "我有一只狗。", "他有一只狗。", "他 有"]


def choice(texts, language, **options):
    hypotheses = [Hypothesis(text, 0.0, 0.0, True) for text in texts]
    return mbr(Candidates("", hypotheses, language), **options)


@pytest.mark.parametrize(
    ("texts", "language", "tokenizer"),
    [(TEXTS, "de", "13a"), (TEXTS[::-1], "de", "13a"), (CHINESE, "zh", "zh")],
)
@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_the_text_with_the_highest_mean_score_against_the_others_is_chosen(
    texts, language, tokenizer, utility
):
    metric = CHRF() if utility == "chrf" else BLEU(effective_order=True, tokenize=tokenizer)
    utilities = [
        sum(metric.sentence_score(text, [other]).score for other in texts[:i] + texts[i + 1 :])
        for i, text in enumerate(texts)
    ]
    index = choice(texts, language, utility=utility)
    assert utilities[index] == pytest.approx(max(utilities), abs=1e-9)
    assert sum(each > utilities[index] - 1 for each in utilities) <= 2  # itself, and its copy


def test_of_equal_candidates_and_of_one_alone_the_first_is_chosen():
    assert choice(["Sofa", "Sofa"], "de") == choice(["Sofa"], "de") == 0
