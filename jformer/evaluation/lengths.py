"""Scores by source length, which show whether a model fails on long sentences.

Words are separated by whitespace, so a language written without spaces falls into one group.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics import BLEU, CHRF

from jformer.evaluation.scores import check_streams

LONGEST = (10, 20, 30, 40, 60, math.inf)  # upper bounds of the groups, in words of the source


def by_length(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> list[dict[str, Any]]:
    """Return `words`, `pairs`, `bleu`, `chrf` and `length_ratio` of each group that has pairs.

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
        bleu = BLEU(force=True).corpus_score(hypotheses_here, references_here)
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
