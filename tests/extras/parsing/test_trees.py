"""Bracketed trees: what is read, how it is linearised, and what becomes of any output."""

import dataclasses
import gzip
import random

import pytest

from jformer.config import Config, DataConfig
from jformer.data.datasets import open_corpora, read_split
from jformer.errors import UserError
from jformer.extras.parsing.trees import linearise, tree_of, trees_in

FULL = "( (S (NP-SBJ-1 (DT The) (NN cat)) (VP (VBD sat) (NP=2 (-NONE- *T*))) (. .)) )"
PLAIN = "(S (NP (DT The) (NN cat)) (VP (VBD sat)) (. .))"
PARSING = DataConfig(name="parsing", scorer="trees")


def read(text):
    return [*map(str, trees_in(text.split("\n"), "x.mrg"))]


@pytest.mark.parametrize(
    ("text", "trees"),
    [
        (FULL, [PLAIN]),  # without function tags, traces and the root
        ("(S (NP=2 (NN a)) (NP-SBJ=3 (NN b)))", ["(S (NP (NN a)) (NP (NN b)))"]),
        ("(S (-X (-LRB- -LRB-) (NN a)))", ["(S (-X (-LRB- -LRB-) (NN a)))"]),
        *((root.format(PLAIN), [PLAIN]) for root in ("(ROOT {})", "(TOP {})", "({})", "(S1 {})")),
        ("((NP (NN a)) (. .))", ["(TOP (NP (NN a)) (. .))"]),
        ("(ROOT (NN a))", ["(TOP (NN a))"]),
        (FULL.replace(" ", "\n") + " " + PLAIN, [PLAIN, PLAIN]),
        (f"(S (NP (-NONE- *))) {PLAIN}", [PLAIN]),
        ("(NP (NN Xpd TTD))", ["(NP (NN Xpd) (NN TTD))"]),
    ],
)
def test_trees_are_read_as_evalb_compares_them(text, trees):
    assert read(text) == trees


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(S (NN a)))", r"x\.mrg:1: '\)'"),
        ("(S (NN a))\n\n(S (NN a)\n(NN b)", r"x\.mrg:3: .*\b1 '\)'"),
        ("\nword (S (NN a))", r"x\.mrg:2: 'word'"),
        ("(S (NP a (NN b)))", r"x\.mrg:1: \(NP .*'a'.*\(NN word\)"),
    ],
)
def test_malformed_brackets_are_named_by_file_and_line(text, message):
    with pytest.raises(UserError, match=message):
        read(text)


def test_a_linearised_tree_has_labelled_brackets_and_a_token_for_each_word():
    (tree,) = trees_in([FULL], "x.mrg")
    assert linearise(tree, "XX") == "(S (NP XX XX )NP (VP XX )VP XX )S"
    assert linearise(tree, "keep") == "(S (NP DT NN )NP (VP VBD )VP . )S"
    assert linearise(tree, "number") == "(S (NP 1 2 )NP (VP 3 )VP 4 )S"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("(S XX XX", "(S (XX a) (XX b))"),  # what is open is closed
        ("(S (NP XX )S", "(TOP (S (NP (XX a))) (XX b))"),  # ... by a bracket around it, too
        ("(S XX )NP XX )S", "(S (XX a) (XX b))"),  # nothing is open that it could close
        ("(S (NP )NP XX XX )S", "(S (XX a) (XX b))"),  # empty
        ("(S XX XX XX )S", "(S (XX a) (XX b))"),  # too many words
        ("(NP XX )NP (VP XX )VP", "(TOP (NP (XX a)) (VP (XX b)))"),  # two roots
        ("", "(TOP (XX a) (XX b))"),
        ("(S 2 1 )S", "(S (XX a) (XX b))"),  # words stand in their order
    ],
)
def test_an_output_that_is_not_a_tree_is_repaired_and_reported(output, expected):
    tree, well_formed = tree_of(output, ["a", "b"])
    assert (str(tree), well_formed) == (expected, False)


def test_any_output_becomes_a_tree_of_all_words_whose_linear_form_is_the_same_tree():
    rng = random.Random(0)
    tokens = ["(S", ")S", "(NP", ")NP", "XX", "DT"]
    seen = set()
    for _ in range(3000):
        words = ["a", "b", "-LRB-"][: rng.randint(1, 3)]
        output = " ".join(rng.choices(tokens, k=rng.randint(0, 9)))
        tree, well_formed = tree_of(output, words)
        assert tree.words() == words
        assert read(str(tree)) == [str(tree)]  # raises for an empty one
        assert well_formed == (linearise(tree, "keep") == output)
        assert tree_of(linearise(tree, "keep"), words) == (tree, True)
        by_number = tree_of(linearise(tree, "number"), words)
        assert by_number == tree_of(linearise(tree, "XX"), words)
        assert by_number[1]
        seen.add(well_formed)
    assert seen == {False, True}
    deep, _ = tree_of("(S " * 900 + "XX", ["a"])
    assert read(str(deep)) == [str(deep)]


def write(folder, **trees):
    """Write files of one tree, whose word is the name's value."""
    for name, word in trees.items():
        (folder / (name.replace("_", ".") + ".mrg")).write_text(f"(S (NN {word}))\n")


def sources(**keys):
    data = dataclasses.replace(PARSING, **keys)
    corpora = open_corpora(Config(data=data))
    return {
        split: [read_split([one]).sources for one in of_split]
        for split, of_split in corpora.items()
    }


def test_the_names_of_files_in_a_folder_have_split_and_corpus(tmp_path):
    write(tmp_path, gum_train="a", gum_dev="b", gum_test="c", craft_train="d", test="e", silver="f")
    (tmp_path / "craft.test.mrg.gz").write_bytes(gzip.compress(b"(S (NN g))\n"))
    assert sources(directory=str(tmp_path), train=f"{tmp_path}/silver.mrg") == {
        "train": [["d"], ["a"], ["f"]],
        "validation": [["b"]],
        "craft.test": [["g"]],
        "gum.test": [["c"]],
        "test": [["e"]],
    }


def test_splits_may_be_patterns_of_files_and_each_to_train_on_is_a_corpus(tmp_path):
    write(tmp_path, a1="a", a2="b", b="c", c="d", silver="e")
    files = {"train": f"{tmp_path}/a*.mrg,{tmp_path}/silver.mrg"}
    files |= {"validation": f"{tmp_path}/b.mrg", "test": f"{tmp_path}/c.mrg"}
    expected = {"train": [["a", "b"], ["e"]], "validation": [["c"]], "test": [["d"]]}
    assert sources(**files) == expected


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, r"directory=: .*\.dev\.mrg.*validation"),
        ({"directory": "{}"}, r"directory={}: .*\.dev\.mrg"),
        ({"validation": "{}/x.train.mrg", "train": "{}/y*.mrg"}, r"{}/y\*\.mrg: "),
    ],
)
def test_missing_files_are_named(tmp_path, keys, message):
    write(tmp_path, x_train="a")
    with pytest.raises(UserError, match=message.replace("{}", str(tmp_path))):
        sources(**{key: value.format(tmp_path) for key, value in keys.items()})
