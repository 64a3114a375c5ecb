"""Labelled bracketing scores, by hand and beside what EVALB's conventions give."""

import pytest

from jformer.errors import UserError
from jformer.extras.parsing.bracketing import bracketing, compare_trees, count
from jformer.extras.parsing.trees import trees_in


def tree(text):
    (found,) = trees_in([text.encode()], "text")
    return found


GOLD = tree("(S (NP (DT a) (NN b)) (VP (VB c) (NP (NN d)) (PP (IN e) (NP (NN f)))) (. .))")


def counts(found, gold=GOLD):
    result = count(tree(found), gold)
    return result.matched, result.gold, result.found, result.crossing


def test_the_same_tree_matches_in_all_brackets():
    assert counts(str(GOLD)) == (6, 6, 6, 0)
    scores = bracketing([GOLD], [GOLD])
    assert (scores["f1"], scores["exact_match"], scores["tag_accuracy"]) == (100, 100, 100)
    assert scores["f1_interval"] == [100, 100]


@pytest.mark.parametrize(
    ("gold", "found", "expected"),
    [
        # The PP within the NP: one bracket more, and (NP 3 4) became (NP 3 6).
        (
            str(GOLD),
            "(S (NP (DT a) (NN b)) (VP (VB c) (NP (NP (NN d)) (PP (IN e) (NP (NN f))))) (. .))",
            (6, 6, 7, 0),
        ),
        (  # a wrong label
            str(GOLD),
            "(S (ADJP (DT a) (NN b)) (VP (VB c) (NP (NN d)) (PP (IN e) (NP (NN f)))) (. .))",
            (5, 6, 6, 0),
        ),
        (  # X crosses the first NP and the VP
            str(GOLD),
            "(S (DT a) (X (NN b) (VB c)) (NP (NN d)) (PP (IN e) (NP (NN f))) (. .))",
            (4, 6, 5, 1),
        ),
        (  # punctuation of the gold tree is left out of spans, whatever its tags in the other
            "(S (NP (NN a) (, ,)) (VP (VB b)) (PRN (: --)) (. .))",
            "(S (NP (XX a)) (XX ,) (VP (XX b) (XX --)) (XX .))",
            (3, 3, 3, 0),
        ),
        # Equal brackets count as often as they occur.
        ("(S (NP (NP (NN a))) (VP (VB b)))", "(S (NP (NN a)) (VP (VB b)))", (3, 4, 3, 0)),
        ("(S (VP (VB a) (PRT (RP b))))", "(S (VP (VB a) (ADVP (RP b))))", (3, 3, 3, 0)),
        ("(S (VP (VB a) (PRT (RP b))))", "(TOP (VP (VB a) (PRT (RP b))))", (2, 3, 2, 0)),
    ],
)
def test_brackets_are_counted_as_evalb_does(gold, found, expected):
    """Matched, of the gold tree, of the tree found, and crossing."""
    assert counts(found, tree(gold)) == expected


def test_precision_recall_and_f1_are_of_all_brackets_of_the_corpus():
    found = tree("(S (NP (DT a) (NN b)) (VP (VB c) (NN d) (IN e) (NN f)) (. .))")
    scores = bracketing([found, GOLD], [GOLD, GOLD])
    assert scores["precision"] == 100
    assert scores["recall"] == pytest.approx(100 * 9 / 12)
    assert scores["f1"] == pytest.approx(2 * 100 * 75 / 175)
    assert scores["exact_match"] == 50
    low, high = scores["f1_interval"]
    assert low < scores["f1"] < high == 100


def test_sentences_of_more_than_40_words_are_left_out_of_the_short_ones():
    words = " ".join(f"(NN w{n})" for n in range(41))
    gold, wrong = tree(f"(S (NP {words}))"), tree(f"(X {words})")
    scores = bracketing([wrong, GOLD], [gold, GOLD])
    assert scores["f1"] < 100
    assert scores["f1_short"] == 100


def test_tag_accuracy_is_of_words_that_are_no_punctuation():
    found = tree(str(GOLD).replace("(NN b)", "(JJ b)").replace("(. .)", "(: .)"))
    assert bracketing([found], [GOLD])["tag_accuracy"] == pytest.approx(100 * 5 / 6)
    assert "tag_accuracy" not in bracketing([found], [GOLD], with_tags=False)


def test_trees_of_other_words_or_another_number_are_refused():
    with pytest.raises(UserError, match="'a b'"):
        bracketing([tree("(S (NN a))")], [tree("(S (NN a) (NN b))")])
    with pytest.raises(UserError, match=r"\b1 tree.*\b2\b"):
        bracketing([GOLD], [GOLD, GOLD])


FLAT = tree("(S (NP (DT a) (NN b)) (VB c) (NN d) (IN e) (NN f) (. .))")


@pytest.mark.parametrize(("right", "better"), [((40, 10), "ours"), ((10, 40), "theirs")])
def test_the_better_of_two_parsers_is_named(right, better):
    ours, theirs = ([GOLD] * n + [FLAT] * (50 - n) for n in right)
    verdict = compare_trees(ours, theirs, [GOLD] * 50, ("ours", "theirs"))["f1"]
    assert (verdict["better"], verdict["significant"]) == (better, True)
    for system, trees in zip(verdict["systems"], (ours, theirs), strict=True):
        scores = bracketing(trees, [GOLD] * 50)
        assert system["score"] == scores["f1"]
        assert system["interval"] == scores["f1_interval"]


def test_parsers_with_as_many_mistakes_in_other_sentences_are_not_told_apart():
    ours, theirs = [GOLD, FLAT] * 20 + [GOLD], [FLAT, GOLD] * 20 + [FLAT]
    verdict = compare_trees(ours, theirs, [GOLD] * 41, ("ours", "theirs"))["f1"]
    assert (verdict["better"], verdict["significant"]) == ("ours", False)
    same = compare_trees(ours, ours, [GOLD] * 41, ("ours", "theirs"))["f1"]
    assert (same["better"], same["p_value"], same["significant"]) == ("", 1.0, False)


def test_without_short_sentences_they_have_no_score():
    long = tree("(S " + "(NN a) " * 41 + ")")
    assert "f1_short" not in bracketing([long], [long])
