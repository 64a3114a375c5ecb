"""Labelled bracketing scores, by hand and beside what EVALB's conventions give."""

import pytest

from jformer.config import Config, DataConfig
from jformer.data.corpora import Split
from jformer.errors import UserError
from jformer.extras.parsing.scorer import Trees, count
from jformer.extras.parsing.trees import trees_in

CONFIG = Config(data=DataConfig(name="parsing(tags='number')", scorer="trees"))


def tree(text):
    (found,) = trees_in([text], "text")
    return found


GOLD = tree("(S (NP (DT a) (NN b)) (VP (VB c) (NP (NN d)) (PP (IN e) (NP (NN f)))) (. .))")
FLAT = tree("(S (NP (DT a) (NN b)) (VB c) (NN d) (IN e) (NN f) (. .))")


def gold(n):
    return Split([" ".join(GOLD.words())] * n, [""] * n, gold=[GOLD] * n)


def scores(*trees):
    outputs = [str(each) for each in trees]
    return Trees().scores(outputs, [True] * len(trees), gold(len(trees)), CONFIG)


@pytest.mark.parametrize(
    ("gold", "found", "expected"),
    [
        (str(GOLD), str(GOLD), (6, 6, 6)),
        # The PP within the NP: one bracket more, and (NP 3 4) became (NP 3 6).
        (
            str(GOLD),
            "(S (NP (DT a) (NN b)) (VP (VB c) (NP (NP (NN d)) (PP (IN e) (NP (NN f))))) (. .))",
            (6, 6, 7),
        ),
        (  # a wrong label
            str(GOLD),
            "(S (ADJP (DT a) (NN b)) (VP (VB c) (NP (NN d)) (PP (IN e) (NP (NN f)))) (. .))",
            (5, 6, 6),
        ),
        (  # punctuation of the gold tree is left out of spans, whatever its tags in the other
            "(S (NP (NN a) (, ,)) (VP (VB b)) (PRN (: --)) (. .))",
            "(S (NP (XX a)) (XX ,) (VP (XX b) (XX --)) (XX .))",
            (3, 3, 3),
        ),
        # Equal brackets count as often as they occur.
        ("(S (NP (NP (NN a))) (VP (VB b)))", "(S (NP (NN a)) (VP (VB b)))", (3, 4, 3)),
        ("(S (VP (VB a) (PRT (RP b))))", "(S (VP (VB a) (ADVP (RP b))))", (3, 3, 3)),
        ("(S (VP (VB a) (PRT (RP b))))", "(VP (VB a) (PRT (RP b)))", (2, 3, 2)),
    ],
)
def test_brackets_are_counted_as_evalb_does(gold, found, expected):
    """Matched, of the gold tree, and of the tree found."""
    assert count(tree(found), tree(gold)) == expected


def test_precision_recall_and_f1_are_of_all_brackets_of_the_corpus():
    found = tree("(S (NP (DT a) (NN b)) (VP (VB c) (NN d) (IN e) (NN f)) (. .))")
    result = scores(found, GOLD)
    assert result["precision"] == 100
    assert result["recall"] == pytest.approx(100 * 9 / 12)
    assert result["f1"] == pytest.approx(2 * 100 * 75 / 175)
    assert result["exact_match"] == 50
    low, high = result["f1_interval"]
    assert low < result["f1"] < high == 100


@pytest.mark.parametrize(
    ("right", "better"), [((40, 10), "ours"), ((10, 40), "theirs"), ((26, 25), "")]
)
def test_the_better_of_two_parsers_is_named(right, better):
    ours, theirs = ([GOLD] * n + [FLAT] * (51 - n) for n in right)
    outputs = ([str(each) for each in trees] for trees in (ours, theirs[::-1]))
    verdict = Trees().compare(*outputs, gold(51), ("ours", "theirs"), CONFIG)["f1"]
    assert verdict["better"] == better
    assert verdict["systems"][0]["score"] == scores(*ours)["f1"]
    assert verdict["systems"][0]["interval"] == scores(*ours)["f1_interval"]


def test_a_target_in_penn_bracketing_is_linearised_and_a_linearised_one_kept():
    for text in ("(S (NN a) (VB b))", "(S 1 2 )S"):
        assert Trees().target(text, "a b", CONFIG) == "(S 1 2 )S"
    with pytest.raises(UserError, match="'a b'"):
        Trees().target("(S (NN a))", "a b", CONFIG)
