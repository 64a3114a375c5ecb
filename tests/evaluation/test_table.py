"""The table: what is in the scores can be read in it, and what is not leaves no trace."""

import math
import re

from jformer.evaluation.compare import compare
from jformer.evaluation.scores import SIGNATURES, by_length, score
from jformer.evaluation.table import table
from tests.evaluation.noise import sentences, worsened

REFERENCE = sentences(31)
OUTPUT = worsened(REFERENCE, 0.3)
SCORES = score(OUTPUT, [REFERENCE], "de")


def rows(results) -> dict[str, list[str]]:
    """The cells of each row of the first block, by its label."""
    lines = table(results).split("\n\n")[0].splitlines()
    split = ([cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines)
    return {cells[0]: cells[1:] for cells in split}


def test_a_row_a_score_and_a_column_a_split():
    found = rows({"test": {"bleu": 27.304, "chrf": 5}, "unseen": {"bleu": 3.14159, "chrf": 60.0}})
    assert found == {"test": ["unseen"], "BLEU": ["27.30", "3.14"], "chrF": ["5.00", "60.00"]}


def test_all_scores_have_rows():
    found = rows({"test": {**SCORES, "perplexity": 4.25}})
    low, high = SCORES["bleu_interval"]
    assert {"test", "BLEU", "chrF", "TER", "perplexity"} <= found.keys()
    assert [*found.values()] == [
        [],
        [f"{SCORES['bleu']:.2f}"],
        [f"{low:.2f}-{high:.2f}"],
        [f"{SCORES['bleu_lowercase']:.2f}"],
        [f"{SCORES['bleu_moses']:.2f}"],
        [f"{SCORES['bleu_moses_lowercase']:.2f}"],
        [f"{SCORES['bleu_moses_compounds']:.2f}"],
        [f"{SCORES['chrf']:.2f}"],
        [f"{SCORES['ter']:.2f}"],
        ["4.25"],
    ]


def test_a_score_that_one_split_lacks_is_a_dash():
    found = rows({"test": {"bleu": 1.0}, "other": {"bleu": 2.0, "perplexity": math.inf}})
    assert found["perplexity"] == ["-", "inf"]


def test_columns_stand_under_their_names():
    lines = table({"test": {"bleu": 1.0}, "a_long_name": {"bleu": 99.0}}).splitlines()
    for name, number in (("test", "1.00"), ("a_long_name", "99.00")):
        ends = [
            line.index(text) + len(text) for line, text in zip(lines, (name, number), strict=True)
        ]
        assert ends[0] == ends[1]


def test_every_signature_is_told_once():
    text = table({"test": SCORES, "again": SCORES})
    for key in SIGNATURES.values():
        assert text.count(SCORES[key]) == 1


def test_signatures_that_differ_by_split_are_all_told():
    text = table({"test": {"signature": "one"}, "other": {"bleu": 1.0, "signature": "two"}})
    assert re.findall(r"BLEU.* (one|two)$", text, re.MULTILINE) == ["one", "two"]


def test_scores_by_length_have_a_block_for_their_split():
    groups = by_length(REFERENCE, OUTPUT, [REFERENCE])
    heading, *lines = table({"test": {**SCORES, "by_length": groups}}).split("\n\n")[2].splitlines()
    assert heading.startswith("test")
    names = ("bleu", "chrf", "length_ratio")
    assert [line.split() for line in lines] == [
        [group["words"], str(group["pairs"]), *(f"{group[name]:.2f}" for name in names)]
        for group in groups
    ]


def test_a_comparison_names_the_better_system_unless_it_may_be_chance():
    worse = worsened(REFERENCE, 0.9, seed=5)
    against = compare(worse, OUTPUT, [REFERENCE], ("small", "big"))
    against["chrf"] |= {"p_value": 0.06, "significant": False}
    heading, bleu, chrf, ter = (
        table({"test": {"bleu": 1.0, "against": against}}).split("\n\n")[1].splitlines()
    )
    assert re.match(r"test\b.*\bsmall +big +p\b.*0\.05$", heading)
    assert bleu.split()[0] == "BLEU"
    assert bleu.split()[-2:] == [f"{against['bleu']['p_value']:.3f}", "big"]
    assert chrf.split()[-2:] == ["0.060", "neither"]
    assert ter.split()[-1] == "big"
    ours = against["bleu"]["systems"][0]
    low, high = ours["interval"]
    assert bleu.split()[1:3] == [f"{ours['score']:.2f}", f"({low:.2f}-{high:.2f})"]


def test_no_scores_are_no_text():
    assert table({}) == ""
    assert table({"test": {"step": 3, "seconds": 1.5}}) == ""
