"""The table of scores: all scores can be read in it, and missing scores leave no trace."""

import math

from jformer.commands.evaluate import table
from jformer.evaluation.scores import LABELS, compare, score
from tests.evaluation.noise import sentences, worsened

REFERENCE = sentences(31)
OUTPUT = worsened(REFERENCE, 0.3)
SCORES = score(OUTPUT, [REFERENCE], "de")


def rows(results) -> dict[str, list[str]]:
    """The cells of each row of the first block, by its label."""
    lines = table(results, LABELS).split("\n\n")[0].splitlines()
    split = ([cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines)
    return {cells[0]: cells[1:] for cells in split}


def test_every_score_has_a_row_and_every_test_set_a_column():
    found = rows({"test": {**SCORES, "perplexity": math.inf}, "other": {"bleu": 3.14159}})
    assert found.pop("test") == ["other"]
    assert found.pop("BLEU") == [f"{SCORES['bleu']:.2f}", "3.14"]
    low, high = SCORES["bleu_interval"]
    assert found.pop("95 % interval") == [f"{low:.2f}-{high:.2f}", "-"]
    assert found.pop("perplexity") == ["inf", "-"]
    others = [name for name in LABELS if name not in ("bleu", "bleu_interval")]
    assert [*found.values()] == [[f"{SCORES[name]:.2f}", "-"] for name in others]


def test_a_comparison_names_the_better_system_unless_it_may_be_chance():
    worse = worsened(REFERENCE, 0.9, seed=5)
    against = compare(worse, OUTPUT, [REFERENCE], ("small", "big"), "de")
    against["chrf"] |= {"p_value": 0.06, "better": ""}
    text = table({"test": {"bleu": 1.0, "against": against}}, LABELS)
    bleu, chrf, _ = text.split("\n\n")[1].splitlines()
    assert bleu.startswith(f"test, BLEU  small {against['bleu']['systems'][0]['score']:.2f}")
    assert bleu.endswith("big")
    assert "0.060" in chrf
    assert chrf.endswith("neither")
