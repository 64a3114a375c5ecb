"""Bracketed trees: what is read, how it is linearised, and what becomes of any output."""

import gzip
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jformer.errors import UserError
from jformer.extras.parsing.trees import (
    Tree,
    as_target,
    linearise,
    open_trees,
    read_trees,
    tree_of,
    trees_in,
)

FULL = "( (S (NP-SBJ-1 (DT The) (NN cat)) (VP (VBD sat) (NP=2 (-NONE- *T*))) (. .)) )"
PLAIN = "(S (NP (DT The) (NN cat)) (VP (VBD sat)) (. .))"


def read(text):
    return [*map(str, trees_in(text.encode().split(b"\n"), "x.mrg"))]


def tree(text):
    (found,) = trees_in([text.encode()], "x.mrg")
    return found


@st.composite
def trees(draw, depth=3):
    """Trees as they are read: constituents hold something, and words have tags."""
    label = draw(st.sampled_from(["S", "NP", "VP", "X"]))
    parts = draw(st.lists(st.booleans(), min_size=1, max_size=3))
    children = [
        draw(trees(depth=depth - 1)) if deeper and depth else Tree("NN", word=draw(WORDS))
        for deeper in parts
    ]
    return Tree(label, tuple(children))


WORDS = st.sampled_from(["a", "b", "-LRB-", "1.5"])


@pytest.mark.parametrize(
    ("text", "trees"),
    [
        (FULL, [PLAIN]),  # without function tags, traces and the root
        ("(S (NP=2 (NN a)) (NP-SBJ=3 (NN b)))", ["(S (NP (NN a)) (NP (NN b)))"]),
        ("(S (-X (-LRB- -LRB-) (NN a)))", ["(S (-X (-LRB- -LRB-) (NN a)))"]),
        ("(S (ADVP|PRT (RB up)))", ["(S (ADVP|PRT (RB up)))"]),
        *((root.format(PLAIN), [PLAIN]) for root in ("(ROOT {})", "(TOP {})", "({})", "(S1 {})")),
        ("\ufeff( (ROOT (S1 (NP (NN a)))) )", ["(NP (NN a))"]),
        ("((NP (NN a)) (. .))", ["(TOP (NP (NN a)) (. .))"]),
        ("(ROOT (NN a))", ["(TOP (NN a))"]),
        ("(NN a)", ["(TOP (NN a))"]),
        (FULL.replace(" ", "\n") + " " + PLAIN, [PLAIN, PLAIN]),
        (f"(S (NP (-NONE- *))) {PLAIN}", [PLAIN]),
        ("(NP (NN Xpd TTD))", ["(NP (NN Xpd) (NN TTD))"]),
    ],
)
def test_trees_are_read_as_evalb_compares_them(text, trees):
    assert read(text) == trees


def test_a_place_in_a_corpus_is_told_as_that_of_a_tree():
    assert open_trees([Path("a.mrg")], "XX").names[0].endswith("a.mrg")
    assert re.search(r"a\.mrg\b.*\b1\b", open_trees([Path("a.mrg"), Path("b.mrg")], "XX").names[1])


def test_a_compressed_file_is_read(tmp_path):
    (tmp_path / "x.mrg.gz").write_bytes(gzip.compress(f"{FULL}\n{FULL}\n".encode()))
    assert [*map(str, read_trees(tmp_path / "x.mrg.gz"))] == [PLAIN, PLAIN]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(S (NN a)))", r"x\.mrg:1: '\)'"),
        ("(S (NN a))\n\n(S (NN a)\n(NN b)", r"x\.mrg:3: .*\b1 '\)'"),
        ("\nword (S (NN a))", r"x\.mrg:2: 'word'"),
        ("(S (NP a (NN b)))", r"x\.mrg:1: \(NP .*'a'.*\(NN word\)"),
        ("(S (NP))", r"x\.mrg:1: \(NP\)"),
        ("()", r"x\.mrg:1: \(\)"),
        ("(" * 201, r"x\.mrg:1: .*\b200\b"),
    ],
)
def test_brackets_that_are_no_tree_are_named_by_file_and_line(text, message):
    with pytest.raises(UserError, match=message):
        read(text)


def test_bytes_that_are_no_text_are_named_by_file_and_line():
    with pytest.raises(UserError, match=r"x\.mrg:2: .*UTF-8"):
        list(trees_in([b"(S (NN a))", b"(S (NN \xff))"], "x.mrg"))


def test_a_linearised_tree_has_labelled_brackets_and_a_token_for_each_word():
    assert linearise(tree(FULL), "XX") == "(S (NP XX XX )NP (VP XX )VP XX )S"
    assert linearise(tree(FULL), "keep") == "(S (NP DT NN )NP (VP VBD )VP . )S"
    assert linearise(tree(FULL), "number") == "(S (NP 1 2 )NP (VP 3 )VP 4 )S"


@given(trees())
def test_a_linearised_tree_and_its_words_are_the_tree_again(tree):
    assert tree_of(linearise(tree, "keep"), tree.words()) == (tree, True)
    by_number = tree_of(linearise(tree, "number"), tree.words())
    assert by_number == tree_of(linearise(tree, "XX"), tree.words())
    assert by_number[1]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("(S XX XX", "(S (XX a) (XX b))"),  # what is open is closed
        ("(S (NP XX )S", "(TOP (S (NP (XX a))) (XX b))"),  # ... by a bracket around it, too
        ("(S XX )NP XX )S", "(S (XX a) (XX b))"),  # nothing is open that it could close
        ("(S (NP )NP XX XX )S", "(S (XX a) (XX b))"),  # empty
        ("(S XX )S", "(TOP (S (XX a)) (XX b))"),  # too few words
        ("(S XX XX XX )S", "(S (XX a) (XX b))"),  # too many
        ("(NP XX )NP (VP XX )VP", "(TOP (NP (XX a)) (VP (XX b)))"),  # two roots
        ("XX XX", "(TOP (XX a) (XX b))"),
        ("", "(TOP (XX a) (XX b))"),
        ("(S 2 1 )S", "(S (XX a) (XX b))"),  # words stand in their order
    ],
)
def test_an_output_that_is_no_tree_is_repaired_and_told(output, expected):
    tree, well_formed = tree_of(output, ["a", "b"])
    assert (str(tree), well_formed) == (expected, False)


def test_whatever_the_output_the_repaired_tree_has_all_words_and_no_empty_constituent():
    rng = random.Random(0)
    tokens = ["(S", ")S", "(NP", ")NP", "XX", "DT"]
    told = set()
    for _ in range(5000):
        words = ["a", "b", "c"][: rng.randint(1, 3)]
        output = " ".join(rng.choices(tokens, k=rng.randint(0, 9)))
        tree, well_formed = tree_of(output, words)
        assert tree.words() == words
        assert read(str(tree)) == [str(tree)]  # raises for an empty one
        assert not well_formed or linearise(tree, "keep") == output
        told.add(well_formed)
    assert told == {False, True}


def test_an_output_deeper_than_trees_are_read_is_cut_there():
    tree, well_formed = tree_of("(S " * 400 + "XX", ["a"])
    assert not well_formed
    assert read(str(tree)) == [str(tree)]


def test_a_target_in_penn_bracketing_is_linearised_and_a_linearised_one_kept():
    assert as_target("(S (NN a) (VB b))", "a b", "number") == "(S 1 2 )S"
    assert as_target("(S 1 2 )S", "a b", "number") == "(S 1 2 )S"
    with pytest.raises(UserError, match=r"\b1\b"):
        as_target("(S (NN a)", "a", "XX")
    with pytest.raises(UserError, match="'a b'"):
        as_target("(S (NN a))", "a b", "XX")
