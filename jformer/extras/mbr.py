"""Minimum Bayes risk (Kumar and Byrne 2004): choose the hypothesis most similar to all others.

The utility of a hypothesis is its mean sentence-level chrF or BLEU by sacreBLEU, with each of the
other hypotheses as the reference (Eikema and Aziz 2020).
"""

from typing import Literal

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

from jformer.decoding.translate import Candidates
from jformer.evaluation.scores import tokenizer_for


def mbr(candidates: Candidates, *, utility: Literal["chrf", "bleu"] = "chrf") -> int:
    """Return the index of the candidate with the highest utility; the first if several tie."""
    texts = [hypothesis.text for hypothesis in candidates.hypotheses]
    tokenizer = tokenizer_for(candidates.target_language) if utility == "bleu" else ""

    def metric_for(reference: str) -> CHRF | BLEU:
        # sacreBLEU counts the n-grams of references only once if it gets them in advance.
        references = [[reference]]
        if utility == "chrf":
            return CHRF(references=references)
        return BLEU(effective_order=True, tokenize=tokenizer, references=references)

    metrics = [metric_for(text) for text in texts]
    scores_NN = np.array(
        [[each.corpus_score([text], None).score for each in metrics] for text in texts]
    )
    np.fill_diagonal(scores_NN, 0)
    return int(scores_NN.sum(axis=1).argmax())
