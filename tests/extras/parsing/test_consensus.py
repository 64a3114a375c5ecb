"""The consensus of trees, by hand and against all sets of constituents that do not cross."""

import itertools
import random
from collections import Counter

import pytest

from jformer.extras.parsing.consensus import consensus_of
from jformer.extras.parsing.trees import tree_of

LABELS = ("S", "NP", "VP")


def random_tree(rng, begin, end, chain=2):
    """Return a linearised tree of the words `begin` to `end`, with numbers for words."""
    label, cuts = rng.choice(LABELS), range(begin + 1, end)
    if chain and rng.random() < 0.3:
        inside = random_tree(rng, begin, end, chain - 1)
    else:
        ends = [begin, *sorted(rng.sample(cuts, min(len(cuts), rng.randrange(3)))), end]
        parts = itertools.pairwise(ends) if len(ends) > 2 else ()
        inside = " ".join(
            str(a + 1) if b == a + 1 and rng.random() < 0.8 else random_tree(rng, a, b)
            for a, b in parts
        ) or " ".join(str(n + 1) for n in range(begin, end))
    return f"({label} {inside} ){label}"


def brackets(tree, words):
    """Return (first word, word after the last, label, nth) of constituents, inner ones first."""
    found = []

    def walk(part, begin):
        if part.word:
            return begin + 1
        end = begin
        for child in part.children:
            end = walk(child, end)
        nth = sum(one[:3] == (begin, end, part.label) for one in found)
        found.append((begin, end, part.label, nth))
        return end

    walk(tree_of(tree, ["a"] * words)[0], 0)
    return found


def crosses(one, other):
    return one[0] < other[0] < one[1] < other[1]


def test_a_constituent_of_most_trees_is_in_the_consensus_and_one_of_few_is_not():
    trees = ["(S (NP 1 2 )NP (VP 3 4 )VP )S"] * 2
    trees += ["(S (NP 1 2 )NP 3 (NP 4 )NP )S", "(S 1 (VP 2 3 4 )VP )S"]
    assert consensus_of(trees, ["a"] * 4) == "(S (NP 1 2 )NP (VP 3 4 )VP )S"


def test_the_root_is_the_most_frequent_one_even_if_few_trees_have_it():
    roots = ["S", "S", "X", "Y", "Z", "NP"]
    assert consensus_of([f"({root} 1 2 ){root}" for root in roots], ["a", "b"]) == "(S 1 2 )S"


def test_the_tags_of_words_are_the_most_frequent_ones():
    assert consensus_of(["(S NN VB )S", "(S NN NN )S", "(S JJ VB )S"], ["a", "b"]) == "(S NN VB )S"


def test_constituents_of_the_same_words_have_the_order_of_most_trees():
    trees = ["(S (VP (NP 1 )NP )VP 2 )S"] * 2 + ["(S (NP (VP 1 )VP )NP 2 )S"]
    assert consensus_of(trees, ["a", "b"]) == trees[0]
    # However deep they stand in trees that have one of them alone.
    trees = ["(S (X (Y (VP (NP 1 )NP )VP 2 )Y 3 )X 4 )S"] * 5 + ["(S (NP 1 )NP 2 3 4 )S"] * 5
    assert "(VP (NP 1 )NP )VP" in consensus_of(trees, ["a"] * 4)
    nested = "(NP (NP (NP 1 )NP )NP 2 )NP"
    assert consensus_of([nested, nested, "(NP (NP 1 )NP 2 )NP"], ["a", "b"]) == nested


def test_trees_that_differ_in_where_a_comma_hangs_agree():
    trees = ["(S (NP 1 , )NP (VP 3 )VP . )S", "(S (NP 1 )NP (VP , 3 . )VP )S"]
    trees += ["(S (NP 1 )NP , (VP 3 . )VP )S"]
    assert consensus_of(trees, ["Well", ",", "go", "."]) == "(S (NP 1 )NP , (VP 3 )VP . )S"
    # At both ends it is within the root alone, also where constituents take all words.
    quoted = ["(S (NP 1 2 )NP 3 )S", "(S 1 (NP 2 )NP 3 )S"]
    assert consensus_of(quoted, ['"', "Go", '"']) == "(S 1 (NP 2 )NP 3 )S"
    assert consensus_of(["(X 1 2 )X"], [".", "?"]) == "(X 1 2 )X"


def test_an_apostrophe_and_a_hyphen_alone_are_parts_of_constituents():
    for word in ("'", "-", "\u2013", "$", "%"):
        tree = "(S (NP (NP 1 2 )NP 3 )NP (VP 4 )VP . )S"
        assert consensus_of([tree], ["dogs", word, "tails", "wag", "."]) == tree


def test_a_consensus_has_no_more_constituents_than_the_largest_tree():
    trees = ["(S (NP 1 2 )NP 3 4 5 )S", "(S 1 2 3 (VP 4 5 )VP )S"]
    assert consensus_of(trees, ["a"] * 5) == trees[0]


@pytest.mark.parametrize("seed", range(30))
def test_a_tree_is_its_own_consensus(seed):
    rng = random.Random(seed)
    words = rng.randrange(1, 9)
    tree = random_tree(rng, 0, words)
    assert consensus_of([tree] * rng.randrange(1, 4), ["a"] * words) == tree


@pytest.mark.parametrize("seed", range(60))
def test_no_other_tree_has_a_higher_expected_agreement(seed):
    """Against every set of the constituents that are worth their cost."""
    rng = random.Random(seed)
    words = rng.randrange(1, 7)
    trees = [random_tree(rng, 0, words) for _ in range(rng.randrange(2, 6))]
    counts = Counter(one for tree in trees for one in brackets(tree, words))
    gains = {one: count / len(trees) - 0.4 for one, count in counts.items()}
    root = max(gain for one, gain in gains.items() if one[:2] == (0, words))
    worth = [one for one, gain in gains.items() if gain > 0]
    best = max(
        sum(map(gains.get, chosen))
        for size in range(len(worth) + 1)
        for chosen in itertools.combinations(worth, size)
        if not any(itertools.starmap(crosses, itertools.permutations(chosen, 2)))
    )
    # Of constituents with the same label and words, only outer ones can be left out, so that `nth`
    # of the others, counted from the innermost, is as before.
    found = brackets(consensus_of(trees, ["a"] * words), words)
    agreement = sum(gains[one] for one in found)
    assert agreement <= best + min(0, root) + 1e-9
    if len(found) < max(len(brackets(tree, words)) for tree in trees):
        assert agreement == pytest.approx(best + min(0, root))


@pytest.mark.parametrize("seed", range(60))
def test_a_consensus_is_a_tree_of_all_words(seed):
    rng = random.Random(seed)
    sentence = [rng.choice(["a", "b", ",", "."]) for _ in range(rng.randrange(1, 12))]
    trees = [random_tree(rng, 0, len(sentence)) for _ in range(rng.randrange(1, 8))]
    tree, well_formed = tree_of(consensus_of(trees, sentence), sentence)
    assert well_formed
    assert tree.words() == sentence
