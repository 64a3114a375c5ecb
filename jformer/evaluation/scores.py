"""BLEU and chrF by sacreBLEU, on plain text as it came out, each BLEU with its signature."""

from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics import BLEU, CHRF


def score(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """`bleu` is cased and tokenised by 13a; `bleu_lowercase` is the same without case."""
    cased, lowercase, chrf = BLEU(), BLEU(lowercase=True), CHRF()
    result = {
        "bleu": cased.corpus_score(hypotheses, [references]).score,
        "bleu_lowercase": lowercase.corpus_score(hypotheses, [references]).score,
        "chrf": chrf.corpus_score(hypotheses, [references]).score,
    }
    result["signature"] = str(cased.get_signature())
    result["signature_lowercase"] = str(lowercase.get_signature())
    return result
