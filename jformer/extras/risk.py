"""Minimum Bayes risk: of several hypotheses, the one that is most like all others.

Kumar and Byrne (2004). The utility of a hypothesis is its mean score with each of the others as the
reference, by the chrF or the BLEU of single sentences that sacreBLEU has (Eikema and Aziz 2020).
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

from jformer.decoding.translate import Candidates
from jformer.evaluation.scores import check_tokenizer


def mbr(candidates: Candidates, *, utility: Literal["chrf", "bleu"] = "chrf") -> int:
    """Return the index of the candidate that is most like all others, the first of equal ones."""
    texts = [one.text for one in candidates.hypotheses]
    if utility == "bleu":
        check_tokenizer(candidates.bleu_tokenizer)
    return int(np.argmax(mean_utilities(texts, utility, candidates.bleu_tokenizer)))


def mean_utilities(texts: Sequence[str], utility: str, tokenizer: str = "13a") -> np.ndarray:
    """Return the mean `utility` (N,), `chrf` or `bleu`, of each text against the others.

    `tokenizer` is sacreBLEU's, for `bleu`.
    """
    scores_NN = chrf(texts) if utility == "chrf" else bleu(texts, tokenizer)
    return (scores_NN.sum(axis=1) - np.diag(scores_NN)) / max(1, len(texts) - 1)


def chrf(texts: Sequence[str]) -> np.ndarray:
    """Return sacreBLEU's sentence chrF (N, N) of each text with each as the reference."""
    precision_NN = recall_NN = orders_NN = np.zeros((len(texts), len(texts)))
    characters = ["".join(text.split()) for text in texts]
    for n in range(1, CHRF.CHAR_ORDER + 1):
        matches_NN, totals_N = matches(characters, n)
        present_N = np.maximum(totals_N, 1)
        precision_NN = precision_NN + matches_NN / present_N[:, None]
        recall_NN = recall_NN + matches_NN / present_N[None]
        orders_NN = orders_NN + ((totals_N[:, None] > 0) & (totals_N[None] > 0))
    # The mean over the orders that both texts have; it is the same divisor in both.
    precision_NN, recall_NN = (x / np.maximum(orders_NN, 1) for x in (precision_NN, recall_NN))
    squared = CHRF.BETA**2
    below_NN = squared * precision_NN + recall_NN
    above_NN = (1 + squared) * precision_NN * recall_NN
    return 100 * np.divide(above_NN, below_NN, where=below_NN > 0, out=np.zeros_like(above_NN))


def bleu(texts: Sequence[str], tokenizer: str = "13a") -> np.ndarray:
    """Return sacreBLEU's sentence BLEU (N, N) of each text with each as the reference."""
    metric = BLEU(effective_order=True, tokenize=tokenizer)
    words = [metric.tokenizer(text.rstrip()).split() for text in texts]
    every = [matches(words, n) for n in range(1, metric.max_ngram_order + 1)]
    matches_NNn = np.stack([matches_NN for matches_NN, _ in every], axis=-1)
    totals_Nn = np.stack([totals_N for _, totals_N in every], axis=-1)
    lengths_N = totals_Nn[:, 0]

    def score(i: int, j: int) -> float:
        return BLEU.compute_bleu(
            matches_NNn[i, j].tolist(),
            totals_Nn[i].tolist(),
            int(lengths_N[i]),
            int(lengths_N[j]),
            smooth_method=metric.smooth_method,
            effective_order=True,
        ).score

    return np.array([[score(i, j) for j in range(len(texts))] for i in range(len(texts))])


def matches(sequences: Sequence[Sequence[str]], n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how many n-grams each pair of sequences shares (N, N), and how many each has (N,)."""
    counts = [
        Counter(tuple(units[i : i + n]) for i in range(len(units) - n + 1)) for units in sequences
    ]
    numbers = {
        gram: number for number, gram in enumerate(dict.fromkeys(g for c in counts for g in c))
    }
    counts_NG = np.zeros((len(sequences), len(numbers)), np.int32)
    for row_G, each in zip(counts_NG, counts, strict=True):
        row_G[[numbers[gram] for gram in each]] = [*each.values()]
    matches_NN = np.stack([np.minimum(counts_NG, row_G).sum(axis=1) for row_G in counts_NG])
    return matches_NN, counts_NG.sum(axis=1)
