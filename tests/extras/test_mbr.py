"""Minimum Bayes risk against sacreBLEU, one pair of texts at a time."""

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF

from jformer.extras.risk import bleu, chrf, mean_utilities

TEXTS = [
    "Ein Mann schläft auf dem Sofa .",
    "Ein Mann schläft auf einem Sofa .",
    "Ein Mann liegt auf dem Sofa und schläft .",
    "Zwei Hunde spielen , im Schnee ; und zwei Kinder schauen zu !",
    "Ein Mann schläft auf dem Sofa .",  # again
    "ein ein ein ein ein",
    "Sofa",
    "o",
    "",
    "Ein  Mann,\tder (auf 3.5 Sofas) schläft...",
]
SACREBLEU = {
    "chrf": lambda text, other: CHRF().sentence_score(text, [other]).score,
    "bleu": lambda text, other: BLEU(effective_order=True).sentence_score(text, [other]).score,
}


@pytest.mark.parametrize(("utility", "ours"), [("chrf", chrf), ("bleu", bleu)])
def test_the_scores_of_all_pairs_are_those_of_sacrebleu(utility, ours):
    expected = [[SACREBLEU[utility](text, other) for other in TEXTS] for text in TEXTS]
    # Sums of a few float64.
    np.testing.assert_allclose(ours(TEXTS), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_a_utility_is_the_mean_over_the_others(utility):
    expected = [
        np.mean([SACREBLEU[utility](text, TEXTS[j]) for j in range(len(TEXTS)) if j != i])
        for i, text in enumerate(TEXTS)
    ]
    np.testing.assert_allclose(mean_utilities(TEXTS, utility), expected, rtol=0, atol=1e-9)


def test_bleu_of_text_without_spaces_is_by_the_tokenizer_that_is_given():
    texts = ["我有一只猫。", "我有一只狗。", "他有一只狗。"]
    metric = BLEU(effective_order=True, tokenize="zh")
    expected = [[metric.sentence_score(text, [other]).score for other in texts] for text in texts]
    np.testing.assert_allclose(bleu(texts, "zh"), expected, rtol=0, atol=1e-9)


def test_one_text_alone_has_the_utility_zero():
    assert mean_utilities(["Sofa"], "chrf").tolist() == [0.0]
